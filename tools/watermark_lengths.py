"""Measures how long a text must be for its watermark to be found (docs/watermarks.md).

    python tools/watermark_lengths.py [-m FILE.gguf] [--texts 20] [--tokens 400] [--draw synthid] [--out FILE]
                                      [--plot FILE.svg]

For each way of sampling, texts of as many seeds are drawn with one key (without -m: by the bundled model) and
tested at several lengths, with that key and with another.  It also tests edited texts, and times the test of
100,000 tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from run_report import Report, command, machine, parser

import aleator
from aleator.samplers.synthid import detector
from aleator.samplers.watermark import KEYED, WatermarkTest

LENGTHS = (10, 25, 50, 100, 200, 400)
WAYS: dict[str, dict[str, Any]] = {
    "temperature 1": {"preset": "neutral"},
    "preset llama.cpp": {"preset": "llama.cpp"},
    "temperature 0.5": {"preset": "neutral", "temperature": 0.5},
    "greedy": {"preset": "neutral", "temperature": 0.0},
}
KEY, OTHER = b"key of this measurement", b"another key, for comparison"
PROMPT = "ROMEO:"
FOUND = -3.0
"""The highest log10 of p at which a watermark counts as found."""
LEVELS = (0, -1, -3, -10, -30, -100, -300)
SPEED_TOKENS = 100_000


def levels(
    detect: Callable[..., WatermarkTest], texts: Sequence[Sequence[int]], key: bytes, length: int
) -> np.ndarray:
    """log10 of p of each text's first tokens."""
    return np.array([detect(each[:length], key).log10_p for each in texts])


def edited(tokens: Sequence[int], share: float, n_vocab: int, seed: int) -> list[int]:
    """Tokens with a share replaced by random ones, at random places."""
    rng = np.random.default_rng(seed)
    made = np.array(tokens)
    changed = rng.random(len(made)) < share
    made[changed] = rng.integers(0, n_vocab, int(changed.sum()))
    return [int(each) for each in made]


def plotted(path: Path, medians: dict[str, list[float]]) -> None:
    """A picture of the medians."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "aleator"
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4))
    for way, values in medians.items():
        axes.plot(LENGTHS[: len(values)], values, marker="o", label=way)
    axes.axhline(FOUND, color="grey", linestyle=":", linewidth=1)
    axes.set(
        xscale="log", yscale="symlog", xlabel="tokens of the text", ylabel="log10 of p, median"
    )
    axes.set_xticks(LENGTHS, [str(each) for each in LENGTHS])
    axes.set_ylim(top=0.2)
    axes.set_yticks(LEVELS, [str(each) for each in LEVELS])
    axes.minorticks_off()
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    options = parser(__doc__, "file for the report")
    options.add_argument("-m", "--model")
    options.add_argument("--texts", type=int, default=20)
    options.add_argument("--tokens", type=int, default=400)
    options.add_argument("--draw", choices=KEYED, default=KEYED[0])
    options.add_argument("--plot", type=Path)
    given = options.parse_args()
    model = aleator.load(given.model) if given.model else aleator.load()
    key, detect = aleator.WatermarkKey(KEY), detector(given.draw)
    report = Report("Watermarks by length", f"    {command(__file__)}", machine("aleator", "numpy"))
    medians: dict[str, list[float]] = {}
    lengths = [each for each in LENGTHS if each <= given.tokens]
    report.table(
        "sampling", "tokens:", "scored:", "log10 p, median:", "found:", "other key, p < 0.01:"
    )
    for way, chosen in WAYS.items():
        n_texts = 1 if way == "greedy" else given.texts  # one text, whatever the seed
        texts = [
            list(each.tokens)
            for each in model.generate_batch(
                [PROMPT] * n_texts, seed=list(range(n_texts)), max_tokens=given.tokens,
                draw=given.draw, watermark_key_file=key, **chosen,
            )
        ]  # fmt: skip
        medians[way] = []
        for length in lengths:
            own, other = (levels(detect, texts, k, length) for k in (KEY, OTHER))
            scored = np.median([detect(t[:length], key).n_scored for t in texts])
            medians[way].append(float(np.median(own)))
            report.row(
                way, length, f"{scored:.0f}", f"{np.median(own):.1f}",
                f"{(own < FOUND).sum()} of {len(own)}", f"{(other < -2).sum()} of {len(own)}",
            )  # fmt: skip
        if way == "temperature 1":
            changed = {
                share: levels(
                    detect,
                    [edited(t, share, len(model.vocab), i) for i, t in enumerate(texts)],
                    KEY,
                    given.tokens,
                )
                for share in (0.1, 0.25, 0.5)
            }
    for share, found in changed.items():
        report.say(
            "", f"{share:.0%} of the tokens replaced, temperature 1: log10 p {np.median(found):.1f}"
        )
    tokens = np.random.default_rng(0).integers(0, 128_256, SPEED_TOKENS)
    began = perf_counter()
    detect(tokens, key)
    report.say("", f"Test of {SPEED_TOKENS:,} tokens: {perf_counter() - began:.2f} s")
    if given.plot is not None:
        plotted(given.plot, medians)
    report.write(given.out)


if __name__ == "__main__":
    main()
