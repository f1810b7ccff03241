"""Which type each tensor gets when a model is quantised: llama.cpp's rules (src/llama-quant.cpp).

A file type such as Q4_K_M is a mixture: tensors whose errors do more harm get more bits.
"""

from __future__ import annotations

from collections.abc import Iterator

from aleator.core.errors import FileFormatError, ParameterError, UnsupportedModel
from aleator.core.records import dataclass
from aleator.models.files.gguf import GGUFFile, TensorInfo
from aleator.models.files.tensor_types import TENSOR_TYPES
from aleator.models.index import ARCHITECTURES, ENCODERS
from aleator.models.weights import layer_of


@dataclass(frozen=True)
class FileType:
    """A file type: llama.cpp's number of it, the type of most matrices, and what it is good for."""

    number: int
    main: str
    about: str


FILE_TYPES = {
    "Q8_0": FileType(7, "Q8_0", "8.5 bits; next to no loss"),
    "Q6_K": FileType(18, "Q6_K", "6.6 bits; hardly any loss"),
    "Q5_K_M": FileType(17, "Q5_K", "5.7 bits; little loss"),
    "Q5_K_S": FileType(16, "Q5_K", "5.5 bits; a little more"),
    "Q4_K_M": FileType(15, "Q4_K", "4.9 bits; what most people take"),
    "Q4_K_S": FileType(14, "Q4_K", "4.6 bits; a little smaller"),
    "Q3_K_L": FileType(13, "Q3_K", "4.3 bits; loss can be seen"),
    "Q3_K_M": FileType(12, "Q3_K", "3.9 bits; loss can be seen"),
    "Q3_K_S": FileType(11, "Q3_K", "3.5 bits; much loss"),
    "Q2_K": FileType(10, "Q2_K", "3.2 bits; for models too large otherwise; with an importance matrix"),
    "Q5_1": FileType(9, "Q5_1", "6.0 bits; an older type"),
    "Q5_0": FileType(8, "Q5_0", "5.5 bits; an older type"),
    "Q4_1": FileType(3, "Q4_1", "5.0 bits; an older type"),
    "Q4_0": FileType(2, "Q4_0", "4.5 bits; an older type, the simplest"),
    "MXFP4_MOE": FileType(38, "MXFP4", "experts in MXFP4, 4.25 bits, all else in Q8_0"),
    "BF16": FileType(32, "BF16", "16 bits; the range of float32"),
    "F16": FileType(1, "F16", "16 bits"),
    "F32": FileType(0, "F32", "32 bits"),
}  # fmt: skip
_ALSO = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M", "MXFP4": "MXFP4_MOE"}
"""Shorter names, as in llama.cpp."""

_FALLBACKS = {"Q2_K": "Q4_0", "Q3_K": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
"""The type of a matrix whose rows are not whole blocks of 256."""

_KEPT = (
    "_norm.weight", "ffn_gate_inp.weight", "ffn_gate_tid2eid.weight", "altup", "laurel",
    "per_layer_model_proj", "ssm_conv1d", "shortconv.conv.weight", "indexer.k_proj.weight",
    "indexer.q_proj.weight", "attn_rel_b.weight", ".position_embd", "sam.pos_embd", "sam.neck.", "sam.net_",
    ".rel_pos", ".patch_embd", ".patch_merger", "a.rvq.codebook", "mm.a.code_embd",
)  # fmt: skip
"""Parts of names of matrices that are small or sensitive, and stay as they are."""

_CATEGORIES = (
    "attn_qkv.weight", "attn_kv_b.weight", "attn_v.weight", "attn_k.weight", "attn_q.weight",
    "attn_output.weight", "ffn_up", "ffn_gate", "ffn_down",
)  # fmt: skip
_LIKE_VALUES = ("attn_qkv.weight", "attn_kv_b.weight", "attn_v.weight")
_EMBEDDINGS = ("token_embd.weight", "per_layer_token_embd.weight")


def file_type(name: str) -> str:
    """Return the name of a file type as in :data:`FILE_TYPES`; raise ParameterError for others."""
    upper = name.upper()
    upper = _ALSO.get(upper, upper)
    if upper not in FILE_TYPES:
        raise ParameterError(f"type={name!r:.80}: give one of {', '.join(FILE_TYPES)}")
    return upper


def may_change(info: TensorInfo) -> bool:
    """Whether a tensor is quantised at all."""
    name = info.name
    return (
        any(n > 1 for n in info.shape[:-1])
        and name.endswith("weight")
        and name not in ("position_embd.weight", "token_types.weight")
        and not any(part in name for part in _KEPT)
    )


def in_order(gguf: GGUFFile) -> list[TensorInfo]:
    """All tensors in llama.cpp's order."""
    return sorted(gguf.tensors.values(), key=lambda info: (layer_of(info.name), info.name.encode()))


def category(name: str) -> str:
    """What a tensor is for; "": something that no rule names."""
    if name == "output.weight":
        return "output"
    if name in _EMBEDDINGS:
        return "embedding"
    return next((part for part in _CATEGORIES if part in name), "")


class Rules:
    """The rules for one model and file type; :meth:`types` may be called once."""

    def __init__(self, gguf: GGUFFile, kind: str, weighed: bool) -> None:
        arch = gguf.require("general.architecture", str)
        if arch not in ARCHITECTURES and arch not in ENCODERS:
            raise UnsupportedModel(
                f"{gguf.path}: the architecture {arch!r} is not supported; supported are "
                f"{', '.join((*ARCHITECTURES, *ENCODERS))}"
            )
        self._gguf, self._kind, self._weighed = gguf, kind, weighed
        self._main = FILE_TYPES[kind].main
        self._n_layers = gguf.fields.integer(f"{arch}.block_count", 1, 100_000)
        self._n_experts = gguf.fields.integer(f"{arch}.expert_count", 0, 1 << 20, default=0)
        heads, kv = (self._heads(f"{arch}.attention.head_count{end}") for end in ("", "_kv"))
        self._shared = heads // kv if kv else 0
        eighty = self._n_layers == 80
        self._is_70b = eighty and (arch == "qwen2" or (arch == "llama" and heads != kv))
        self._n_values = sum(category(name) in _LIKE_VALUES for name in gguf.tensors)
        self._tied = "output.weight" not in gguf.tensors
        self._values = self._downs = 0  # passed so far

    def _heads(self, key: str) -> int:
        """Heads of the first layer; 0: there are none."""
        value = self._gguf.metadata.get(key, 0)
        value = value[0] if isinstance(value, list) and value else value
        if not isinstance(value, int) or value < 0:
            raise self._gguf.fields.error(
                key, f"{key} is {value!r:.60}; it must be a number of heads"
            )
        return value

    def types(self) -> Iterator[tuple[TensorInfo, str | None]]:
        """Every tensor with its type, in llama.cpp's order; None: it stays as it is."""
        for info in in_order(self._gguf):
            yield info, self._type(info) if may_change(info) else None

    def _type(self, info: TensorInfo) -> str:
        if TENSOR_TYPES[self._main].block == 1:
            return self._main
        wanted = self._preferred(info)
        columns = info.shape[-1]
        for kind in (wanted, _FALLBACKS.get(wanted, wanted)):
            if columns % TENSOR_TYPES[kind].block == 0:
                return kind
        return "F16"

    def _preferred(self, info: TensorInfo) -> str:
        what, kind, main = category(info.name), self._kind, self._main
        if what == "output" or (what == "embedding" and self._tied):
            whole = info.shape[-1] % TENSOR_TYPES[main].block == 0
            return "Q6_K" if whole and main not in ("Q8_0", "MXFP4") else "Q8_0"
        if main == "MXFP4":
            return "MXFP4" if len(info.shape) > 2 and info.shape[-3] > 1 else "Q8_0"
        if what in _LIKE_VALUES:
            return self._of_values()
        if what == "attn_k.weight" and self._n_experts == 8:
            return "Q8_0"
        if what == "ffn_down":
            return self._of_down(info.name)
        if what == "attn_output.weight":
            if self._n_experts == 8:
                return "Q5_K" if main in ("Q2_K", "Q3_K", "Q4_K") and kind != "Q3_K_L" else main
            return {"Q2_K": "Q3_K", "Q3_K_M": "Q4_K", "Q3_K_L": "Q5_K"}.get(kind, main)
        return main

    def _more(self, layer: int, n: int) -> bool:
        """Whether a layer is one that gets more bits: the first and last eighth, and every third between."""
        return layer < n // 8 or layer >= 7 * n // 8 or (layer - n // 8) % 3 == 2

    def _of_values(self) -> str:
        kind, chosen, i = self._kind, self._main, self._values
        self._values += 1
        if kind == "Q2_K":
            chosen = "Q4_K" if self._shared >= 4 else "Q3_K"
        elif kind == "Q3_K_M":
            chosen = "Q5_K" if i < 2 else "Q4_K"
        elif kind == "Q3_K_L" or (kind == "Q4_K_S" and i < 4):
            chosen = "Q5_K"
        elif kind in ("Q4_K_M", "Q5_K_M") and self._more(i, self._n_values):
            chosen = "Q6_K"
        if self._is_70b and chosen in ("Q3_K", "Q4_K"):
            chosen = "Q5_K"
        return "Q8_0" if self._n_experts == 8 else chosen

    def _of_down(self, name: str) -> str:
        kind, n = self._kind, self._n_layers
        i = layer_of(name) if self._n_experts > 1 else self._downs
        self._downs += 1
        if self._n_experts > 1 and not 0 <= i < n:
            raise FileFormatError(self._gguf.path, f"there are {n} layers", field=name)
        first = i < n // 8
        if kind == "Q2_K":
            return "Q3_K"
        if kind == "Q3_K_M":
            return "Q5_K" if i < n // 16 else "Q4_K"
        if kind == "Q3_K_L" or (kind == "Q4_K_S" and first):
            return "Q5_K"
        if kind in ("Q4_K_M", "Q5_K_M") and self._more(i, n):
            return "Q6_K"
        if kind in ("Q4_0", "Q5_0") and self._weighed and first:
            return kind[:-1] + "1"
        return self._main
