"""Random chains, rows of logits, texts and damaged files, and what this package makes of them."""

from __future__ import annotations

import base64
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from attacks.world import changed
from wide_models import SMALL, write_model

import aleator
from aleator.models.hub.bundled import bundled_model
from aleator.samplers import SamplingParams
from tests.javascript.conftest import Run, logits_of

Case = dict[str, Any]


def packed(row: Any) -> str:
    return base64.b64encode(row.tobytes()).decode()


def rows_of(rng: np.random.Generator, n: int, vocab: int) -> Any:
    rows = rng.standard_normal((n, vocab), np.float32) * rng.uniform(0.3, 8)
    if rng.random() < 0.3:
        rows = np.round(rows)  # ties
    rows[rng.random(rows.shape) < rng.choice([0, 0.2])] = -np.inf
    rows[:, 0] = 0
    return rows


CHOICES: dict[str, tuple[Any, ...]] = {
    "temperature": (0.0, 0.3, 0.8, 1.7), "dynatemp_range": (0.5,), "dynatemp_exponent": (0.5, 2.0),
    "top_k": (1, 5, 40), "top_k_limit": (7,), "top_p": (0.3, 0.95), "min_p": (0.05, 0.2), "min_keep": (3,),
    "typical_p": (0.5,), "tfs_z": (0.7,), "top_a": (0.2,), "top_n_sigma": (1.0,), "min_k_tau": (3.0,),
    "epsilon_cutoff": (0.001,), "eta_cutoff": (0.001,), "p_less": ("on", "normalized"), "top_h": (0.4,),
    "xtc_probability": (0.5,), "xtc_threshold": (0.1,), "smoothing_factor": (0.3,), "smoothing_curve": (2.0,),
    "repetition_penalty": (1.3,), "frequency_penalty": (0.4,), "presence_penalty": (-0.3,),
    "penalty_last_n": (-1, 5), "penalty_scope": ("generated", "mixed"), "repetition_per": ("occurrence",),
    "dry_multiplier": (0.8,), "dry_allowed_length": (1,), "no_repeat_ngram_size": (2,), "mirostat": (1, 2),
    "mirostat_eta": (0.3,), "adaptive_target": (0.3,), "draw": ("gumbel", "gumbel-pcg", "mt19937"),
    "allowed_token_ids": ([1, 2, 3, 40, 41],), "logit_bias": ([[3, 2.5], [5, -1.0]],),
    "bad_words": ([[1, 2], [4]],),
}  # fmt: skip


def parameters(r: random.Random) -> dict[str, Any]:
    names = r.sample(sorted(CHOICES), r.randrange(1, 9))
    given = {name: r.choice(CHOICES[name]) for name in names}
    if "dry_multiplier" in given:
        given["dry_sequence_breakers"] = [[7], [8, 9]]
    if r.random() < 0.2:
        order = ["penalties", "temperature", "softmax", "top_k", "min_p", "top_p"]
        given = {"samplers": order, "mass": "full", "top_k": 9, "min_p": 0.1, "temperature": 0.7}
    return given


def phases(r: random.Random, marks: list[Any]) -> dict[str, Any]:
    """Parameters of two phases between some of these marks, and of the answer."""
    begin, end, other = r.sample(marks, 3)
    made: dict[str, Any] = {
        "x": {"begin": begin, "end": end, **parameters(r)},
        "y": {"begin": other, **parameters(r)},
    }
    if r.random() < 0.5:
        made["answer"] = r.choice([parameters(r), "greedy", {"preset": "llama.cpp", "top_k": 9}])
    return made | r.choice([{}, {"histories": "own"}, {"histories": "shared", "start": "x"}])


def random_chains(seed: int, draws: int = 6) -> Iterator[tuple[Case, list[int]]]:
    """Chains with so many rows of logits, as ``doing.mjs`` has them, and what they draw; without end."""
    r, rng = random.Random(seed), np.random.default_rng(seed)
    while True:
        given, seed = parameters(r), r.randrange(2**64)
        if r.random() < 0.2:
            given["phases"] = phases(r, [*range(9)])
        try:
            chain = SamplingParams(seed=seed, **given).chain()
        except aleator.ParameterError:
            continue  # a contradiction, such as mirostat and adaptive_p
        vocab, prompt = r.choice([50, 300, 5000]), [r.randrange(50) for _ in range(r.randrange(20))]
        rows = rows_of(rng, draws, vocab)
        chain.accept_many(prompt)
        case = {"parameters": given, "seed": str(seed), "prompt": prompt}
        try:
            drawn = [chain.sample(row) for row in rows]
        except aleator.LogitsError:
            continue  # a row without a token that the chain allows
        yield case | {"rows": list(map(packed, rows))}, drawn


LINES = (
    "ROMEO:", "JULIET:\nWhat light?\n", "To be, or n\u00e9ver to be \U0001f600 ",
    "First Citizen:\nBefore we proceed any further, hear me speak.\n\nAll:\n" * 3,
)  # fmt: skip
GRAMMARS = (
    'root ::= "yes" | "no" [a-z]+', 'root ::= "n\u00e9\U0001f600!"', 'root ::= ([a-z]+ " ")+ "."',
)  # fmt: skip


NAMES = {
    "stop_loops": "stopLoops", "reasoning_budget": "reasoningBudget",
    "reasoning_budget_message": "reasoningBudgetMessage",
    "reasoning_budget_grace": "reasoningBudgetGrace", "reasoning_marks": "reasoningMarks",
    "banned_strings": "bannedStrings", "banned_regex": "bannedRegex",
}  # fmt: skip
"""Options of texts, and what the package calls them."""
STEERING: tuple[Case, ...] = (
    {"heal": True},
    {"stop_loops": [2, 6]},
    {"stop_loops": [2, 4, 50.5, 3]},
    {"banned_strings": ["the", " my", "e\n"]},
    {"banned_regex": [r"\bth[a-z]{1,4}\b", "(?i)o$"]},
    {"banned_regex": [["[aeiou][^a-z]", 0.5], ["\n.", 0.9]]},
    {"reasoning_budget": 4, "reasoning_marks": ["\n", "!"]},
)


def told_of(made: aleator.Generation) -> Case:
    """What tests have the package tell of a text."""
    return {
        "text": made.text,
        "tokens": list(made.tokens),
        "reason": made.stop_reason,
        "complete": made.complete,
    }


def check_texts(
    run: Run, texts: Iterable[tuple[str, Case]], n: int, file: Path | None = None
) -> list[Case]:
    """Prompts with these options, and the seed 3 for those without one, give what they give here; return it."""
    path = str(file or bundled_model())
    model = aleator.load(path, n_threads=1)
    cases, expected = [], []
    for prompt, given in texts:
        own = {"seed": 3, **given}
        options = {NAMES.get(name, name): value for name, value in own.items()}
        cases.append({"path": path, "prompt": prompt, "options": {**options, "maxTokens": n}})
        expected.append(told_of(model.generate(prompt, max_tokens=n, **own)))
    assert run("text", cases) == expected
    return expected


def random_texts(seed: int, path: str, length: int = 40) -> Iterator[tuple[Case, Case]]:
    """Texts of the bundled model, which is at ``path``, and what they are; without end."""
    r, model = random.Random(seed), aleator.load(n_threads=1)
    while True:
        given = parameters(r) | {"seed": r.randrange(2**53)}
        if r.random() < 0.2:
            given["grammar"] = r.choice(GRAMMARS)
        elif r.random() < 0.4:
            given |= r.choice(STEERING)
        if r.random() < 0.3:
            given["stop"] = r.choice((["\n\n"], ["e", "\u00e9\U0001f600"], ["And ", "thou"]))
        if r.random() < 0.3:
            given["phases"] = phases(r, ["e", "t", " th", "ou", "\n", ":\n", "ing ", 300, 301, 13])
        prompt = r.choice(LINES)
        try:
            made = model.generate(prompt, max_tokens=length, **given)
            told = told_of(made)
        except (aleator.ParameterError, aleator.ConstraintError, aleator.LogitsError):
            continue  # a contradiction, or a chain that leaves no token
        options = {NAMES.get(name, name): value for name, value in given.items()}
        yield {"path": path, "prompt": prompt, "options": {**options, "maxTokens": length}}, told


HEAD = 4000
"""Bytes at the beginning of a file, where damage is likelier to be noticed."""


def damaged_files(seed: int, folder: Path) -> Iterator[tuple[Case, str]]:
    """Files of small random models with damage, and the error that each ends in, or its logits; without end."""
    r, tokens = random.Random(seed), [1, 2, 3]
    some = [SMALL[name] for name in r.sample(sorted(SMALL), 12)]
    sound = [write_model(folder / f"{i}.gguf", each).read_bytes() for i, each in enumerate(some)]
    path = folder / "damaged.gguf"
    while True:
        data = r.choice(sound)
        at = HEAD if r.random() < 0.7 else len(data)
        path.write_bytes(changed(r, data[:at])[1] + data[at:])
        try:
            aleator.load(path, n_threads=1)  # its vocabulary too
            logits = np.frombuffer(bytes.fromhex(logits_of(path, tokens)), np.float32)
            told = np.where(np.isnan(logits), np.float32(np.nan), logits).tobytes().hex()
        except aleator.AleatorError as error:
            told = type(error).__name__
        yield {"bytes": base64.b64encode(path.read_bytes()).decode(), "tokens": tokens}, told
