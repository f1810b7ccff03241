"""Samplers on the device: PyTorch operations over static shapes [B, V].

They give the tokens of docs/numerics.md bit for bit, as the host's kernels do.  All operations are elementwise
on float32 or float64, rounded separately, or integer arithmetic: nothing depends on the batch, the row or the
device.
"""
