"""Chains for the Triton kernels: each sampler on a list, what is written before it, and what comes late."""

from __future__ import annotations

from typing import Any

from aleator.samplers import index as S

K = S.TopK(top_k=40)
DRAW = S.Dist()
PENALTIES = S.Penalties(
    penalty_last_n=5, repetition_penalty=1.3, frequency_penalty=0.2, presence_penalty=0.1
)
BIAS = S.LogitBias(logit_bias={0: 2.0, 3: float("-inf"), 5: -1.5, 140: 3.0})
MASK = S.TokenMask(allowed=[*range(0, 150, 3), 7, 140])

CHAINS: dict[str, list[Any]] = {
    "gumbel": [K, S.Dist(draw="gumbel")],
    "dynamic": [K, S.Temperature(temperature=1.0, dynatemp_range=0.8, dynatemp_exponent=1.3), DRAW],
    "dynamic_0": [K, S.Temperature(temperature=1.0, dynatemp_range=0.8, dynatemp_exponent=0.0), DRAW],
    "dynamic_xtc": [K, S.Temperature(temperature=1.0, dynatemp_range=0.5),
                    S.XTC(xtc_probability=1.0, xtc_threshold=0.02), DRAW],
    "late_xtc": [K, S.LogitBias(logit_bias={1: 2.0}), S.XTC(xtc_probability=0.5, xtc_threshold=0.05), DRAW],
    "typical_p": [K, S.TypicalP(typical_p=0.7), DRAW],
    "top_n_sigma": [K, S.TopNSigma(top_n_sigma=0.7), DRAW],
    "xtc": [K, S.XTC(xtc_probability=0.7, xtc_threshold=0.05), S.TopP(top_p=0.9), DRAW],
    "xtc_always": [K, S.XTC(xtc_probability=1.0, xtc_threshold=0.0, min_keep=2), DRAW],
    "mirostat_v2": [K, S.Temperature(temperature=1.3), S.MirostatV2(mirostat_tau=3.0, mirostat_eta=0.2)],
    "softmax_late": [K, S.Softmax(), S.TopP(top_p=0.5, mass="full", min_keep=2), DRAW],
    "akunu": [S.Temperature(temperature=1.2), S.Softmax(), K, S.TopP(top_p=0.8, mass="full"), DRAW],
    "written": [BIAS, PENALTIES, MASK, K, S.MinP(min_p=0.02), S.Temperature(temperature=0.8), DRAW],
    "other_order": [MASK, PENALTIES, BIAS, S.Penalties(penalty_last_n=-1, presence_penalty=0.4), K, DRAW],
    "forced": [S.LogitBias(logit_bias={4: float("inf"), 9: float("inf")}), MASK, PENALTIES, K, DRAW],
    "late": [S.Temperature(temperature=0.7), K, BIAS, PENALTIES, MASK, S.TopP(top_p=0.8), DRAW],
    "late_force": [K, S.LogitBias(logit_bias={i: float("inf") for i in range(0, 300, 7)}), PENALTIES, DRAW],
    "cold": [BIAS, S.Temperature(temperature=1e-6), PENALTIES, DRAW],
    "llama": [PENALTIES, K, S.TypicalP(typical_p=0.95), S.TopP(top_p=0.95), S.MinP(min_p=0.05),
              S.XTC(xtc_probability=0.5, xtc_threshold=0.1), S.Temperature(temperature=0.8), DRAW],
    "whole": [BIAS, PENALTIES, MASK, S.Temperature(temperature=2.0), S.TopP(top_p=0.95), S.MinP(min_p=0.01),
              S.TopK(top_k=200), DRAW],
    "whole_min_p": [PENALTIES, S.Temperature(temperature=2.0), S.MinP(min_p=0.1, min_keep=30),
                    S.Temperature(temperature=0.5), S.TopP(top_p=0.9, min_keep=20), DRAW],
    "whole_full": [BIAS, S.Softmax(), S.TopP(top_p=0.97, mass="full"), S.Temperature(temperature=3.0), DRAW],
    "whole_cold": [S.MinP(min_p=0.001), S.Temperature(temperature=1e-6), DRAW],
    "whole_forced": [S.LogitBias(logit_bias={i: float("inf") for i in range(0, 300, 7)}), PENALTIES,
                     S.TopP(top_p=0.97), DRAW],
    "whole_greedy": [S.TopP(top_p=0.9), S.Greedy()],
}  # fmt: skip
