"""The parts that architectures are built from."""
