"""A decoder's layers by Triton's kernels, for GPUs; :mod:`aleator.models.kernels` has the kernels."""
