"""Explanations as pictures, drawn by matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Any

import numpy as np

from aleator.core.errors import ParameterError
from aleator.core.packages import require_matplotlib
from aleator.samplers.explain_text import by_sampler, mass_cuts, percent, states
from aleator.samplers.explained import Explained, Stage, Trace

TOP = 30
"""Number of tokens in a picture of one step."""
ROWS = 10
"""Largest number of samplers with bars of their own."""
LABELLED = 48
"""Largest number of steps that are all labelled with their token."""
KEPT, GHOST, CUT, DRAWN = "#3568a8", "#d5dce6", "#d9694a", "#e0a100"


def plot_step(e: Explained, path: str | PathLike[str]) -> None:
    """Draw one step: bars of the most likely tokens after each sampler, candidates left, entropy."""
    matplotlib, figure_class = require_matplotlib()
    traces = e.shown(min(TOP, len(e.traces)))
    at = [None, *_changing(e)]
    shapes = [("logits", e.before), *((s.name, s.after) for s in e.active)]
    top = max((p for t in traces for p in t.probabilities), default=1.0)
    names = [name for name, _ in shapes]
    counts = [shape.candidates for _, shape in shapes]
    entropies = [shape.entropy for _, shape in shapes]
    width, height = 14.0, 2.1 + max(1.0 * len(at), 0.55 * len(shapes) + 0.5)
    # Room for the title, the tokens and the legend.
    edges = {"top": 1 - 0.6 / height, "bottom": 1.5 / height}
    with matplotlib.rc_context(_style(matplotlib)):
        figure = figure_class(figsize=(width, height))
        grid = figure.add_gridspec(len(at), 1, left=0.05, right=0.74, hspace=0.24, **edges)
        first = figure.add_subplot(grid[0])
        rows = [first, *(figure.add_subplot(grid[i], sharex=first) for i in range(1, len(at)))]
        for axes, i in zip(rows, at, strict=True):
            _bars(axes, e, traces, i, top)
            axes.tick_params(axis="x", labelbottom=axes is rows[-1])
        _token_axis(rows[-1], [t.token.label for t in traces], _drawn_place(e, traces))
        grid = figure.add_gridspec(2, 1, left=0.855, right=0.985, hspace=0.35, **edges)
        upper, lower = (figure.add_subplot(grid[i]) for i in range(2))
        _levels(upper, names, counts, [f"{c:,}" for c in counts], "candidates left", log=True)
        _levels(lower, names, entropies, [f"{h:.2f}" for h in entropies], "entropy, bits")
        _legend(matplotlib, figure, 0.15 / height)
        figure.text(0.01, 1 - 0.2 / height, _title(e), va="center", fontsize=11)
        _save(figure, path)


def plot_steps(steps: Sequence[Explained], path: str | PathLike[str]) -> None:
    """Draw a generation: entropy, probability of the drawn tokens, mass cut, candidates and state by step."""
    if not steps:
        raise ParameterError("steps", "there are no steps to draw")
    matplotlib, figure_class = require_matplotlib()
    remembered = states(steps)
    heights = [1.4, 1.4, 1.4, *([0.8] * len(remembered))]
    with matplotlib.rc_context(_style(matplotlib)):
        width = min(24.0, max(11.0, 5.0 + 0.22 * len(steps)))
        figure = figure_class(figsize=(width, 1.6 + 1.7 * sum(heights)), layout="constrained")
        all_axes = list(figure.subplots(len(heights), 1, sharex=True, height_ratios=heights))
        x = np.arange(len(steps))
        _entropy_curves(all_axes[0], x, steps)
        _stacked_cuts(all_axes[1], x, steps)
        _count_curves(all_axes[2], x, steps)
        for axes, (name, values) in zip(all_axes[3:], remembered.items(), strict=True):
            axes.plot(x, values, color=KEPT, marker=".", markersize=5)
            axes.set_ylabel(name.replace(" of ", "\nof ").replace("pending ", "pending\n"))
        for axes in all_axes:
            axes.margins(x=0.01)
            axes.grid(axis="y", color="#eeeeee")
        _step_axis(all_axes[-1], steps)
        draw = steps[0].draw
        title = f"{len(steps)} steps, seed {'none' if draw is None else draw.seed}"
        figure.suptitle(title, ha="left", x=0.01)
        _save(figure, path)


def _style(matplotlib: Any) -> dict[str, Any]:
    return {
        **matplotlib.rcParamsDefault,
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "axes.edgecolor": "#999999",
        "text.parse_math": False,
        "figure.titlesize": 11,
        "backend": "agg",
    }


def _changing(e: Explained) -> list[int]:
    """Indices of the samplers that changed most, whose bars are drawn."""
    weight = {i: s.mass_cut + s.moved for i, s in enumerate(e.stages) if s.n_removed or s.moved}
    return sorted(sorted(weight, key=lambda i: -weight[i])[:ROWS])


def _bars(axes: Any, e: Explained, traces: Sequence[Trace], index: int | None, top: float) -> None:
    """Draw probabilities after sampler ``index`` over those before it; heights are square roots."""
    x = np.arange(len(traces))
    place = 0 if index is None else index + 1
    now = np.sqrt([t.probabilities[place] for t in traces])
    before = np.sqrt([t.probabilities[max(place - 1, 0)] for t in traces])
    out = np.array([t.removed_by is not None and place > t.removed_by for t in traces], np.bool_)
    gone = np.array([t.removed_by is not None and t.removed_by == index for t in traces], np.bool_)
    axes.bar(x[gone], before[gone], 0.8, color="white", edgecolor=CUT, hatch="////", linewidth=0.8)
    if index is not None:
        axes.bar(x[~out], before[~out], 0.86, color=GHOST)
    axes.bar(x[~out], now[~out], 0.56, color=KEPT)
    drawn = _drawn_place(e, traces)
    if drawn is not None:
        axes.bar(drawn, now[drawn], 0.56, color=DRAWN)
    below = axes.get_xaxis_transform()  # x as data, y as a fraction of the height
    crosses = {"color": CUT, "ms": 4, "mew": 1.2, "clip_on": False}
    axes.plot(x[out], [-0.08] * int(out.sum()), "x", transform=below, **crosses)
    axes.set_ylim(0, 1.25 * np.sqrt(top))
    axes.set_xlim(-0.8, max(len(traces), 2) - 0.2)
    ticks = [t for t in (1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.1, 0.25, 0.5, 1) if 0.01 * top < t <= top]
    axes.set_yticks(np.sqrt(ticks), [percent(t) for t in ticks], fontsize=8)
    axes.tick_params(axis="x", length=0)
    axes.grid(axis="y", color="#eeeeee")
    title = "logits" if index is None else _stage_title(e.stages[index])
    axes.text(0.995, 0.97, title, transform=axes.transAxes, ha="right", va="top")


def _stage_title(stage: Stage) -> str:
    done = []
    if stage.n_removed:
        done.append(f"removed {stage.n_removed:,} tokens, {percent(stage.mass_cut)} of the mass")
    if stage.moved:
        done.append(f"moved {percent(stage.moved)}")
    state = ", ".join(f"{k} {v:.4g}" for k, v in stage.state.items())
    text = f"{_shortened(stage.label, 60)}: {', '.join(done) or 'changed nothing'}"
    return f"{text}\n{state}" if state else text


def _levels(
    axes: Any,
    names: Sequence[str],
    values: Sequence[float],
    labels: Sequence[str],
    title: str,
    log: bool = False,
) -> None:
    """Draw one horizontal bar per stage, the first on top."""
    y = np.arange(len(names))
    start = 0.8 if log else 0.0
    axes.barh(y, np.array(values) - start, 0.6, color=KEPT, left=start)
    if log:
        axes.set_xscale("log")
        axes.set_xlim(start, start * (max(values) / start) ** 1.5)  # room for the number
        ticks = [t for t in (1, 100, 10_000, 1_000_000) if t <= max(values)]
        axes.set_xticks(ticks, [f"{t:,}" for t in ticks])
        axes.minorticks_off()
    else:
        axes.set_xlim(0, (max(values) or 1) * 1.5)
    for i, (value, label) in enumerate(zip(values, labels, strict=True)):
        axes.annotate(label, (value, i), xytext=(4, 0), textcoords="offset points", va="center")
    axes.set_yticks(y, [_shortened(name, 18) for name in names])
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.set_title(title, loc="left", fontsize=10)


def _token_axis(axes: Any, labels: Sequence[str], drawn: int | None) -> None:
    _label(axes, labels, 16, rotation=60, ha="right", rotation_mode="anchor")
    axes.tick_params(axis="x", length=0, pad=9)
    if drawn is not None:
        axes.get_xticklabels()[drawn].set_color("#a87800")
        axes.get_xticklabels()[drawn].set_fontweight("bold")


def _entropy_curves(axes: Any, x: Any, steps: Sequence[Explained]) -> None:
    axes.fill_between(x, [e.before.entropy for e in steps], color=GHOST, label="of the logits")
    after = [e.after.entropy for e in steps]
    axes.plot(x, after, color=KEPT, marker=".", markersize=5, label="after the chain")
    chances = [e.draw.probability if e.draw else 0.0 for e in steps]
    surprise = [-np.log2(p) if p else np.nan for p in chances]
    axes.plot(x, surprise, ".", color=DRAWN, markersize=8, label="surprise of the token drawn")
    axes.set_ylim(bottom=0)
    axes.set_ylabel("entropy, bits")
    _side_legend(axes)


def _stacked_cuts(axes: Any, x: Any, steps: Sequence[Explained]) -> None:
    left = np.ones(len(steps))
    for name, values in mass_cuts(steps).items():
        cut = left * np.array(values)  # as a share of what earlier samplers left
        axes.bar(x, cut, 0.8, bottom=1 - left, label=name)
        left -= cut
    axes.set_ylabel("mass cut")
    axes.yaxis.set_major_formatter(lambda v, _: f"{100 * v:.0f}%")
    if (left < 1).any():
        _side_legend(axes)


def _count_curves(axes: Any, x: Any, steps: Sequence[Explained]) -> None:
    for name, stages in by_sampler(steps):
        if any(s is not None and s.n_removed for s in stages):
            counts = [np.nan if s is None else s.after.candidates for s in stages]
            axes.plot(x, counts, marker=".", markersize=4, label=f"after {name}")
    axes.set_yscale("log")
    # Powers of ten as numbers, since labels are not parsed as formulas
    axes.yaxis.set_major_formatter(lambda v, _: f"{v:,.0f}" if v >= 1 else "")
    axes.yaxis.set_minor_formatter(lambda v, _: "")
    axes.set_ylabel("candidates left")
    if axes.lines:
        _side_legend(axes)


def _step_axis(axes: Any, steps: Sequence[Explained]) -> None:
    if len(steps) > LABELLED or any(e.draw is None for e in steps):
        axes.set_xlabel("step")
        return
    labels = [e.draw.token.label for e in steps if e.draw is not None]
    _label(axes, labels, 14, rotation=90)


def _label(axes: Any, labels: Sequence[str], length: int, **style: Any) -> None:
    shown = [_shortened(_drawable(label), length) for label in labels]
    axes.set_xticks(range(len(shown)), shown, family=["DejaVu Sans Mono"], fontsize=8, **style)


def _side_legend(axes: Any) -> None:
    axes.legend(loc="center left", bbox_to_anchor=(1.005, 0.5), frameon=False)


def _legend(matplotlib: Any, figure: Any, y: float) -> None:
    patch = matplotlib.patches.Patch
    figure.legend(
        handles=[
            patch(color=KEPT, label="probability (heights are square roots)"),
            patch(color=DRAWN, label="the token drawn"),
            patch(color=GHOST, label="before this sampler"),
            patch(facecolor="white", edgecolor=CUT, hatch="////", label="removed by this sampler"),
        ],
        loc="center left",
        bbox_to_anchor=(0.04, y),
        ncols=4,
        frameon=False,
    )


def _title(e: Explained) -> str:
    if e.draw is None:
        return f"{e.n_vocab:,} logits"
    d = e.draw
    return (
        f"drawn: {_shortened(_drawable(d.token.label), 24)}, {percent(d.before)} -> {percent(d.probability)}"
        f"   (seed {d.seed}, position {d.position})"
    )


def _drawn_place(e: Explained, traces: Sequence[Trace]) -> int | None:
    drawn = None if e.draw is None else e.draw.token.id
    return next((i for i, t in enumerate(traces) if t.token.id == drawn), None)


def _shortened(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 3]}..."


def _drawable(label: str) -> str:
    """A label in which characters that the font lacks are escaped."""
    from matplotlib.font_manager import findfont
    from matplotlib.ft2font import FT2Font

    known = FT2Font(findfont("DejaVu Sans Mono")).get_charmap()
    return "".join(c if ord(c) in known else c.encode("unicode_escape").decode() for c in label)


def _save(figure: Any, path: str | PathLike[str]) -> None:
    try:
        figure.savefig(path, dpi=110)
    except ValueError as error:
        raise ParameterError("path", f"{path}: {error}") from None
