"""The NumPy code that defines the decoder's bits (docs/numerics.md, part 2), for tests and tools.

Native code must give these bits on every instruction set, for any number of tokens and threads.
"""
