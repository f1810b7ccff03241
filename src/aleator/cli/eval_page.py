"""The page of ``aleator eval samplers``: plots of diversity over perplexity as SVG, and the table."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

from aleator.core.records import dataclass


@dataclass(frozen=True)
class Measured:
    """Measurements of a setting's texts."""

    setting: str
    temperature: float
    tokens: int
    perplexity: float
    distinct: tuple[float, ...]  # of runs of one token, two, ...
    repeats: float


WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 760, 430, 52, 14, 170, 40
COLOURS = (
    "#444444", "#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#8c564b", "#e377c2", "#17becf", "#bcbd22",
    "#ff7f0e", "#7f9f7f", "#5254a3",
)  # fmt: skip
TICKS = tuple(a * 10**b for b in range(-1, 7) for a in (1, 2, 5))
VALUES: dict[str, Callable[[Measured], float]] = {
    "distinct-3": lambda m: m.distinct[2],
    "distinct-2": lambda m: m.distinct[1],
    "repeats": lambda m: m.repeats,
}
"""Values that the plots show over perplexity."""
STYLE = """\
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 60em; padding: 0 1em; }
table { border-collapse: collapse; } td, th { padding: 2px 10px; text-align: right; }
td:first-child, th:first-child { text-align: left; } tr:nth-child(even) { background: #8881; }
svg { max-width: 100%; height: auto; }"""


def plot(found: Sequence[Measured], what: str) -> str:
    """Plot one value over perplexity: a line for each setting, a point for each temperature."""
    value = VALUES[what]
    points = [m for m in found if math.isfinite(m.perplexity)]
    low, high = bounds([math.log10(m.perplexity) for m in points], 0.03)
    least, most = bounds([value(m) for m in points], 0.03)

    def x(m: Measured) -> float:
        return across(math.log10(m.perplexity))

    def across(log: float) -> float:
        return round(LEFT + (log - low) / (high - low) * (WIDTH - LEFT - RIGHT), 1)

    def y(share: float) -> float:
        return round(TOP + (most - share) / (most - least) * (HEIGHT - TOP - BOTTOM), 1)

    floor = HEIGHT - BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
        f'height="{HEIGHT}" font-family="sans-serif" font-size="12">'
        '<rect width="100%" height="100%" fill="#fff"/>'
    ]
    for tick in TICKS:
        if low <= math.log10(tick) <= high:
            at = across(math.log10(tick))
            parts.append(f'<path d="M{at} {TOP}V{floor}" stroke="#ddd"/>')
            parts.append(f'<text x="{at}" y="{floor + 16}" text-anchor="middle">{tick:g}</text>')
    for tenth in range(21):
        if least <= tenth / 20 <= most:
            at = y(tenth / 20)
            parts.append(f'<path d="M{LEFT} {at}H{WIDTH - RIGHT}" stroke="#ddd"/>')
            parts.append(f'<text x="{LEFT - 6}" y="{at + 4}" text-anchor="end">{5 * tenth}%</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 6}" text-anchor="middle">perplexity</text>')
    parts.append(
        f'<text transform="translate(12 {HEIGHT / 2}) rotate(-90)" text-anchor="middle">{what}</text>'
    )
    for number, name in enumerate(dict.fromkeys(m.setting for m in points)):
        colour = COLOURS[number % len(COLOURS)]
        dashes = ' stroke-dasharray="5 3"' if number % 2 else ""
        hollow = ' fill="#fff" stroke-width="1.5"'
        line = [m for m in points if m.setting == name]
        path = " ".join(f"{x(m)},{y(value(m))}" for m in line)
        parts.append(f'<g stroke="{colour}" fill="{colour}"><title>{escape(name)}</title>')
        parts.append(f'<polyline points="{path}" fill="none" stroke-width="1.5"{dashes}/>')
        for i, m in enumerate(line):
            text = f"temperature {m.temperature:g}: perplexity {m.perplexity:.1f}, {what} {100 * value(m):.1f}%"
            parts.append(f'<circle cx="{x(m)}" cy="{y(value(m))}" r="3.5"{"" if i else hollow}>')
            parts.append(f"<title>{escape(name)}, {text}</title></circle>")
        at = TOP + 10 + 20 * number
        right = WIDTH - RIGHT + 14
        parts.append(f'<path d="M{right} {at}h24" stroke-width="2"{dashes}/></g>')
        parts.append(f'<text x="{right + 30}" y="{at + 4}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>\n"])


def bounds(values: Sequence[float], margin: float) -> tuple[float, float]:
    """The smallest and the largest value, with a margin on both sides."""
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    more = margin * (high - low) or 0.05
    return low - more, high + more


def page(found: Sequence[Measured], model: str, judge: str) -> str:
    """A self-contained page for a browser."""
    names = [f"distinct-{n + 1}" for n in range(len(found[0].distinct))]
    heads = ("setting", "temperature", "tokens", "perplexity", *names, "repeats")
    rows = [
        (
            escape(m.setting), f"{m.temperature:g}", f"{m.tokens:,}", f"{m.perplexity:.2f}",
            *(f"{100 * each:.1f}%" for each in (*m.distinct, m.repeats)),
        )
        for m in found
    ]  # fmt: skip
    body = "\n".join("<tr>" + "".join(f"<td>{each}</td>" for each in row) + "</tr>" for row in rows)
    plots = "\n".join(f"<h2>{what}</h2>\n{plot(found, what)}" for what in VALUES)
    return (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>Samplers of {escape(model)}</title>\n'
        f"<style>{STYLE}</style>\n<h1>Samplers of {escape(model)}</h1>\n<p>Perplexity is that of "
        f"{escape(judge)}. A line is a setting, its points are temperatures, of which the first is hollow. "
        "Above and to the left is better: diverse texts that the judge finds probable; for repeats, below.</p>"
        f"\n{plots}\n<table><tr>{''.join(f'<th>{head}</th>' for head in heads)}</tr>\n{body}</table></html>\n"
    )
