"""What the file of an architecture says of it; the rest of the package asks nothing else.

The facts are values and functions that need no PyTorch; decoders of every form are made from them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from aleator.models import gguf_config, json_config
from aleator.models.config import ModelConfig
from aleator.models.files.fields import Fields
from aleator.models.files.gguf import GGUFFile
from aleator.models.files.tensor_types import StoredTensor

TRANSFORMER = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
"""Hugging Face's names of a plain transformer layer's tensors -> GGUF's."""

OUTER = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
"""Hugging Face's usual names of the tensors outside the layers -> GGUF's."""


def unchanged(name: str, tensor: StoredTensor) -> StoredTensor:
    """The tensor, for architectures whose GGUF files hold what Hugging Face's do."""
    return tensor


@dataclass(frozen=True)
class HuggingFace:
    """An architecture as Hugging Face's directories have it.

    Names of tensors are without ".weight" and ".bias".

    Attributes:
        model_types: what ``model_type`` of config.json may be.
        read: reads config.json.
        stack: what comes before ".layers." in the names of tensors.
        outer: their names outside the layers -> GGUF's.
        layer: their names within a layer -> GGUF's.
        bare: like ``layer``, for tensors whose names end there, without ".weight".
        expert: names within a layer of the tensors of one expert, "{}" being its number -> GGUF's.
        ours: the name of a tensor as ``outer`` and ``layer`` have it; "" for one of another part of the model,
            such as one for pictures, which is left out.
        convert: the tensor as GGUF files hold it: ``convert(GGUF's name, tensor)``.
    """

    model_types: tuple[str, ...]
    read: Callable[[Fields, Architecture], ModelConfig] = json_config.full_attention
    stack: str = "model"
    outer: Mapping[str, str] = field(default_factory=lambda: OUTER)
    layer: Mapping[str, str] = field(default_factory=lambda: TRANSFORMER)
    bare: Mapping[str, str] = field(default_factory=dict)
    expert: Mapping[str, str] = field(default_factory=dict)
    ours: Callable[[str], str] = str
    convert: Callable[[str, StoredTensor], StoredTensor] = unchanged

    def names(self, n_layers: int, n_experts: int = 0) -> dict[str, str]:
        """Hugging Face's tensor name -> GGUF's, for every tensor that such a model can have."""
        stems = dict(self.outer)
        names: dict[str, str] = {}
        for layer in range(n_layers):
            theirs, ours = f"{self.stack}.layers.{layer}.", f"blk.{layer}."
            stems |= {theirs + name: ours + gguf for name, gguf in self.layer.items()}
            names |= {theirs + name: ours + gguf for name, gguf in self.bare.items()}
            for name, gguf in self.expert.items():
                stems |= {
                    theirs + name.format(expert): ours + gguf.format(expert)
                    for expert in range(n_experts)
                }
        for theirs, ours in stems.items():
            names |= {f"{theirs}.{part}": f"{ours}.{part}" for part in ("weight", "bias")}
        return names


@dataclass(frozen=True)
class Architecture:
    """How one architecture differs from the plain pre-norm transformer with rotary and SwiGLU.

    Attributes:
        name: as in ``general.architecture`` of a GGUF file, where it is the prefix of the fields too.
        rope_style: how a GGUF file pairs the channels that are rotated together, see
            :class:`~aleator.models.config.RopeConfig`; "none": queries and keys are not rotated.
        read_gguf: reads a GGUF file's metadata.
        hugging_face: the same model in Hugging Face's files; None: it is read from GGUF only.
        qkv_bias: query, key and value projections have a bias.
        head_norm: every query and key head is RMS-normalised before the rotation.
        post_norm: what attention and feed-forward give is normalised before it is added.
        activation: of the gate.
        scaled_embedding: embeddings of tokens are multiplied by sqrt(n_embd).
        recurrent: the kind of the layers that keep a state; None: there are none.
        state_norm: time step, B and C of such layers are RMS-normalised, with weights.
    """

    name: str
    rope_style: Literal["norm", "neox", "none"] = "neox"
    read_gguf: Callable[[GGUFFile, Architecture], ModelConfig] = gguf_config.transformer
    hugging_face: HuggingFace | None = None
    qkv_bias: bool = False
    head_norm: bool = False
    post_norm: bool = False
    activation: Literal["silu", "silu_clamped", "gelu"] = "silu"
    scaled_embedding: bool = False
    recurrent: Literal["state space"] | None = None
    state_norm: bool = False
