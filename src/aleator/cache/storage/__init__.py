"""Storage of keys, values and states: NumPy arrays on the CPU, torch tensors on devices."""
