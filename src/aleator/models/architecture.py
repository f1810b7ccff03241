"""What an architecture's module declares; the rest of the package needs nothing else.

The declarations are values and functions that need no PyTorch; decoders of every form are made from them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import field
from typing import Any, Literal

from aleator.core.records import dataclass
from aleator.models.config import ModelConfig
from aleator.models.files.fields import Fields, Value
from aleator.models.files.gguf import GGUFFile
from aleator.models.files.tensor_types import StoredTensor


def under(part: str, names: Mapping[str, str], suffix: str = "") -> dict[str, str]:
    """Names of a part of a layer: ``part`` goes before Hugging Face's, ``suffix`` after GGUF's."""
    return {f"{part}.{name}": gguf + suffix for name, gguf in names.items()}


# Hugging Face's usual names of tensors of a layer -> GGUF's.
GATED = {"gate_proj": "ffn_gate", "up_proj": "ffn_up", "down_proj": "ffn_down"}
ATTENTION = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "input_layernorm": "attn_norm",
}
WITHOUT_MLP = ATTENTION | {"post_attention_layernorm": "ffn_norm"}
TRANSFORMER = WITHOUT_MLP | under("mlp", GATED)
HEAD_NORMS = {"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}
POST_NORMS = {
    "post_attention_layernorm": "post_attention_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
NORMS_AROUND = POST_NORMS | {"pre_feedforward_layernorm": "ffn_norm"}
EXPERTS = under("mlp.experts.{}", GATED, ".{}")
"""Names of one expert's tensors; "{}" is the expert's number."""
MIXTRAL_EXPERT = {"w1": "ffn_gate.{}", "w3": "ffn_up.{}", "w2": "ffn_down.{}"}
STACKED = {
    "experts.gate_up_proj": "ffn_gate_up_exps.weight",
    "experts.down_proj": "ffn_down_exps.weight",
}
"""Names of experts that are stored together, which have no ".weight" at the end."""


MTP_LAYER = {
    name: "nextn." + name.replace("shared_head.", "shared_head_")
    for name in (
        "eh_proj", "enorm", "hnorm", "embed_tokens", "shared_head.norm", "shared_head.head",
    )
}  # fmt: skip
"""Usual names in a layer that predicts further tokens (MTP), besides those of any layer."""


def shared_mlp(part: str) -> dict[str, str]:
    """Names of a shared expert, which every token goes through."""
    return under(part, GATED, "_shexp")


SHARED_ROUTED = {
    "mlp.gate": "ffn_gate_inp",
    **shared_mlp("mlp.shared_expert"),
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
}
"""Names of a layer's router, and of its shared expert with a router of its own."""


def outside(embedding: str = "model.embed_tokens", norm: str = "model.norm") -> dict[str, str]:
    """Hugging Face's names of the tensors outside the layers -> GGUF's."""
    return {embedding: "token_embd", norm: "output_norm", "lm_head": "output"}


OUTER = outside()
"""Hugging Face's usual names of the tensors outside the layers."""


def unchanged(name: str, tensor: StoredTensor) -> StoredTensor:
    """Return the tensor as it is: GGUF files hold the same as Hugging Face's."""
    return tensor


@dataclass(frozen=True)
class HuggingFace:
    """An architecture as Hugging Face's directories describe it.

    Names of tensors are without ".weight" and ".bias".
    """

    model_types: tuple[str, ...]  # what ``model_type`` of config.json may be
    # Reads config.json; None: json_config.full_attention() does, with ``options``
    read: Callable[[Fields, Architecture], ModelConfig] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    # Whether a config.json of such a type is of this architecture, where several have the type; None: it is
    takes: Callable[[Fields], bool] | None = None
    stack: str = "model"  # what comes before ".layers." in the names of tensors; "": nothing
    layers: str = "layers"  # the name used instead of "layers"
    # Hugging Face's names outside the layers -> GGUF's
    outer: Mapping[str, str] = field(default_factory=lambda: OUTER)
    # Hugging Face's names within a layer -> GGUF's
    layer: Mapping[str, str] = field(default_factory=lambda: TRANSFORMER)
    # Like ``layer``, for names that have no ".weight" at the end
    bare: Mapping[str, str] = field(default_factory=dict)
    # Names of one expert's tensors within a layer -> GGUF's; "{}" is the expert's number
    expert: Mapping[str, str] = field(default_factory=dict)
    # Whether gate and up take turns in one parameter of all experts, whose matrices are [in, out]
    experts_interleaved: bool = False
    # Whether matrices in layers are [in, out], as transformers' Conv1D has them; quantised ones are not
    turned: bool = False
    # Names in a layer that predicts further tokens (MTP), besides those of ``layer``; {}: it is left out
    mtp: Mapping[str, str] = field(default_factory=dict)
    # What comes before its names, as "mtp."; "": it follows the other layers, and config.json counts it
    mtp_prefix: str = ""
    # A tensor's name as in ``outer`` and ``layer``, from its name in the file; "" for a tensor that is left
    # out, such as one for pictures
    usual_name: Callable[[str], str] = str
    # The tensor as GGUF files hold it: ``convert(GGUF's name, tensor)``
    convert: Callable[[str, StoredTensor], StoredTensor] = unchanged
    # The same, if it depends on config.json
    convert_fields: Callable[[str, StoredTensor, Fields, ModelConfig], StoredTensor] | None = None
    # Puts rows of a matrix, or of a vector beside it, in the order of GGUF files
    move_rows: Callable[[str, StoredTensor, ModelConfig], StoredTensor] | None = None
    # Puts columns of a matrix in the order of GGUF files
    move_columns: Callable[[str, StoredTensor, ModelConfig], StoredTensor] | None = None
    # The same as ``convert``, if it depends on other tensors' shapes in the file, by GGUF's names
    convert_beside: (
        Callable[[str, StoredTensor, ModelConfig, Mapping[str, tuple[int, ...]]], StoredTensor]
        | None
    ) = None
    # Which channels are rotated together, in the row order of these files, if any are
    rope_style: Literal["norm", "neox"] = "neox"
    # The dimensions as GGUF files say them, if they say some in another way
    config_in_gguf: Callable[[ModelConfig], ModelConfig] | None = None
    # Further fields of a GGUF file, without the architecture's prefix, from these dimensions and config.json
    gguf_fields: Callable[[ModelConfig, Fields], Mapping[str, Value | None]] | None = None

    def names(self, n_layers: int, n_experts: int = 0, n_mtp: int = 0) -> dict[str, str]:
        """Hugging Face's tensor name -> GGUF's, for every tensor that such a model can have.

        ``n_mtp``: layers after ``n_layers`` that predict further tokens.
        """
        stems = dict(self.outer)
        names: dict[str, str] = {}
        for layer in range(n_layers + n_mtp):
            within = f"{self.stack}." if self.stack else ""
            file_layer, gguf_layer = f"{within}{self.layers}.{layer}.", f"blk.{layer}."
            if layer >= n_layers:
                at = self.mtp_prefix or file_layer
                stems |= {at + name: gguf_layer + gguf for name, gguf in self.mtp.items()}
                if self.mtp_prefix:
                    file_layer = f"{at}layers.{layer - n_layers}."
            stems |= {file_layer + name: gguf_layer + gguf for name, gguf in self.layer.items()}
            names |= {file_layer + name: gguf_layer + gguf for name, gguf in self.bare.items()}
            for name, gguf in self.expert.items():
                stems |= {
                    file_layer + name.format(expert): gguf_layer + gguf.format(expert)
                    for expert in range(n_experts)
                }
        for name, gguf in stems.items():
            names |= {f"{name}.{part}": f"{gguf}.{part}" for part in ("weight", "bias")}
        return names

    def own_name(self, name: str, names: Collection[str]) -> str:
        """A tensor's usual name, also of a model without its head, whose names lack :attr:`stack`."""
        usual = self.usual_name(name)
        within = f"{self.stack}.{usual}"
        return within if usual and usual not in names and within in names else usual


@dataclass(frozen=True)
class Architecture:
    """How one architecture differs from the plain pre-norm transformer with rotary and SwiGLU."""

    # ``general.architecture`` of a GGUF file, which is also the prefix of its fields
    name: str
    # How a GGUF file pairs the channels that are rotated together, see RopeConfig; "none": queries and keys
    # are not rotated
    rope_style: Literal["norm", "neox", "none"] = "neox"
    # Reads a GGUF file's metadata; None: gguf_config.transformer() does
    read_gguf: Callable[[GGUFFile, Architecture], ModelConfig] | None = None
    # The same model in Hugging Face's files; None: it is read from GGUF only
    hugging_face: HuggingFace | None = None
    qkv_bias: bool = False  # query, key and value projections have a bias
    # How rows are normalised: divided by their root mean square, or centred and divided by their deviation
    norm: Literal["rms", "layer"] = "rms"
    # Tokens see only those before them.  False: an encoder, whose tokens see the whole text, or as far ahead as
    # behind; it gives vectors of texts, no logits.
    causal: bool = True
    pre_norm: bool = True  # the inputs of attention and feed-forward are normalised
    bare_start: bool = False  # the first layer's attention has no such norm
    # The outputs of attention and feed-forward are normalised before they are added
    post_norm: bool = False
    sum_norm: bool = False  # the sums after attention and feed-forward are normalised
    # GGUF's name of the norm before attention; "attn_norm" where a file has no such tensor
    attn_norm: str = "attn_norm"
    # GGUF's name of the norm before feed-forward; "": there is none, as feed-forward takes attention's input
    ffn_norm: str = "ffn_norm"
    norm_weights: bool = True  # norms have weights in the file; otherwise all are 1
    # What follows the dense layer of a head that makes scores
    score_activation: Literal["tanh", "gelu"] = "tanh"
    # GGUF's name of the norm before the output matrix; "": there is none
    output_norm: str = "output_norm"
    # Queries and keys are always normalised; otherwise only if the file has the weights
    head_norm: bool = False
    # How: every head with the same weights, before or after the rotation; each head with its own weights; or
    # all heads together
    head_norm_kind: Literal["head", "rotated head", "each", "all"] = "head"
    # Feed-forward takes attention's input, not its output; files of some architectures say otherwise
    parallel: bool = False
    gated: bool = True  # the feed-forward part has a gate
    # Activation of the gate, or of the hidden layer if there is no gate.  "gelu" is the approximation by
    # tanh; "gelu_exact" is GELU itself in Hugging Face's files, and the approximation in GGUF files, as in
    # llama.cpp.
    activation: Literal["silu", "silu_clamped", "gelu", "gelu_exact", "relu_squared"] = "silu"
    fused_gate: bool = False  # ``ffn_up`` holds the gate's rows first, then its own
    # ``attn_q`` gives each head's query and as many gate values, whose sigmoids multiply the head's output
    attention_gate: bool = False
    head_gates: bool = False  # in a tensor of their own, these have one value a head
    sinks: bool = False  # attention has a learned score for each head, without a value
    scaled_embedding: bool = False  # embeddings of tokens are multiplied by sqrt(n_embd)
    embedding_norm: bool = False  # embeddings of tokens are normalised
    # A table has a vector for every position, added to the embeddings of tokens
    position_embedding: bool = False
    # A layer's output is multiplied by a number of its own if the file has one
    output_scale: bool = False
    shifts: bool = True  # keys can be rotated to other positions
    # Positions of a token; more than one for models that see pictures (M-RoPE)
    position_axes: Literal[1, 4] = 1
    # The kind of the layers that keep a state; None: there are none.  "state space": every channel has decays
    # of its own; "heads": each head has one; "short convolution": only a convolution's inputs are kept;
    # "delta net": a gated delta net.
    recurrent: Literal["state space", "heads", "short convolution", "delta net"] | None = None
    state_norm: bool = False  # time step, B and C of such layers are RMS-normalised, with weights
    single_parts: bool = False  # a layer is attention, a state or a feed-forward part alone
