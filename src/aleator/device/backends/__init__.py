"""Backends of device chains: ``torch`` and ``triton``; the native kernels are in aleator.core.host."""
