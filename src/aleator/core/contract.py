"""Constants of the portable numerics contract, version 2 (docs/numerics.md); changing one changes tokens.

Native code gets them through native/contract.hpp, which ``tools/contract.py`` makes from this module.  PyTorch
and Triton code imports them.  The NumPy reference (core/numerics.py, core/philox.py and each sampler's
``reference``) has its own numbers, and a test compares them.
"""

from enum import IntEnum

NUMERICS_VERSION = 2

MAX_VOCAB = 1 << 20
"""Most tokens of a row: 2^20 weights of at most 2^40 sum to at most 2^60."""

# Weights.
WEIGHT_BITS = 40
"""The largest logit weighs 2^40."""
LOG2_E = 1.4426950408889634
EXP2_COEFFICIENTS = (
    1.0, 0.6931470036506653, 0.24022242426872253, 0.05550733581185341, 0.009671512991189957,
    0.001326472731307149,
)  # fmt: skip
"""float32 coefficients of the minimax polynomial of 2^f on [-1/2, 1/2], f^0 to f^5."""
ROUND = 12582912.0
"""1.5 * 2^23: adding it to a float32 rounds to an integer, ties to even."""
LEAST_BITS = -100.0
"""The least t; lower values are clamped."""
DEPTH_UNIT = 65536.0
"""Bits of weights are counted in Q16."""
ENTROPY_SERIES = 2.0**-10
"""Entropy: if all mass besides a single top is below this, a series replaces the logarithm."""
COLDEST = 1e-5
"""At this product of temperatures, or less, only the first token of the order stays."""

# Logarithm and exponential.
EXP2_LIMIT = 1000.0
"""The argument of the float64 exponential is clamped to plus or minus this."""

# Samplers.
SIGMA_LEAST = -256.0
"""Top-n-sigma: the least distance from the largest logit; lower ones are clamped."""
SIGMA_UNIT = 4096.0
"""Top-n-sigma: distances are counted in Q12."""
XTC_LARGEST = 0.5
"""XTC: the sampler is off above this threshold."""
MU_LIMIT = 100.0
"""Mirostat 2: mu is clamped to plus or minus this."""
ADAPTIVE_PEAK = 5.0
ADAPTIVE_SLOPE = 10.0
ADAPTIVE_WIDTH = 0.3
"""Adaptive-p: z = peak - slope * d^2 / (1 + d), d = distance / width."""
DRY_LARGEST_POWER = 1e300
DRY_LARGEST_PENALTY = 3e38

# Random numbers.
PHILOX_ROUNDS = 10
PHILOX_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
PHILOX_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
PURPOSE_SHIFT = 28
ORDINAL_SHIFT = 20
MAX_ORDINAL = (1 << PURPOSE_SHIFT - ORDINAL_SHIFT) - 1
MAX_COMPLETION = (1 << ORDINAL_SHIFT) - 1


class Purpose(IntEnum):
    """What a stream of random numbers is for."""

    DIST = 1
    GUMBEL = 2
    XTC = 3
    MIROSTAT = 4
    MIROSTAT_V2 = 5
    ADAPTIVE_P = 6
    USER = 7
    WATERMARK = 8
    BAN = 9
