"""The native host kernels, by the names that sampler modules use."""

from __future__ import annotations

from aleator._native import *  # noqa: F403
