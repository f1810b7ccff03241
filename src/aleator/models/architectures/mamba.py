"""mamba: a selective state space in every layer, no attention (Gu and Dao 2023, arXiv:2312.00752).

Falcon-Mamba is the same with a normalised time step, B and C.
"""

from __future__ import annotations

from dataclasses import replace

from aleator.models import gguf_config
from aleator.models.architecture import Architecture, HuggingFace, under
from aleator.models.config import MAX_CONV, MAX_STATE, Fields, GGUFFile, ModelConfig, SSMConfig
from aleator.models.state_space import OUTER, SELECTIVE, as_gguf, checked_inner, states_alone


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    fields, name = gguf.fields, architecture.name
    ssm = gguf_config.read_state_space(fields, name)
    config = gguf_config.states_alone(gguf, architecture, ssm)
    if not fields.get(f"{name}.ssm.dt_b_c_rms", False):
        return config
    return replace(config, ssm=replace(ssm, norm_eps=config.rms_eps))


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    n_embd = fields.width("hidden_size")
    rank = -(-n_embd // 16)
    if fields.get("time_step_rank") not in (None, "auto"):
        rank = fields.width("time_step_rank")
    inner = int(fields.number("expand", 0.0, 1e3, 2.0) * n_embd)
    if fields.get("intermediate_size") is not None:  # then transformers ignores expand
        inner = fields.width("intermediate_size")
    norm_eps = None
    if fields.get("model_type") == "falcon_mamba":
        norm_eps = fields.number("mixer_rms_eps", 0.0, 1.0, 1e-6)
    ssm = SSMConfig(
        d_inner=checked_inner(fields, inner),
        d_conv=fields.integer("conv_kernel", 2, MAX_CONV, 4),
        d_state=fields.integer("state_size", 1, MAX_STATE, 16),
        dt_rank=rank,
        norm_eps=norm_eps,
    )
    return states_alone(fields, architecture, ssm, tied=True)


MAMBA = Architecture(
    "mamba",
    rope_style="none",
    read_gguf=read_gguf,
    hugging_face=HuggingFace(
        ("mamba", "falcon_mamba"),
        read_json,
        stack="backbone",
        outer=OUTER,
        layer={"norm": "attn_norm"} | under("mixer", SELECTIVE),
        bare={"mixer.A_log": "ssm_a", "mixer.D": "ssm_d"},
        convert=as_gguf,
        gguf_fields=lambda config, _: {
            "ssm.dt_b_c_rms": config.ssm is not None and config.ssm.norm_eps is not None
        },
    ),
    recurrent="state space",
)
