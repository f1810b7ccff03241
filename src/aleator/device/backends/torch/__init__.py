"""Samplers on the device, PyTorch operations over static shapes [B, V].

They give the tokens of docs/numerics.md bit for bit, as the host's kernels do.  Everything is a float32
or float64 elementwise operation, rounded by itself, or integer arithmetic: nothing depends on the
batch, the row or the device.
"""
