"""The decoder's arithmetic (docs/numerics.md, part 2) in Triton: the CPU's bits on a device."""
