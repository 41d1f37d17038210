"""Commands that measure: hosts, devices, benchmarks, load tests and requested benchmarks."""
