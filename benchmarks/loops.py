"""Shows what stop_loops finds in a model's greedy and drawn texts, and in human texts, where it should not.

    python benchmarks/loops.py [FILE] [--tokens 500]

prints a table.  Human texts: the sources of this repository, its tables, and verses with refrains.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

import aleator
from aleator.generate.loops import LoopDetector

ROOT = Path(__file__).parents[1]
LIMITS = ((4, 64), (3, 32))
PROMPTS = (
    "Once upon a time", "The capital of France is", "def quicksort(items):\n", "Dear Sir or Madam,",
    "The three laws of thermodynamics are:\n1.", "ROMEO:", "My favourite recipe for bread:\n",
    "| year | population |\n|---|---|\n| 1900 |", "Roses are red,\n", "In this paper we show that",
)  # fmt: skip
BRIDGE = (
    "falling down",
    "broken down",
    "built with wood and clay",
    "washed away",
    "built with iron and steel",
)
SONGS = {
    "London Bridge, with all verses": "\n\n".join(
        f"London Bridge is {line},\n{line.capitalize()}, {line},\nLondon Bridge is {line},\nMy fair lady."
        for line in BRIDGE
    ),
    "Row your boat, as a round of three": "Row, row, row your boat,\nGently down the stream,\nMerrily, "
    "merrily, merrily, merrily,\nLife is but a dream.\n\n" * 3,
    "Frère Jacques, as a round of four": "Frère Jacques, Frère Jacques,\nDormez-vous ? Dormez-vous ?\nSonnez "
    "les matines ! Sonnez les matines !\nDing, dang, dong. Ding, dang, dong.\n\n" * 4,
    "The Tyger, first and last stanza": "Tyger Tyger, burning bright,\nIn the forests of the night;\nWhat "
    "immortal hand or eye,\nCould frame thy fearful symmetry?\n\n" * 2,
    "Tomorrow, and tomorrow": "To-morrow, and to-morrow, and to-morrow,\nCreeps in this petty pace from day to "
    "day\nTo the last syllable of recorded time;",
    "Never, never (King Lear)": "Thou'lt come no more,\nNever, never, never, never, never!",
}


def found(tokens: Iterable[int], limits: tuple[int, int]) -> int:
    """After how many tokens a loop is found; 0: none."""
    detector = LoopDetector(*limits)
    return next((n for n, token in enumerate(tokens, 1) if detector.push(token)), 0)


def human_texts() -> dict[str, dict[str, str]]:
    """Human texts by kind and name."""
    code = [
        *ROOT.glob("src/**/*.py"),
        *ROOT.glob("native/**/*.[ch]pp"),
        *ROOT.glob("tests/**/*.py"),
    ]
    pages = [*ROOT.glob("docs/*.md"), *ROOT.glob("benchmarks/results/*.md"), ROOT / "README.md"]
    texts = {path: path.read_text(encoding="utf-8") for path in (*code, *pages)}
    tables = {
        str(path): "\n".join(line for line in texts[path].splitlines() if line.startswith("|"))
        for path in pages
    }
    return {
        "source files": {str(path): texts[path] for path in code},
        "pages": {str(path): texts[path] for path in pages},
        "their tables alone": {name: table for name, table in tables.items() if table},
        "verses": SONGS,
    }


def named_few(paths: list[str]) -> str:
    """The first few names of some files."""
    names = ", ".join(Path(path).name for path in paths[:3])
    return f": {names}{' and others' if len(paths) > 3 else ''}" if paths else ""


def main() -> None:
    """Print the table of a model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("file", nargs="?", help="a GGUF file; without: the bundled model")
    parser.add_argument("--tokens", type=int, default=500)
    arguments = parser.parse_args()
    model = aleator.load(arguments.file) if arguments.file else aleator.load()
    print(f"{model.identity.name or 'the bundled model'}, {arguments.tokens} tokens a text\n")
    print(
        f"| texts | tokens | {' | '.join(f'loops by {r},{m}' for r, m in LIMITS)} |\n|---|---|---|---|"
    )
    for name, temperature in (("greedy", 0.0), ("temperature 1", 1.0)):
        texts = [
            each.tokens
            for each in model.generate_batch(
                PROMPTS,
                temperature=temperature,
                max_tokens=arguments.tokens,
                ignore_eos=True,
                seed=1,
            )
        ]
        places = [[n for text in texts if (n := found(text, limits))] for limits in LIMITS]
        told = [
            f"{len(p)} of {len(texts)}" + (f", after {min(p)} to {max(p)}" if p else "")
            for p in places
        ]
        print(f"| {name} | {sum(map(len, texts))} | {' | '.join(told)} |", flush=True)
    for kind, named in human_texts().items():
        coded = {
            name: model.tokenizer.encode(text, add_special=False) for name, text in named.items()
        }
        alarms = [
            [name for name, text in coded.items() if found(text, limits)] for limits in LIMITS
        ]
        told = [f"{len(each)} of {len(coded)}{named_few(each)}" for each in alarms]
        print(f"| {kind} | {sum(map(len, coded.values()))} | {' | '.join(told)} |", flush=True)


if __name__ == "__main__":
    main()
