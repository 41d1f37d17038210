"""Backends: one module per runtime behind the protocol of `base`, with detection of what this host has.

`registry` maps a hardware name, such as `openvino:gpu.1`, to its runtime; `make_backend` imports and returns the
backend. A worker then calls it in the order that `base.Backend` states: load, compile, bind, run, outputs.

`detect` looks for the devices of all hardware names, by a probe per runtime (`probes`). `profiling` returns times per
operator, and the precision that a graph computes in.
"""
