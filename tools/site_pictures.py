"""Pictures of the documentation: drawings, and plots of the committed results; SVG without a library.

python tools/site_pictures.py            writes them to docs/images
python tools/site_pictures.py --check    fails if one is stale
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from html import escape
from pathlib import Path

import growth

INK, QUIET, BLUE, ORANGE, GREEN = "#5b6b82", "#9aa7b8", "#4a7fc1", "#d9694a", "#3f9d6a"
"""Colours that are readable on light and on dark pages."""


@dataclass
class Drawing:
    """An SVG picture that is being drawn.

    Attributes:
        width: in pixels.
        height: in pixels.
        title: the text for readers who cannot see it.
    """

    width: int
    height: int
    title: str

    def __post_init__(self) -> None:
        """Begin with nothing."""
        self._parts: list[str] = []

    def box(
        self, x: float, y: float, w: float, h: float, text: str = "", fill: str = "none"
    ) -> None:
        """A box with a text in its middle."""
        self._parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="4" fill="{fill}" '
            f'fill-opacity="0.25" stroke="{INK if fill == "none" else fill}"/>'
        )
        lines = text.split("\n") if text else []
        for i, line in enumerate(lines):
            self.text(x + w / 2, y + h / 2 + 5 + 17 * (i - (len(lines) - 1) / 2), line, "middle")

    def text(self, x: float, y: float, text: str, anchor: str = "start", colour: str = INK) -> None:
        """A line of text."""
        self._parts.append(
            f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="{colour}">{escape(text)}</text>'
        )

    def arrow(self, x1: float, y1: float, x2: float, y2: float) -> None:
        """An arrow from one point to another."""
        self._parts.append(
            f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{INK}" marker-end="url(#a)"/>'
        )

    def bar(self, x: float, y: float, w: float, h: float, fill: str) -> None:
        """A bar."""
        self._parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{max(w, 1):g}" height="{h:g}" fill="{fill}"/>'
        )

    def line(self, points: list[tuple[float, float]], colour: str) -> None:
        """A line with a dot at each point."""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self._parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
        )
        self._parts += [
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points
        ]

    def svg(self) -> str:
        """The picture."""
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" role="img" '
            f'font-family="sans-serif" font-size="14"><title>{escape(self.title)}</title><defs><marker id="a" '
            'viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto"><path '
            f'd="M0 0 L8 4 L0 8 z" fill="{INK}"/></marker></defs>{"".join(self._parts)}</svg>\n'
        )


def chain() -> Drawing:
    """Logits, samplers, a token."""
    d = Drawing(900, 190, "A chain: each sampler keeps some of the candidates, the last draws one")
    names = ["logits", "penalties", "top_k 40", "top_p 0.95", "temperature 0.8", "dist"]
    left = [10, 9, 5, 3, 3, 1]
    for i, (name, kept) in enumerate(zip(names, left, strict=True)):
        x = 10 + 148 * i
        d.box(x, 20, 125, 40, name, BLUE if i else "none")
        if i:
            d.arrow(x - 22, 40, x - 1, 40)
        for j in range(10):
            height = 75 * 0.72**j
            fill = ORANGE if name == "dist" and j == 1 else BLUE
            shown = j == 1 if name == "dist" else j < kept
            d.bar(x + 12 * j, 160 - height, 9, height, fill if shown else "#d5dce640")
    d.text(10, 182, "candidates, the likeliest first; what a sampler removes stays removed")
    return d


def draw() -> Drawing:
    """A draw: integer weights, one random number, the first cumulative mass above it."""
    d = Drawing(
        900, 180, "The draw: integer weights beside each other, and a random place among them"
    )
    weights = [("the", 42), ("a", 23), ("his", 17), ("my", 11), ("thy", 7)]
    x = 20.0
    for i, (word, weight) in enumerate(weights):
        w = weight * 8.6
        d.box(x, 50, w, 40, word, ORANGE if word == "his" else BLUE)
        x += w
        d.text(x, 108, str(sum(each for _, each in weights[: i + 1])), "end", QUIET)
    place = 20 + 71 * 8.6
    d.arrow(place, 18, place, 48)
    d.text(place - 10, 28, "mulhi(u, Z): u from Philox(seed, position, stream)", "end")
    d.text(
        20,
        140,
        "Weights are integers, so their sums are equal in any order: on any machine, in any batch,",
    )
    d.text(
        20,
        160,
        "over any split of the vocabulary. The token is the first whose cumulative mass exceeds the place.",
    )
    return d


def equal_bits() -> Drawing:
    """One dot product in sixteen lanes, whatever the registers; lanes 8 apart are added first."""
    d = Drawing(900, 400, "A dot product: sixteen lanes and one tree of sums on every processor")
    tops = (20, 110, 200, 290)
    for level, y in enumerate(tops):
        lanes = 16 >> level
        for i in range(lanes):
            x = 20 + 53 * i
            d.box(x, y, 48, 30, f"{i}" if not level else "+", GREEN if level else BLUE)
            if level:
                for above in (i, i + lanes):
                    d.arrow(44 + 53 * above, tops[level - 1] + 30, x + 24, y - 1)
    d.arrow(44, 320, 44, 349)
    d.arrow(97, 320, 56, 349)
    d.box(20, 350, 60, 30, "sum", ORANGE)
    for y, text in zip(tops[1:], ("8 apart", "4 apart", "2 apart"), strict=True):
        d.text(30 + 53 * (16 >> tops.index(y)), y + 20, text)
    d.text(100, 370, "1 apart. AVX-512 has the lanes in one register, AVX2 in two, NEON in four.")
    return d


def cache() -> Drawing:
    """Cells with positions and owners; a fork shares, a cut frees, a shift relabels."""
    d = Drawing(
        900,
        230,
        "Cells of the cache: sequences share a beginning; a cut takes one owner away",
    )
    rows = [
        ("sequence 0 is decoded", ["0", "0", "0", "0", "0", "0", "", "", "", ""]),
        ("seq_cp: 1 shares the cells", ["01", "01", "01", "01", "01", "01", "", "", "", ""]),
        ("each goes on alone", ["01", "01", "01", "01", "01", "01", "0", "1", "1", ""]),
        ("seq_rm(0, 2, 4): 1 keeps them", ["01", "01", "1", "1", "01", "01", "0", "1", "1", ""]),
    ]
    for r, (what, cells) in enumerate(rows):
        y = 15 + 52 * r
        d.text(20, y + 25, what)
        for i, owners in enumerate(cells):
            fill = {"": "none", "0": BLUE, "1": ORANGE, "01": GREEN}[owners]
            d.box(280 + 60 * i, y, 54, 38, owners, fill)
    return d


def prompt_cache() -> Drawing:
    """Cells, memory and disk, and what moves between them."""
    d = Drawing(900, 300, "The prompt cache: cells, memory and disk, and the threads between them")
    tiers = [
        (20, "cells", "the engine's thread:\ncopies a block at a time", BLUE),
        (150, "memory (cache_ram)", "at once; the oldest goes first", GREEN),
        (245, "disk (cache_disk)", "one thread writes, one looks up,\ntwo read and check", ORANGE),
    ]
    for (y, name, who, colour), height in zip(tiers, (80, 45, 50), strict=True):
        d.box(150, y, 330, height, name if y > 20 else "", colour)
        for i, line in enumerate(who.split("\n")):
            d.text(620, y + 22 + 18 * i, line, colour=QUIET)
    for i, name in enumerate(["block 0", "block 1", "block 2", "rest"]):
        d.box(160 + 80 * i, 50, 72, 40, name, BLUE if i < 3 else "none")
    d.text(160, 40, "cells: a text, 128 tokens a block")
    for y1, y2 in ((100, 149), (195, 244)):
        d.arrow(250, y1, 250, y2)
        d.arrow(390, y2, 390, y1 + 1)
    d.text(240, 128, "complete: down", "end")
    d.text(400, 128, "asked for again: up")
    d.text(20, 170, "key = digest of")
    d.text(20, 187, "model, types,")
    d.text(20, 204, "namespace and all")
    d.text(20, 221, "tokens so far")
    return d


def device() -> Drawing:
    """Where logits are sampled."""
    d = Drawing(
        900, 170, "A batch on a device: rows with their own chains; only tokens come to the host"
    )
    d.box(20, 20, 170, 120, "decoder\n[B, V] logits", BLUE)
    d.arrow(192, 80, 258, 80)
    d.box(
        260,
        20,
        330,
        120,
        "DeviceChain: one read of each row,\nits own chain, seed and history;\nthe rest on few candidates",
        GREEN,
    )
    d.arrow(592, 80, 658, 80)
    d.box(660, 20, 210, 120, "host: B tokens,\nequal to those of\nthe rows' host chains", ORANGE)
    return d


def bars(title: str, rows: list[tuple[str, list[tuple[str, float]]]], unit: str) -> Drawing:
    """A plot of bars: groups, and in each a bar for each name."""
    names = list(dict.fromkeys(name for _, group in rows for name, _ in group))
    colours = dict(zip(names, (BLUE, ORANGE, GREEN, QUIET), strict=False))
    height = 50 + sum(26 + 20 * len(group) for _, group in rows)
    d = Drawing(900, height, title)
    d.text(20, 24, f"{title} ({unit})")
    most = max(value for _, group in rows for _, value in group)
    y = 40.0
    for label, group in rows:
        d.text(20, y + 16, label)
        for name, value in group:
            d.bar(250, y, 470 * value / most, 16, colours[name])
            d.text(258 + 470 * value / most, y + 13, f"{name} {value:,.0f}")
            y += 20
        y += 26
    return d


def latest(results: Path, heading: str, key: int) -> tuple[dict[str, list[str]], str]:
    """The latest rows of all tables with a heading; files of one day are read by name.

    Args:
        results: the folder of results.
        heading: the start of the line with the names of columns.
        key: how many first cells identify a row.

    Returns:
        Rows by these cells, and their days.
    """
    rows: dict[str, tuple[str, list[str]]] = {}
    for path in sorted(results.glob("*.md"), key=lambda path: path.stem.rpartition(".")[::-1]):
        within = False
        for line in path.read_text().splitlines():
            within = line.startswith((heading, "|") if within else heading)
            cells = [each.strip() for each in line.strip("|").split("|")]
            if within and not line.startswith((heading, "|---")):
                rows[" ".join(cells[:key])] = path.stem.rpartition(".")[2], cells
    days = sorted({day for day, _ in rows.values()})
    return {which: cells for which, (_, cells) in rows.items()}, ", ".join(days)


def types(results: Path) -> Drawing:
    """Ratios to llama.cpp of every type, size and instruction set: the tables of the latest page of types."""
    page = max(results.glob("types*.md"), key=lambda path: path.stem.rpartition(".")[2])
    columns = {"a token": "ratio", "prompt of 128": "", "4 sequences": "", "16 sequences": ""}
    cells: dict[str, dict[str, list[float]]] = {}
    section, names = "", []
    for line in page.read_text().splitlines():
        section = line[3:] if line.startswith("## ") else section
        row = [each.strip() for each in line.strip("|").split("|")]
        if line.startswith("| type |"):
            names = row
        elif line.startswith("| ") and names:
            by_name = dict(zip(names, row, strict=True))
            cells.setdefault(row[0], {})[section] = [
                float(
                    (by_name.get(at) or by_name[f"{name} (ratio)"]).rpartition("(")[2].rstrip(")")
                )
                for name, at in columns.items()
            ]
        elif not line:
            names = []
    sections = list(dict.fromkeys(each for of in cells.values() for each in of))
    d = Drawing(90 + 165 * len(sections), 66 + 20 * len(cells), "Speed over llama.cpp's, by type")
    d.text(10, 20, f"Speed over llama.cpp's ({', '.join(columns)}), {page.stem.rpartition('.')[2]}")
    for i, each in enumerate(sections):
        d.text(90 + 165 * i, 42, each)
    for j, (name, ratios) in enumerate(cells.items()):
        d.text(10, 65 + 20 * j, name)
        for i, each in enumerate(sections):
            for k, ratio in enumerate(ratios.get(each, ())):
                x, fill = 90 + 165 * i + 40 * k, ORANGE if ratio < 1 else GREEN
                d.box(x, 50 + 20 * j, 38, 18, f"{ratio:.2f}", fill)
    return d


def server_speed(results: Path) -> Drawing:
    """Servers against each other."""
    table, days = latest(results, "| order | server | tok/s |", 2)
    rows: dict[str, list[tuple[str, float]]] = {}
    for order, server, speed, *_ in table.values():
        rows.setdefault(f"{order} clients", []).append((server, float(speed)))
    return bars("Servers", list(rows.items()), f"tokens per second, {days}")


def growth_of_time(results: Path) -> Drawing:
    """Milliseconds of a step over what makes it longer, a plot for each axis; both scales are logarithmic."""
    path = growth.latest(results)
    about, rows = growth.read(path) if path else ({"date": "not measured yet"}, [])
    d = Drawing(900, 560, "How a step's time grows, Aleator and llama.cpp")
    d.text(20, 24, f"Milliseconds of a step, both scales logarithmic ({about.get('date', '')}):")
    d.text(560, 24, "Aleator", colour=BLUE)
    d.text(630, 24, "llama.cpp", colour=ORANGE)
    for i, (axis, what) in enumerate(growth.AXES.items()):
        lines = [growth.points(rows, axis, engine) for engine in growth.ENGINES]
        plot(d, 20 + 450 * (i % 2), 45 + 260 * (i // 2), what, lines)
    return d


def plot(
    d: Drawing, left: float, top: float, what: str, lines: list[list[tuple[float, float]]]
) -> None:
    """One of the plots: a frame of 410 by 200, lines, x below, the first and last times beside their points."""
    d.box(left, top, 410, 200)
    d.text(left + 205, top + 240, what, "middle")
    everything = [point for line in lines for point in line]
    if not everything:
        return
    xs, ys = zip(*everything, strict=True)

    def place(value: float, of: tuple[float, ...], start: float, length: float) -> float:
        low, high = math.log(min(of)), math.log(max(of))
        return start + length * (math.log(value) - low) / ((high - low) or 1)

    for x in sorted(set(xs)):
        d.text(place(x, xs, left + 40, 330), top + 218, short(x), "middle", QUIET)
    for line, colour, below in zip(lines, (BLUE, ORANGE), (18, -8), strict=True):
        if not line:
            continue
        at = [(place(x, xs, left + 40, 330), place(y, ys, top + 175, -145)) for x, y in line]
        d.line(at, colour)
        for (x, y), (_, ms) in zip((at[0], at[-1]), (line[0], line[-1]), strict=True):
            d.text(x, y + below, growth.shown(ms), "middle", colour)


def short(x: float) -> str:
    """A number in thousands from there on; in 1,024 if it is a multiple."""
    unit = 1024 if x % 1024 == 0 and x % 1000 else 1000
    return f"{x / unit:.3g} k" if x >= unit else f"{x:g}"


DRAWINGS = {
    "chain": chain,
    "draw": draw,
    "equal-bits": equal_bits,
    "cache": cache,
    "device": device,
    "prompt-cache": prompt_cache,
}


def pictures(results: Path) -> dict[str, str]:
    """All pictures by the names of their files."""
    made = {name: make() for name, make in DRAWINGS.items()}
    made |= {"types": types(results), "server-speed": server_speed(results)}
    made["growth"] = growth_of_time(results)
    return {f"{name}.svg": drawing.svg() for name, drawing in made.items()}


def main() -> int:
    """Write or compare every picture."""
    root = Path(__file__).parents[1]
    stale = []
    for name, svg in pictures(root / "benchmarks" / "results").items():
        path = root / "docs" / "images" / name
        if not path.exists() or path.read_text() != svg:
            stale.append(f"docs/images/{name}")
            if "--check" not in sys.argv[1:]:
                path.write_text(svg)
    if stale and "--check" in sys.argv[1:]:
        print(f"stale: {', '.join(stale)}: run 'make docs'", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
