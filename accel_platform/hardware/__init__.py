"""Host facts: processor, GPU, energy counters, memory, and the spec sheet of known devices."""
