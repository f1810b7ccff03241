"""Chains and rows of logits on which device chains are compared with the host.

They serve tests and ``aleator doctor --gpu``.  ``SAMPLERS`` has a chain for each sampler; ``CHAINS`` is for the
Triton kernels: each sampler on a list, writes before the list, and late samplers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from aleator.core.arrays import Floats
from aleator.device.backends.host import token_or_none_left
from aleator.samplers import index as S
from aleator.samplers.base import Sampler
from aleator.samplers.chain import SamplerChain
from aleator.samplers.sampling_params import SamplingParams
from aleator.samplers.watermark import WatermarkKey

FAMILIES = ("normal", "flat", "peaked", "masked", "ties", "one", "bfloat16", "wide", "special")


def rows_of(family: str, batch: int, n_vocab: int, seed: int = 0) -> Floats:
    """Logits [B, V] of one of ``FAMILIES``."""
    random_ = np.random.default_rng([seed, FAMILIES.index(family), batch, n_vocab])
    z = random_.normal(0, 3, (batch, n_vocab)).astype(np.float32)
    if family == "flat":
        z = (z * 1e-4).astype(np.float32)
    elif family == "peaked":
        z[:, random_.integers(n_vocab)] += 40
    elif family == "masked":
        z[random_.random(z.shape) < 0.9] = -np.inf
        z[:, 0] = 1
    elif family == "ties":
        z = np.rint(z).astype(np.float32)
    elif family == "one":
        chosen = random_.integers(n_vocab)
        z[:, :chosen] = z[:, chosen + 1 :] = -np.inf
    elif family == "bfloat16":
        z = torch.from_numpy(z).bfloat16().float().numpy()
    elif family == "wide":
        z = (z * 1e4).astype(np.float32)
    elif family == "special":
        z[:, ::7], z[:, 1::7], z[:, 2::7] = np.nan, -0.0, np.inf if n_vocab % 2 else 3.0
    return z


EACH = S.Penalties(
    penalty_last_n=-1,
    repetition_penalty=1.2,
    frequency_penalty=0.1,
    penalty_scope="mixed",
    repetition_per="occurrence",
)
WATERMARK = S.Dist(
    draw="watermark", watermark_key_file=WatermarkKey(b"a key for tests only"), watermark_ngram=2
)
SYNTHID = S.Dist(
    draw="synthid", watermark_key_file=WatermarkKey(b"a key for tests only"), watermark_ngram=2
)
AKUNU = SamplingParams.preset("akunu-balanced", draw="gumbel", repetition_penalty=1.3).list()

SAMPLERS: dict[str, list[Sampler]] = {
    "greedy": [S.Greedy()],
    "dist": [S.Dist()],
    "gumbel": [S.Dist(draw="gumbel")],
    "watermark": [WATERMARK],
    "synthid": [SYNTHID],
    "temperature": [S.Temperature(temperature=0.7), S.Dist()],
    "cold": [S.Temperature(temperature=1e-3), S.Temperature(temperature=1e-3), S.Dist()],
    "hot": [S.Temperature(temperature=50.0), S.Temperature(temperature=3.0), S.Dist()],
    "dynamic": [S.Temperature(temperature=1.0, dynatemp_range=0.8, dynatemp_exponent=1.3),
                S.Dist()],
    "dynamic_0": [S.Temperature(temperature=1.0, dynatemp_range=0.8, dynatemp_exponent=0.0),
                  S.Dist()],
    "top_k": [S.TopK(top_k=5), S.Dist()],
    "top_p": [S.TopP(top_p=0.9), S.Dist()],
    "top_p_0": [S.TopP(top_p=0.0, min_keep=3), S.Dist()],
    "top_p_full": [S.Softmax(), S.TopK(top_k=9), S.TopP(top_p=0.5, mass="full"), S.Dist()],
    "min_p": [S.Temperature(temperature=1.5), S.MinP(min_p=0.05), S.Dist()],
    "min_p_keep": [S.MinP(min_p=1.0, min_keep=4), S.Dist()],
    "typical_p": [S.TypicalP(typical_p=0.7), S.Dist()],
    "typical_p_keep": [S.TopK(top_k=20), S.TypicalP(typical_p=0.01, min_keep=5), S.Dist()],
    "top_n_sigma": [S.TopNSigma(top_n_sigma=1.0), S.Dist()],
    "xtc": [S.XTC(xtc_probability=0.7, xtc_threshold=0.05), S.Dist()],
    "xtc_always": [S.XTC(xtc_probability=1.0, xtc_threshold=0.0, min_keep=2), S.Dist()],
    "penalties": [S.Penalties(penalty_last_n=4, repetition_penalty=1.3, frequency_penalty=0.2,
                              presence_penalty=0.1), S.Dist()],
    "penalties_hot": [S.Temperature(temperature=0.6), S.Penalties(penalty_last_n=-1,
                      repetition_penalty=0.8, penalty_scope="generated"), S.Dist()],
    "logit_bias": [S.LogitBias(logit_bias={0: 2.0, 3: float("-inf"), 5: -1.5}), S.Dist()],
    "token_mask": [S.TokenMask(allowed=[0, 1, 2, 5, 7, 20]), S.Dist()],
    "mirostat_v2": [S.MirostatV2(mirostat_tau=3.0, mirostat_eta=0.2)],
    "adaptive_p": [S.Temperature(temperature=1.4), S.AdaptiveP(adaptive_target=0.3)],
    "adaptive_p_cold": [S.Temperature(temperature=1e-4), S.AdaptiveP(adaptive_target=0.9)],
    "adaptive_p_off": [S.TopK(top_k=9), S.AdaptiveP(adaptive_decay=0.5)],
    "mirostat": [S.Mirostat(mirostat_tau=3.0, mirostat_eta=0.3)],
    "mirostat_m": [S.Temperature(temperature=0.4), S.Mirostat(mirostat_tau=6.0, mirostat_m=7)],
    "dry": [S.DRY(dry_multiplier=0.8, dry_allowed_length=1, dry_sequence_breakers=()), S.Dist()],
    "dry_0": [S.Temperature(temperature=0.8), S.DRY(dry_multiplier=0.3, dry_base=1.2, dry_allowed_length=0,
              dry_penalty_last_n=9, dry_sequence_breakers=()), S.Dist()],
    "dry_breakers": [S.DRY(dry_multiplier=2.0, dry_allowed_length=1, dry_penalty_last_n=40,
                           dry_sequence_breakers=((4,), (3, 5), (999,), (1, 2, 1))),
                     S.TopK(top_k=8), S.Dist()],
    "penalties_occurrence": [S.Penalties(penalty_last_n=9, repetition_penalty=1.2,
                                         repetition_per="occurrence"), S.Dist()],
    "penalties_each": [EACH, S.Dist()],
    "akunu": AKUNU,
    "smoothing": [S.Temperature(temperature=0.8), S.Smoothing(smoothing_factor=0.3), S.Dist()],
    "smoothing_curve": [S.Smoothing(smoothing_factor=1.5, smoothing_curve=4.0), S.Dist()],
    "epsilon_cutoff": [S.EpsilonCutoff(epsilon_cutoff=0.01), S.Dist()],
    "epsilon_cutoff_keep": [S.TopK(top_k=30), S.EpsilonCutoff(epsilon_cutoff=0.9, min_keep=4),
                            S.Dist()],
    "eta_cutoff": [S.EtaCutoff(eta_cutoff=0.02), S.Dist()],
    "eta_cutoff_keep": [S.Temperature(temperature=1.7), S.EtaCutoff(eta_cutoff=1.0, min_keep=3),
                        S.Dist()],
    "p_less": [S.PLess(p_less="on"), S.Dist()],
    "p_less_normalized": [S.Temperature(temperature=1.7), S.PLess(p_less="normalized"), S.Dist()],
    "p_less_late": [S.TopK(top_k=12), S.MinP(min_p=0.01), S.PLess(p_less="normalized"), S.Dist()],
    "top_h": [S.TopH(top_h=0.4), S.Dist()],
    "top_h_hot": [S.Temperature(temperature=20.0), S.TopH(top_h=0.9), S.Dist()],
    "top_h_late": [S.TopK(top_k=20), S.XTC(xtc_probability=1.0, xtc_threshold=0.05), S.TopH(top_h=0.8),
                   S.Dist()],
    "min_k": [S.MinK(min_k_tau=3.0), S.Dist()],
    "min_k_tau": [S.Temperature(temperature=0.7), S.TopK(top_k=50), S.MinK(min_k_tau=90.0), S.Dist()],
    "min_tokens": [S.MinTokens(min_tokens=3, end_tokens=(0, 2, 5, 7, 999)), S.Greedy()],
    "bad_words": [S.BadWords(bad_words=((4,), (3, 5), (3, 5, 3, 0), (0, 1), (5, 3, 1))),
                  S.TopK(top_k=4), S.Dist()],
    "no_repeat_ngram": [S.NoRepeatNgram(no_repeat_ngram_size=2), S.TopK(top_k=3), S.Dist()],
    "no_repeat_ngram_1": [S.NoRepeatNgram(no_repeat_ngram_size=1), S.TopK(top_k=6), S.Dist()],
    "default": [S.Penalties(penalty_last_n=64, repetition_penalty=1.1),
                S.TopNSigma(top_n_sigma=2.0), S.TopK(top_k=12), S.TypicalP(typical_p=0.95),
                S.TopP(top_p=0.95), S.MinP(min_p=0.05),
                S.XTC(xtc_probability=0.5, xtc_threshold=0.1), S.Temperature(temperature=0.8),
                S.Dist()],
}  # fmt: skip

K = S.TopK(top_k=40)
DRAW = S.Dist()
PENALTIES = S.Penalties(
    penalty_last_n=5, repetition_penalty=1.3, frequency_penalty=0.2, presence_penalty=0.1
)
BIAS = S.LogitBias(logit_bias={0: 2.0, 3: float("-inf"), 5: -1.5, 140: 3.0})
MASK = S.TokenMask(allowed=[*range(0, 150, 3), 7, 140])
BANS: list[Sampler] = [
    S.MinTokens(min_tokens=3, end_tokens=(0, 2, 5, 7, 999)),
    S.BadWords(bad_words=((4,), (3, 5), (3, 5, 3, 0), (0, 1), (5, 3, 1))),
    S.NoRepeatNgram(no_repeat_ngram_size=2),
]
DRY = S.DRY(
    dry_multiplier=2.0, dry_allowed_length=0, dry_penalty_last_n=40,
    dry_sequence_breakers=((4,), (3, 5), (999,), (1, 2, 1)),
)  # fmt: skip
GAPS = S.XTC(xtc_probability=1.0, xtc_threshold=0.02)

CHAINS: dict[str, list[Sampler]] = {
    "gumbel": [K, S.Dist(draw="gumbel")],
    "watermark": [K, WATERMARK],
    "synthid": [K, SYNTHID],
    "dynamic": [K, S.Temperature(temperature=1.0, dynatemp_range=0.8, dynatemp_exponent=1.3), DRAW],
    "dynamic_0": [K, S.Temperature(temperature=1.0, dynatemp_range=0.8, dynatemp_exponent=0.0), DRAW],
    "dynamic_xtc": [K, S.Temperature(temperature=1.0, dynatemp_range=0.5),
                    S.XTC(xtc_probability=1.0, xtc_threshold=0.02), DRAW],
    "late_xtc": [K, S.LogitBias(logit_bias={1: 2.0}), S.XTC(xtc_probability=0.5, xtc_threshold=0.05), DRAW],
    "typical_p": [K, S.TypicalP(typical_p=0.7), DRAW],
    "top_n_sigma": [K, S.TopNSigma(top_n_sigma=0.7), DRAW],
    "p_less": [K, S.PLess(p_less="on"), DRAW],
    "p_less_normalized": [K, S.Temperature(temperature=2.0), S.XTC(xtc_probability=1.0, xtc_threshold=0.02),
                          S.PLess(p_less="normalized"), DRAW],
    "top_h": [K, S.TopH(top_h=0.7), DRAW],
    "top_h_late": [K, S.Temperature(temperature=2.0), S.XTC(xtc_probability=1.0, xtc_threshold=0.02),
                   S.TopH(top_h=0.9), DRAW],
    "min_k": [K, S.MinK(min_k_tau=60.0), DRAW],
    "min_k_late": [K, S.XTC(xtc_probability=1.0, xtc_threshold=0.02), S.MinK(min_k_tau=0.0), DRAW],
    "xtc": [K, S.XTC(xtc_probability=0.7, xtc_threshold=0.05), S.TopP(top_p=0.9), DRAW],
    "xtc_always": [K, S.XTC(xtc_probability=1.0, xtc_threshold=0.0, min_keep=2), DRAW],
    "mirostat_v2": [K, S.Temperature(temperature=1.3), S.MirostatV2(mirostat_tau=3.0, mirostat_eta=0.2)],
    "mirostat": [K, S.Mirostat(mirostat_tau=3.0, mirostat_eta=0.3)],
    "mirostat_m": [S.Temperature(temperature=0.4), K, GAPS, S.Mirostat(mirostat_tau=6.0, mirostat_m=7)],
    "adaptive_p": [K, S.Temperature(temperature=1.4), S.AdaptiveP(adaptive_target=0.3)],
    "adaptive_p_off": [K, S.AdaptiveP(adaptive_decay=0.5)],
    "cutoffs": [K, S.Temperature(temperature=0.8), S.Smoothing(smoothing_factor=0.3),
                S.EpsilonCutoff(epsilon_cutoff=0.01), S.EtaCutoff(eta_cutoff=0.02), DRAW],
    "cutoffs_keep": [K, GAPS, S.EpsilonCutoff(epsilon_cutoff=0.9, min_keep=9),
                     S.Smoothing(smoothing_factor=1.5, smoothing_curve=4.0),
                     S.EtaCutoff(eta_cutoff=1.0, min_keep=3), DRAW],
    "bans": [*BANS, BIAS, PENALTIES, DRY, K, DRAW],
    "late_bans": [S.Temperature(temperature=0.7), K, *BANS, DRY, S.TopP(top_p=0.8), DRAW],
    "softmax_late": [K, S.Softmax(), S.TopP(top_p=0.5, mass="full", min_keep=2), DRAW],
    "akunu": AKUNU,
    "full_mass": [S.Temperature(temperature=1.2), S.Softmax(), K, S.TopP(top_p=0.8, mass="full"), DRAW],
    "each": [BIAS, EACH, MASK, K, DRAW],
    "late_each": [S.Temperature(temperature=0.7), K, EACH, S.TopP(top_p=0.9), DRAW],
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
    "whole_bans": [*BANS, DRY, DRAW],
    "whole_cold": [S.MinP(min_p=0.001), S.Temperature(temperature=1e-6), DRAW],
    "whole_forced": [S.LogitBias(logit_bias={i: float("inf") for i in range(0, 300, 7)}), PENALTIES,
                     S.TopP(top_p=0.97), DRAW],
    "whole_greedy": [S.TopP(top_p=0.9), S.Greedy()],
}  # fmt: skip


def expected(chains: Sequence[SamplerChain], z: Floats) -> list[int]:
    """The tokens that the rows' chains draw and accept on the host; -1 if there is no candidate."""
    return [token_or_none_left(chain, row) for chain, row in zip(chains, z, strict=True)]
