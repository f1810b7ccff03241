"""The native host kernels, by the names that sampler modules use."""

from aleator._native import *  # noqa: F403
