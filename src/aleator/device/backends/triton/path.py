"""What a row's chain asks of the Triton kernels, known on the host without asking the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from aleator.core.contract import COLDEST
from aleator.core.records import dataclass
from aleator.device.backends.torch import bans, draws, logits, truncation
from aleator.device.backends.torch.user import DeviceUser
from aleator.device.backends.triton import places, rows, sparse
from aleator.device.backends.triton.past import PAST
from aleator.device.device_sampler import DeviceSampler
from aleator.samplers.base import Sampler
from aleator.samplers.dry import DRY
from aleator.samplers.logit_bias import LogitBias
from aleator.samplers.penalties import Penalties
from aleator.samplers.temperature import Temperature
from aleator.samplers.top_k import TopK

LONGEST = 1024
"""Candidates that a list can hold."""
WINDOW = 192
"""Candidates in which the end of a top-p or min-p without a top-k is looked for first, in a list of 256."""

KINDS = {
    draws.DeviceGreedy: places.GREEDY,
    draws.DeviceDist: places.DIST,
    draws.DeviceGumbel: places.GUMBEL,
    draws.DeviceWatermark: places.WATERMARK,
    draws.DeviceAdaptiveP: places.ADAPTIVE_P,
    draws.DeviceMirostat: places.MIROSTAT,
    draws.DeviceSynthID: places.SYNTHID,
    draws.DeviceMirostatV2: places.MIROSTAT_V2,
    logits.DeviceTemperature: places.TEMPERATURE,
    logits.DeviceSoftmax: places.SOFTMAX,
    truncation.DeviceTopK: places.TOP_K,
    truncation.DeviceTopP: places.TOP_P,
    truncation.DeviceMinP: places.MIN_P,
    truncation.DeviceTypicalP: places.TYPICAL_P,
    truncation.DeviceTopNSigma: places.TOP_N_SIGMA,
    truncation.DevicePLess: places.P_LESS,
    truncation.DeviceTopH: places.TOP_H,
    truncation.DeviceMinK: places.MIN_K,
    truncation.DeviceXTC: places.XTC,
    truncation.DeviceEpsilonCutoff: places.EPSILON_CUTOFF,
    truncation.DeviceEtaCutoff: places.ETA_CUTOFF,
    logits.DeviceSmoothing: places.SMOOTHING,
    logits.DeviceLogitBias: places.LOGIT_BIAS,
    logits.DevicePenalties: places.PENALTIES,
    bans.DeviceTokenMask: places.TOKEN_MASK,
    bans.DeviceMinTokens: places.BAN,
    bans.DeviceBadWords: places.BAN,
    bans.DeviceNoRepeatNgram: places.BAN,
    bans.DeviceDRY: places.LOGIT_BIAS,
    DeviceUser: places.SKIPPED,
}
WRITERS = {
    logits.DeviceLogitBias: sparse.BIAS,
    logits.DevicePenalties: sparse.PENALTIES,
    bans.DeviceTokenMask: sparse.MASK,
    bans.DeviceMinTokens: sparse.MASK,
    bans.DeviceBadWords: sparse.MASK,
    bans.DeviceNoRepeatNgram: sparse.MASK,
    bans.DeviceDRY: sparse.BIAS,
}
MOVED = (draws.DeviceAdaptiveP, draws.DeviceMirostat, draws.DeviceMirostatV2)
"""Whose states the kernels move."""
# What `whole` can do: these keep a beginning of the order, or draw by inverse mass.
_IN_ORDER = (
    draws.DeviceGreedy, draws.DeviceDist, logits.DeviceTemperature, logits.DeviceSoftmax,
    truncation.DeviceTopK, truncation.DeviceTopP, truncation.DeviceMinP,
)  # fmt: skip


@dataclass(frozen=True)
class Path:
    """What a row's chain asks of the kernels."""

    want: int  # an index of ``rows.PATHS``
    # The first place that works on the list; biases, penalties and masks before it change the logits.
    start: int = 0
    size: int = 1  # candidates of its list
    temperature: float = 0.0  # at which it needs the mass of the whole row; 0: it does not
    written: int = 0  # tokens whose logits its chain may change, at most
    sparse: bool = False  # whether it changes any before the list is made
    past: bool = False  # whether it looks at the tokens before
    # Places of biases, penalties and masks that work on the list
    late: frozenset[int] = frozenset()
    why: str = field(default="", compare=False)  # why the row is PyTorch's; "" where it is not


@dataclass(frozen=True)
class Plan:
    """What is launched for a batch: sizes, and which of the kernels."""

    size: int  # columns of a list
    table: int  # slots of a row's table of written logits; 0: no row writes logits
    whole: bool  # some row may need all of its candidates
    masses: bool  # some row needs its whole mass
    torch: bool  # some row is PyTorch's
    allowed: bool  # there are masks from the host
    late: frozenset[int]  # places of writers that work on the list
    past: bool  # some row looks at the tokens before


def path_of(
    kinds: Sequence[type[DeviceSampler]],
    samplers: Sequence[Sampler | None],
    max_tokens: int,
    tail: bool,
    report: bool = False,
) -> Path:
    """The path of a row with these samplers at the template's places, ``None`` where it has none.

    ``report``: the list must hold all that is left.
    """
    if tail:
        return by_torch("samplers on the host follow")
    if not any(s is not None and s.selects for s in samplers):
        return by_torch("none of the samplers chooses a token")
    temperature, needs, written, window, writes = 1.0, 0.0, 0, 0, False
    found: Path | None = None
    late = set()
    for i, (kind, sampler) in enumerate(zip(kinds, samplers, strict=True)):
        if sampler is None:
            continue
        if kind not in KINDS or kind is DeviceUser:
            return by_torch(f"{sampler.name} has no Triton kernel")
        if found is not None:
            dynamic = isinstance(sampler, Temperature) and sampler.dynatemp_range > 0
            if found.want != rows.AT_LIST.value and (kind not in _IN_ORDER or dynamic):
                return by_torch(_needs_a_list(sampler))
            if kind in WRITERS:
                late.add(i)
        elif kind in WRITERS:
            if temperature != 1:  # every logit would have to be divided
                return by_torch(f"{sampler.name} comes after a temperature")
            writes = True
            if isinstance(sampler, LogitBias):
                written += len(sampler.logit_bias)
            elif isinstance(sampler, Penalties):
                last = sampler.penalty_last_n
                window = max(window, max_tokens if last < 0 else last)
            elif isinstance(sampler, DRY):
                window = max(window, sampler.dry_penalty_last_n)
        elif isinstance(sampler, Temperature) and sampler.dynatemp_range <= 0:
            temperature *= sampler.temperature
            if temperature <= COLDEST:
                found = Path(rows.AT_LIST.value, i, 1)
        elif kind is draws.DeviceGreedy:
            found = Path(rows.AT_LIST.value, i, 1)
        elif isinstance(sampler, TopK) and sampler.most <= LONGEST:
            found = Path(rows.AT_LIST.value, i, sampler.most)
        elif kind in _IN_ORDER and kind is not logits.DeviceTemperature:
            if kind in (logits.DeviceSoftmax, truncation.DeviceTopP, draws.DeviceDist):
                if needs not in (0.0, temperature):
                    return by_torch("the mass of the whole row is needed at two temperatures")
                needs = temperature
            if kind is not logits.DeviceSoftmax:
                size = WINDOW if kind in (truncation.DeviceTopP, truncation.DeviceMinP) else 1
                found = Path(rows.AT_WINDOW.value, i, size)
        else:
            return by_torch(_needs_a_list(sampler))
    if found is None:
        return by_torch("none of the samplers chooses a token")
    if report and (found.want == rows.AT_WINDOW.value or kinds[found.start] is draws.DeviceGreedy):
        return by_torch(f"a report needs all candidates, so a top_k of at most {LONGEST}")
    written += min(window, max_tokens)  # all windows end with the last token
    past = any(kind in PAST and s is not None for kind, s in zip(kinds, samplers, strict=True))
    return Path(found.want, found.start, found.size, needs, written, writes, past, frozenset(late))


def by_torch(why: str) -> Path:
    """The path of a row that the kernels cannot run."""
    return Path(rows.AT_TORCH.value, why=why)


def _needs_a_list(sampler: Sampler) -> str:
    return f"{sampler.name} needs a top_k of at most {LONGEST} before it"


def plan_of(paths: Sequence[Path], allowed: bool) -> Plan:
    """What rows with these paths need."""
    writes = allowed or any(path.sparse for path in paths)
    return Plan(
        list_size(max(path.size for path in paths)),
        slots(max(path.written for path in paths)) if writes else 0,
        any(path.want == rows.AT_WINDOW.value for path in paths),
        any(path.temperature for path in paths),
        any(path.want == rows.AT_TORCH.value for path in paths),
        allowed,
        frozenset[int]().union(*(path.late for path in paths)),
        any(path.past for path in paths),
    )


def list_size(n: int) -> int:
    """Columns of a list of n: a few more, since more than n may reach the tiles' threshold."""
    return min(LONGEST, max(16, 1 << (n + n // 4 - 1).bit_length()))


def slots(tokens: int) -> int:
    """Slots of a table that holds so many tokens: a power of two, at least a third of them free."""
    return max(16, 1 << (tokens * 3 // 2 - 1).bit_length())
