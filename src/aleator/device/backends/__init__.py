"""What runs a device chain: ``torch`` and ``triton``; the native kernels are aleator.core.host."""
