"""Where keys, values and states are kept: NumPy arrays on the CPU, torch's tensors on devices."""
