"""Tables of bench_generate.py's measurements."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent.parent / "tools"))
from run_report import table_head, table_row

Answer = dict[str, Any]


ENGINES = ("aleator", "llama.cpp", "transformers")


def best(values: dict[str, float], engine: str) -> float | None:
    """An engine's speed in its best variant."""
    found = [speed for who, speed in values.items() if who.split()[0] == engine]
    return max(found, default=None)


def ratio(values: dict[str, float]) -> str:
    """Aleator's speed, and in brackets its ratios to the measured peers."""
    ours = best(values, "aleator")
    if ours is None:
        return ""
    others = [speed for each in ENGINES[1:] if (speed := best(values, each))]
    over = ", ".join(f"{ours / speed:.2f}x" for speed in others)
    return f"{ours:,.0f}" + (f" ({over})" if over else "")


def decode_table(models: Answer) -> list[str]:
    lines = table_head(
        "model", "MiB:", "decode tok/s, aleator:", "llama.cpp flash / plain:", "ratio:",
        "plain read GB/s:", "share of it:", "MB of a token's matrices:", "MB touched:", "load:",
    )  # fmt: skip
    for name, facts in models.items():
        order = next(
            (k for k in facts["speeds"] if k.startswith("decode") and k.endswith(" 0")), None
        )
        if order is None or "aleator" not in facts["speeds"][order]:
            continue
        values = facts["speeds"][order]
        ours, theirs = values["aleator"], best(values, "llama.cpp")
        both = " / ".join(f"{values[f'llama.cpp {v}']:,.1f}" for v in ("flash", "plain") if theirs)
        share = ours * facts["weight_bytes"] / facts["read_bytes_s"]
        touched = facts.get("touched_bytes")
        lines.append(
            table_row(
                name, f"{facts['mib']:,.0f}", f"{ours:,.1f}", both,
                f"{ours / theirs:.2f}" if theirs else "", f"{facts['read_bytes_s'] / 1e9:.1f}",
                f"{share:.0%}", f"{facts['weight_bytes'] / 1e6:,.0f}",
                f"{touched / 1e6:,.0f}" if touched else "", f"{facts['load']:.2f}",
            )
        )  # fmt: skip
    return lines


def speed_table(models: Answer, order: str, at: int, what: str) -> list[str]:
    """Speeds and ratios of one order by one of its numbers."""
    keys = {key for facts in models.values() for key in facts["speeds"] if key.startswith(order)}
    numbers = sorted({int(key.split()[at]) for key in keys})
    lines = table_head("model", *(f"{n:,}{what}:" for n in numbers))
    for name, facts in models.items():
        cells = []
        for n in numbers:
            found = [v for k, v in facts["speeds"].items() if k in keys and int(k.split()[at]) == n]
            cells.append(ratio(found[0]) if found else "")
        lines.append(table_row(name, *cells))
    return lines


def cache_table(models: Answer) -> list[str]:
    """Decode by length of the text and type of keys and values."""
    lines = table_head(
        "model", "before:", "type of K and V", "MiB of 1,024 cells:", "aleator tok/s:",
        "llama.cpp tok/s:", "ratio:",
    )  # fmt: skip
    for name, facts in models.items():
        for order, values in facts["speeds"].items():
            for kind, size in facts["cache_bytes"].items():
                ours, theirs = values[f"aleator {kind}"], values.get(f"llama.cpp {kind}")
                beside = [f"{theirs:,.1f}", f"{ours / theirs:.2f}"] if theirs else ["", ""]
                before = f"{int(order.split()[-1]):,}"
                lines.append(
                    table_row(name, before, kind, f"{size / 2**20:.1f}", f"{ours:,.1f}", *beside)
                )
    return lines


def process_table(models: Answer) -> list[str]:
    lines = table_head(
        "model", *(f"{what}, {who}:" for what in ("first token s", "peak MiB") for who in ENGINES)
    )
    for name, facts in models.items():
        each = facts["processes"]
        cells = [
            f"{each[who][key]:,.{digits}f}" if who in each else ""
            for key, digits in (("first_s", 2), ("peak_mib", 0))
            for who in ENGINES
        ]
        lines.append(table_row(name, *cells))
    return lines


def perplexity_table(found: Answer) -> list[str]:
    lines = table_head("type", "MiB:", "aleator:", "llama.cpp:", "difference:")
    for kind, each in found.items():
        ours, theirs = each["aleator"], each["llama.cpp"]
        cells = f"{each['mib']:,.0f}", f"{ours:.4f}", f"{theirs:.4f}", f"{ours / theirs - 1:+.2%}"
        lines.append(table_row(kind, *cells))
    return lines


def report(everything: Answer) -> str:
    """All results as Markdown."""
    models = everything["models"]
    lines = ["# Generating against llama.cpp and transformers", ""]
    lines += [f"- {key}: {value}" for key, value in everything["about"].items()]
    by_type = {name: facts for name, facts in models.items() if "cache_bytes" in facts}
    others = {name: facts for name, facts in models.items() if name not in by_type}
    orders = {key for facts in others.values() for key in facts["speeds"]}
    if any("read_bytes_s" in facts for facts in others.values()):
        lines += ["", "## Decode", "", *decode_table(others)]
    over = "tokens/s (over llama.cpp, transformers)"
    for order, title, at, what in (
        ("prefill", "Prefill", 1, " tokens"),
        ("batch", "Batches of all sequences", 2, " sequences"),
        ("decode", "Decode at depth", 2, " before"),
        ("beams", "Search with beams", 2, " beams"),
    ):
        if any(key.startswith(order) for key in orders):
            lines += ["", f"## {title}, {over}", "", *speed_table(others, order, at, what)]
    if by_type:
        lines += ["", "## Types of keys and values", "", *cache_table(by_type)]
    ran = {name: facts for name, facts in models.items() if "processes" in facts}
    if ran:
        lines += ["", "## Processes", "", *process_table(ran)]
    if everything["perplexity"]:
        lines += ["", "## Perplexity", "", *perplexity_table(everything["perplexity"])]
    return "\n".join([*lines, ""])
