"""Measures how far logits of Aleator and llama.cpp are from those of float32 arithmetic, on real text.

    python tools/compare_logits.py -m FILE.gguf ... -f TEXT [--windows 8] [--tokens 256] [--out FILE.md]

All use the file's weights.  The exact logits come from the decoder's form in PyTorch, which multiplies float32
weights with float32 activations and keeps float32 keys and values.  Both engines round activations to int8,
each in its own way; the cache is float32 or float16.  The table has, over all tokens of evenly spread windows
of the text: the mean and the largest distance of a logit, divided by the range of the row's exact logits; the
divergence of the engine's distribution from the exact one, in nats; and how often another token has the largest
logit.

Needs llama-cpp-python (the extra ``bench``) and PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
from llama_peer import Context as LlamaContext
from run_report import Report, parser

from aleator.generate import Batch, Context
from aleator.models import build_decoder, open_weights
from aleator.text.tokenizer import Tokenizer
from aleator.text.vocabulary import Vocabulary

Floats = npt.NDArray[np.float32]
Engine = Callable[[list[int]], Floats]
CACHES = ("f32", "f16")


def aleator(path: Path, n_ctx: int, form: str, cache: str) -> Engine:
    """Logits of every token of a window."""
    decoder = build_decoder(open_weights(path), form=form)

    def rows(tokens: list[int]) -> Floats:
        context = Context(decoder, n_ctx=n_ctx, type_k=cache, type_v=cache)
        batch = Batch()
        for position, token in enumerate(tokens):
            batch.add(token, position, (0,), logits=True)
        return np.array(context.decode(batch), np.float32)

    return rows


def llama_cpp(path: Path, n_ctx: int, cache: str, flash: bool) -> Engine:
    """llama.cpp's logits of every token of a window."""

    def rows(tokens: list[int]) -> Floats:
        llama = LlamaContext(path, n_ctx, cache, cache, flash, n_ubatch=n_ctx)
        try:
            return llama.prefill(tokens)
        finally:
            llama.close()

    return rows


def distances(exact: Floats, rows: Floats) -> list[float]:
    """For each row: mean and largest distance over the range, divergence, whether another token leads."""
    exact, rows = exact.astype(np.float64), rows.astype(np.float64)
    off = np.abs(rows - exact) / np.ptp(exact, axis=1, keepdims=True)
    p, q = (x - x.max(1, keepdims=True) for x in (exact, rows))
    p, q = (x - np.log(np.exp(x).sum(1, keepdims=True)) for x in (p, q))
    divergence = (np.exp(p) * (p - q)).sum(1)
    other = exact.argmax(1) != rows.argmax(1)
    return [float(off.mean()), float(off.max()), float(divergence.mean()), float(other.mean())]


def table(report: Report, path: Path, text: str, windows: int, n: int) -> None:
    """Compare with one model."""
    tokens = Tokenizer(Vocabulary.from_gguf(path)).encode(text)
    starts = np.linspace(0, len(tokens) - n, windows).astype(int)
    pieces = [tokens[i : i + n] for i in starts]
    exact = aleator(path, n, "torch", "f32")
    engines: dict[str, Engine] = {}
    for cache in CACHES:
        engines[f"aleator, {cache} cache"] = aleator(path, n, "native", cache)
        engines[f"llama.cpp, {cache} cache"] = llama_cpp(path, n, cache, False)
    engines["llama.cpp, f16 cache, flash attention"] = llama_cpp(path, n, "f16", True)
    right = [exact(piece) for piece in pieces]
    report.say(f"## {path.name}", "")
    report.table("", "mean, of the range:", "largest:", "divergence, nats:", "another token leads:")
    for name, engine in engines.items():
        found = [distances(a, engine(piece)) for a, piece in zip(right, pieces, strict=True)]
        mean, _, divergence, other = np.mean(found, axis=0)
        largest = max(each[1] for each in found)
        report.row(name, f"{mean:.1e}", f"{largest:.1e}", f"{divergence:.1e}", f"{other:.2%}")
    report.say("")


def main() -> None:
    asked = parser(__doc__, out="Markdown")
    asked.add_argument("-m", "--models", type=Path, nargs="+", required=True)
    asked.add_argument("-f", "--file", type=Path, required=True, help="a text")
    asked.add_argument("--windows", type=int, default=8)
    asked.add_argument("--tokens", type=int, default=256, help="of each window, 256 at most")
    given = asked.parse_args()
    if not 2 <= given.tokens <= 256 or given.windows < 1:
        asked.error("--tokens must be 2 to 256, and --windows at least 1")
    report = Report("Logits beside those of float32")
    for path in given.models:
        table(report, path, given.file.read_text(), given.windows, given.tokens)
    report.write(given.out)


if __name__ == "__main__":
    main()
