"""Tables of what bench_generate.py has measured."""

from __future__ import annotations

from typing import Any

Answer = dict[str, Any]


def best(values: dict[str, float], engine: str) -> float | None:
    """An engine's speed in its best variant."""
    found = [speed for who, speed in values.items() if who.split()[0] == engine]
    return max(found, default=None)


def ratio(values: dict[str, float]) -> str:
    """Aleator's speed, and in brackets over llama.cpp's."""
    ours, theirs = best(values, "aleator"), best(values, "llama.cpp")
    if ours is None:
        return ""
    return f"{ours:,.0f}" + (f" ({ours / theirs:.2f}x)" if theirs else "")


def decode_table(models: Answer) -> list[str]:
    lines = [
        "| model | MiB | decode tok/s, aleator | llama.cpp flash / plain | ratio | plain read GB/s "
        "| share of it | load |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name, facts in models.items():
        order = next(
            key for key in facts["speeds"] if key.startswith("decode") and key.endswith(" 0")
        )
        values = facts["speeds"][order]
        ours, theirs = values["aleator"], best(values, "llama.cpp")
        both = (
            " / ".join(f"{values[f'llama.cpp {v}']:,.1f}" for v in ("flash", "plain"))
            if theirs
            else ""
        )
        share = ours * facts["weight_bytes"] / facts["read_bytes_s"]
        lines.append(
            f"| {name} | {facts['mib']:,.0f} | {ours:,.1f} | {both} "
            f"| {f'{ours / theirs:.2f}' if theirs else ''} "
            f"| {facts['read_bytes_s'] / 1e9:.1f} | {share:.0%} | {facts['load']:.2f} |"
        )
    return lines


def speed_table(models: Answer, order: str, at: int, what: str) -> list[str]:
    """Speeds and ratios of one order by one of its numbers."""
    keys = {key for facts in models.values() for key in facts["speeds"] if key.startswith(order)}
    numbers = sorted({int(key.split()[at]) for key in keys})
    lines = [
        f"| model | {' | '.join(f'{n:,}{what}' for n in numbers)} |",
        "|---|" + "---:|" * len(numbers),
    ]
    for name, facts in models.items():
        cells = []
        for n in numbers:
            found = [v for k, v in facts["speeds"].items() if k in keys and int(k.split()[at]) == n]
            cells.append(ratio(found[0]) if found else "")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def process_table(models: Answer) -> list[str]:
    lines = [
        "| model | first token s, aleator | llama.cpp | peak MiB, aleator | llama.cpp |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, facts in models.items():
        each = facts["processes"]
        cells = [
            f"{each[who][key]:,.{digits}f}" if who in each else ""
            for key, digits in (("first_s", 2), ("peak_mib", 0))
            for who in ("aleator", "llama.cpp")
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def perplexity_table(found: Answer) -> list[str]:
    lines = ["| type | MiB | aleator | llama.cpp | difference |", "|---|---:|---:|---:|---:|"]
    for kind, each in found.items():
        ours, theirs = each["aleator"], each["llama.cpp"]
        lines.append(
            f"| {kind} | {each['mib']:,.0f} | {ours:.4f} | {theirs:.4f} | {ours / theirs - 1:+.2%} |"
        )
    return lines


def report(everything: Answer) -> str:
    """Markdown of all that is there."""
    models = everything["models"]
    lines = ["# Generating against llama.cpp", ""]
    lines += [f"- {key}: {value}" for key, value in everything["about"].items()]
    if models:
        lines += ["", "## Decode", "", *decode_table(models)]
        lines += ["", "## Prefill, tokens/s (over llama.cpp)", ""]
        lines += speed_table(models, "prefill", 1, " tokens")
        if any(key.startswith("batch") for facts in models.values() for key in facts["speeds"]):
            lines += ["", "## Batches, tokens/s of all sequences (over llama.cpp)", ""]
            lines += speed_table(models, "batch", 2, " sequences")
        lines += ["", "## Decode at depth, tokens/s (over llama.cpp)", ""]
        lines += speed_table(models, "decode", 2, " before")
        lines += ["", "## Processes", "", *process_table(models)]
    if everything["perplexity"]:
        lines += ["", "## Perplexity", "", *perplexity_table(everything["perplexity"])]
    return "\n".join([*lines, ""])
