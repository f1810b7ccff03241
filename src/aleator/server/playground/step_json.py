"""Steps and tokens as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from aleator.samplers.explain import Explanation, Shape, Stage
from aleator.server.playground.recording import Recording, Resampled
from aleator.text.vocabulary import Vocabulary

MOST_TEXT = 2000
"""Characters of a token that are sent; the bundled page shows fewer."""


class StepFormatter:
    """Tokens and steps of one vocabulary as JSON."""

    def __init__(self, vocab: Vocabulary) -> None:
        self._vocab = vocab

    def token(self, token: int) -> dict[str, Any]:
        """A token: its id, its text, or where it is no UTF-8 its bytes in hexadecimal.

        ``special`` marks control tokens; ``length`` counts the characters where the text is cut.
        """
        told: dict[str, Any] = {"id": token, "text": None}
        if not self._vocab.has_text:
            return told
        piece = self._vocab.token_bytes(token)
        try:
            text = piece.decode("utf-8")
        except UnicodeDecodeError:
            told["bytes"] = piece[:MOST_TEXT].hex()
        else:
            told["text"] = text[:MOST_TEXT]
            if len(text) > MOST_TEXT:
                told["length"] = len(text)
        if self._vocab.is_special(token):
            told["special"] = True
            if not piece:
                told["text"] = self._vocab.tokens[token][:MOST_TEXT]
        return told

    def tokens(self, tokens: Sequence[int]) -> list[dict[str, Any]]:
        """Tokens, one after the other."""
        return [self.token(token) for token in tokens]

    def step(self, recording: Recording, step: int, found: Explanation, top: int) -> dict[str, Any]:
        """A step in short, as the stream has it."""
        told = self._written(recording, step, found)
        told["entropy"], told["entropy_after"] = found.before.entropy, found.after.entropy
        told["left"] = found.after.candidates
        told["stages"] = [
            {
                "name": s.name,
                "left": s.after.candidates,
                "removed": s.n_removed,
                "cut": s.mass_cut,
                "moved": s.moved,
                "entropy": s.after.entropy,
            }
            for s in found.active
        ]
        told["top"] = [
            {"token": self.token(t.token.id), "before": t.before, "after": t.after}
            for t in found.traces[:top]
        ]
        return told

    def forgotten(self, recording: Recording, step: int) -> dict[str, Any]:
        """A step in short, of which only the token is known: its logits are not kept any more."""
        known = {"step": step, "token": self.token(recording.drawn[step]), "picked": False}
        unknown = ("before", "after", "entropy", "entropy_after", "left")
        return {**known, **dict.fromkeys(unknown), "stages": [], "top": [], "forgotten": True}

    def full_step(self, recording: Recording, step: int, found: Explanation) -> dict[str, Any]:
        """Everything about a step: the stages with what they removed, and tokens through all of them."""
        draw = found.draw
        return {
            **self._written(recording, step, found),
            "numerics": found.numerics,
            "n_vocab": found.n_vocab,
            "history": found.history,
            "logits": _shape(found.before),
            "stages": [self._stage(s) for s in found.stages],
            "traces": [
                {
                    "token": self.token(t.token.id),
                    "probabilities": t.probabilities,
                    "removed_by": t.removed_by,
                }
                for t in found.traces
            ],
            "draw": draw
            and {
                "token": self.token(draw.token.id),
                "before": draw.before,
                "after": draw.probability,
                "seed": draw.seed,
                "position": draw.position,
                "completion": draw.completion,
            },
        }

    def draws(self, found: Explanation, counts: Mapping[int, int], n: int) -> dict[str, Any]:
        """Counts of draws beside the exact probabilities."""
        exact = {trace.token.id: trace.after for trace in found.traces}
        order = sorted(
            {*counts, *(token for token, p in exact.items() if p > 0)},
            key=lambda token: (-exact.get(token, 0.0), -counts.get(token, 0), token),
        )
        tokens = [
            {"token": self.token(t), "count": counts.get(t, 0), "exact": exact.get(t)}
            for t in order
        ]
        return {"n": n, "tokens": tokens}

    def resampled(self, found: Resampled) -> dict[str, Any]:
        """What another chain would have drawn."""
        changed = {str(step): self.token(token) for step, token in found.changed.items()}
        return {**asdict(found), "changed": changed}

    def _written(self, recording: Recording, step: int, found: Explanation) -> dict[str, Any]:
        drawn = recording.drawn
        written = drawn[step] if step < len(drawn) else None
        told: dict[str, Any] = {
            "step": step,
            "token": None if written is None else self.token(written),
            "picked": written is not None
            and (found.draw is None or found.draw.token.id != written),
        }
        if written is None:
            return told
        trace = next((t for t in found.traces if t.token.id == written), None)
        if trace is not None:
            told["before"], told["after"] = trace.before, trace.after
        else:
            logits = np.asarray(recording.logits(step), np.float64)
            weights = np.exp(logits - logits.max())
            told["before"], told["after"] = float(weights[written] / weights.sum()), None
        return told

    def _stage(self, stage: Stage) -> dict[str, Any]:
        return {
            "name": stage.name,
            "label": stage.label,
            "neutral": stage.neutral,
            "before": _shape(stage.before),
            "after": _shape(stage.after),
            "removed": stage.n_removed,
            "cut": stage.mass_cut,
            "likely_removed": [
                {"token": self.token(r.token.id), "probability": r.probability}
                for r in stage.removed
            ],
            "moved": stage.moved,
            "state": stage.state,
            "microseconds": stage.microseconds,
        }


def _shape(shape: Shape) -> dict[str, float]:
    return {**asdict(shape), "choices": shape.choices}
