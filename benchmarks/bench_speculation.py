"""Measures what guesses save, and what wrong ones cost: pairs of generations in one process.

    python benchmarks/bench_speculation.py -m MODEL.gguf [--model-draft SMALL.gguf|HEAD|bundled]
                                           [--pairs 12] [--tokens 200] [--repeat 1]
                                           [--prompts "a play" ...] [--temperatures 0 0.8]
                                           [--kinds none ngram draft]

Each pair makes the same request without and with guesses, in alternating order, so that the machine's load
affects both alike.  A figure is the median of the pairs' ratios of tokens per second, after the prompt: above 1
guesses save time.  The tokens of a pair are also compared.  With ``--repeat`` each pair is made several times,
and the least of each side's times counts, which leaves out most of what a busy machine adds.  Prompts: one that
repeats itself, one that does not, and plays (others are measured if named); greedy, and at temperature
0.8, with a target of at least 0.97.
The rows "none" compare requests without guesses with each other: their least shows how much the machine alone
changes a pair.  The last line is a verdict over the medians; the exit status is 1 if one is below the target.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

import aleator

sys.path.append(str(Path(__file__).resolve().parent.parent / "tools"))
from run_report import Report, command, machine, parser

TARGET = 0.97
"""The least speed with guesses, relative to that without."""
PROMPTS = {
    "repeats": "A list of names: Ann, Bob, Eve, Ann, Bob, Eve, Ann, Bob, Eve, Ann, Bob,",
    "does not": "It was a bright cold day in April, and the clocks were striking thirteen. Then",
    "a play": "ROMEO:\nO, she doth teach the torches to burn bright!\n\nJULIET:\n",
    "a king": "KING HENRY:\nWhat news from France? Speak, good my lord, and tell",
    "a crowd": "First Citizen:\nBefore we proceed any further, hear me speak.\n",
    "a scene": "Enter the KING and",
}
KINDS = {
    "plays": {
        "a ghost": "HORATIO:\nStay, speak, I charge thee; what art thou that",
        "a shipwreck": "Captain:\nThe mast is broken and the sea comes in,\nAnd",
        "a quarrel": "KATHARINA:\nYou told me yesterday that you would never",
        "a servant": "Enter GREMIO, with a lantern\n\nGREMIO:\nWho knocks so late",
        "a verdict": "DUKE:\nBring in the prisoner, and let him hear",
        "a parting": "ANTONIO:\nFarewell, my friend; when thou art come to Rome,",
    },
    "verse": {
        "autumn": "The leaves are falling from the yellow trees,\nAnd",
        "a lullaby": "Sleep, little child, the moon is in the sky,\nThe",
        "a ballad": "There rode a knight from the northern shore\nWith",
        "an epitaph": "Here lies a man who never in his life",
        "a hymn": "O lord of light, that mad'st the earth and",
        "a rose": "My mistress is a rose without a thorn,\nHer",
    },
    "prose": {
        "a journey": "We left the village early in the morning and walked",
        "a trial": "The judge asked the young man why he had",
        "history": "In the year 1066 the duke of Normandy crossed the sea with",
        "a lecture": "There are three reasons why a free people should",
        "a diary": "Monday. It rained all day, and I stayed at home to",
        "a fable": "A fox and a crow once met under an old oak, and the fox",
    },
    "daily": {
        "a note": "Mother, I have gone to the market. Please do not forget",
        "an order": "Item one: two pairs of boots. Item two: a wool coat. Item",
        "a guide": "How to mend a broken chair: first take the",
        "an answer": "Q: Who is the father of the prince?\nA:",
        "a notice": "NOTICE: All visitors to the castle must",
        "a talk": "Good morning! How are you today? I am",
    },
}
"""Prompts of four kinds on which nothing was chosen."""
OTHERS = {name: text for kind in KINDS.values() for name, text in kind.items()}


def seconds(
    model: aleator.LanguageModel, prompt: str, n: int, temperature: float, seed: int, kind: str
) -> tuple[float, float, aleator.Generation]:
    """Seconds after the prompt, processor seconds of all, and the generated tokens."""
    processor = time.process_time()
    made = model.generate(
        prompt, max_tokens=n, temperature=temperature, seed=seed, spec_type=kind, ignore_eos=True
    )
    made.wait()
    return made.stats.decode_seconds, time.process_time() - processor, made


def main() -> int:
    """Measure what the command line asks for."""
    asked = parser(__doc__, out="Markdown")
    asked.add_argument("-m", "--model")
    asked.add_argument("--model-draft")
    asked.add_argument("--threads", type=int)
    asked.add_argument("--pairs", type=int, default=12)
    asked.add_argument("--tokens", type=int, default=200)
    asked.add_argument("--repeat", type=int, default=1)
    texts = PROMPTS | OTHERS
    asked.add_argument("--prompts", nargs="+", choices=texts, default=[*PROMPTS])
    asked.add_argument("--kinds", nargs="+", default=["none", "ngram", "draft"])
    asked.add_argument("--temperatures", nargs="+", type=float, default=[0.0, 0.8])
    args = asked.parse_args()
    model = aleator.load(args.model, n_threads=args.threads, model_draft=args.model_draft)
    kinds = [each for each in args.kinds if args.model_draft is not None or each != "draft"]
    report = Report("Guesses", machine("aleator"), f"    {command(__file__)}")
    report.table(
        "prompt",
        "temperature:",
        "guesses",
        "median ratio:",
        "least:",
        "processor:",
        "tokens a step:",
        "right, of guessed:",
    )
    medians: dict[str, float] = {}
    for name in args.prompts:
        prompt = texts[name]
        for temperature in args.temperatures:
            for kind in kinds:
                ratios, processors, right, guessed, steps, drawn = [], [], 0, 0, 0, 0
                for pair in range(args.pairs):
                    times: list[tuple[float, float, float, float]] = []
                    for turn in range(args.repeat):
                        plain_first = (pair + turn) % 2
                        made = [
                            seconds(model, prompt, args.tokens, temperature, pair, each)
                            for each in (("none", kind) if plain_first else (kind, "none"))
                        ]
                        plain, with_guesses = made if plain_first else reversed(made)
                        if plain[2].tokens != with_guesses[2].tokens:
                            raise AssertionError(f"pair {pair}: guesses have changed the tokens")
                        times.append((*plain[:2], *with_guesses[:2]))
                        stats = with_guesses[2].stats
                        right += stats.draft_n_accepted
                        guessed += stats.draft_n
                        drawn += len(with_guesses[2].tokens)
                        steps += len(with_guesses[2].tokens) - stats.draft_n_accepted
                    least = [min(each) for each in zip(*times, strict=True)]
                    ratios.append(least[0] / least[2])
                    processors.append(least[1] / least[3])
                if kind != "none":
                    medians[f"{kind}, {name}, {temperature}"] = statistics.median(ratios)
                figures = (
                    f"{statistics.median(ratios):.3f}", f"{min(ratios):.3f}",
                    f"{statistics.median(processors):.3f}", f"{drawn / steps:.2f}",
                )  # fmt: skip
                report.row(name, temperature, kind, *figures, f"{right} of {guessed}")
    worst = min(medians, key=medians.__getitem__)
    kept = medians[worst] >= TARGET
    report.say(
        "",
        f"At least {TARGET} of the speed without guesses: {'yes' if kept else 'NO'}; the least median is "
        f"{medians[worst]:.3f} ({worst}). The tokens are equal in all pairs.",
    )
    report.write(args.out)
    return int(not kept)


if __name__ == "__main__":
    sys.exit(main())
