"""Where samplers get their kernels: ``host`` is the native code, ``device`` will be Triton and PyTorch."""
