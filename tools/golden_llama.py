"""Write tests/golden/*.json: results of llama.cpp's own samplers, through llama-cpp-python.

python tools/golden_llama.py [folder]

A case names a chain (our sampler names and parameters), a row of logits (golden_rows.py) and the tokens
accepted before.  For every application of the chain the file holds the number of candidates, the first ids,
the flag `sorted`, the chosen token, and a digest over all ids, logits and p, bit for bit.  A run holds its
tokens and the digest of the last array.  Nothing here comes from Aleator.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.metadata
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import llama_cpp as llama
import numpy as np
from golden_rows import row
from llama_peer import vocabulary
from numpy.typing import NDArray

Chain = list[tuple[str, dict[str, Any]]]
Row = tuple[str, int, int, int]
CANDIDATE = np.dtype([("id", "<i4"), ("logit", "<f4"), ("p", "<f4")])
FOLDER = Path(__file__).parent.parent / "tests" / "golden"
MODEL = Path(__file__).parent.parent / "src" / "aleator" / "data" / "shakespeare.gguf"


class CandidateArray(ctypes.Structure):
    """llama_token_data_array, with plain types."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("size", ctypes.c_size_t),
        ("selected", ctypes.c_int64),
        ("sorted", ctypes.c_bool),
    )


_apply = ctypes.CDLL(
    str(next(Path(llama.__file__).parent.glob("lib/libllama.so")))
).llama_sampler_apply
_apply.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
_apply.restype = None


class Reference:
    """A llama.cpp sampler chain for a vocabulary of n tokens."""

    def __init__(self, chain: Chain, n: int, vocab: Any = None) -> None:
        self.vocab = vocab
        self.chain = llama.llama_sampler_chain_init(llama.llama_sampler_chain_default_params())
        for name, values in chain:
            llama.llama_sampler_chain_add(self.chain, self._sampler(name, values, n))

    def _sampler(self, name: str, v: dict[str, Any], n: int) -> Any:
        if name == "dry":
            texts = [t.encode() for t in v.get("dry_sequence_breakers", [])]
            return llama.llama_sampler_init_dry(
                self.vocab, v["dry_multiplier"], v["dry_base"], v["dry_allowed_length"],
                v["dry_penalty_last_n"], (ctypes.c_char_p * max(1, len(texts)))(*texts), len(texts),
            )  # fmt: skip
        if name == "logit_bias":
            biases: list[dict[str, Any]] = [
                llama.llama_logit_bias(t, float(b)) for t, b in v["logit_bias"]
            ]
            return llama.llama_sampler_init_logit_bias(
                n, len(biases), (llama.llama_logit_bias * len(biases))(*biases)
            )
        keep = v.get("min_keep", 0)
        make: dict[str, tuple[Any, ...]] = {
            "greedy": (llama.llama_sampler_init_greedy,),
            "dist": (llama.llama_sampler_init_dist, v.get("seed")),
            "top_k": (llama.llama_sampler_init_top_k, v.get("top_k")),
            "top_p": (llama.llama_sampler_init_top_p, v.get("top_p"), keep),
            "min_p": (llama.llama_sampler_init_min_p, v.get("min_p"), keep),
            "typical_p": (llama.llama_sampler_init_typical, v.get("typical_p"), keep),
            "top_n_sigma": (llama.llama_sampler_init_top_n_sigma, v.get("top_n_sigma")),
            "infill": (llama.llama_sampler_init_infill, self.vocab),
            "temperature": (
                llama.llama_sampler_init_temp_ext, v.get("temperature"), v.get("dynatemp_range", 0),
                v.get("dynatemp_exponent", 1),
            ),
            "xtc": (
                llama.llama_sampler_init_xtc, v.get("xtc_probability"), v.get("xtc_threshold"), keep,
                v.get("seed"),
            ),
            "mirostat": (
                llama.llama_sampler_init_mirostat, n, v.get("seed"), v.get("mirostat_tau"),
                v.get("mirostat_eta"), v.get("mirostat_m", 100),
            ),
            "mirostat_v2": (
                llama.llama_sampler_init_mirostat_v2, v.get("seed"), v.get("mirostat_tau"),
                v.get("mirostat_eta"),
            ),
            "penalties": (
                llama.llama_sampler_init_penalties, n, v.get("penalty_last_n", 64),
                v.get("repetition_penalty", 1.0), v.get("frequency_penalty", 0.0),
                v.get("presence_penalty", 0.0),
            ),
            "adaptive_p": (
                llama.llama_sampler_init_adaptive_p, v.get("adaptive_target"), v.get("adaptive_decay"),
                v.get("seed"),
            ),
        }  # fmt: skip
        function, *arguments = make[name]
        return function(*arguments)

    def apply(self, logits: NDArray[np.float32]) -> tuple[NDArray[Any], int, bool]:
        """The remaining entries, the index of the chosen one or -1, and the flag."""
        entries = np.zeros(len(logits), CANDIDATE)
        entries["id"] = np.arange(len(logits))
        entries["logit"] = logits
        array = CandidateArray(entries.ctypes.data, len(logits), -1, False)
        _apply(ctypes.cast(self.chain, ctypes.c_void_p), ctypes.addressof(array))
        first = (array.data - entries.ctypes.data) // CANDIDATE.itemsize
        return entries[first : first + array.size], array.selected, array.sorted

    def accept(self, token: int) -> None:
        """Accept a token."""
        llama.llama_sampler_accept(self.chain, token)


def digest(entries: NDArray[Any]) -> str:
    """Digest of all ids, then of all bits of the logits, then of p."""
    hashed = hashlib.sha256()
    for field in ("id", "logit", "p"):
        hashed.update(np.ascontiguousarray(entries[field]).tobytes())
    return hashed.hexdigest()[:16]


def applied(
    chain: Chain, which: Row, before: tuple[int, ...], times: int, vocab: Any
) -> dict[str, Any]:
    """A case: the chain applied some times to fresh candidates of one row, nothing accepted in between."""
    reference = Reference(chain, which[1], vocab)
    for token in before:
        reference.accept(token)
    steps = []
    for _ in range(times):
        entries, place, is_sorted = reference.apply(row(*which))
        steps.append({
            "size": len(entries),
            "first": entries["id"][:6].tolist(),
            "sorted": is_sorted,
            "selected": int(entries["id"][place]) if place >= 0 else None,
            "digest": digest(entries),
        })  # fmt: skip
    return {"chain": chain, "row": which, "accepted": before, "steps": steps}


def ran(chain: Chain, family: str, n: int, q: int, length: int, vocab: Any) -> dict[str, Any]:
    """A case: `length` tokens, each drawn from the next row and accepted."""
    reference = Reference(chain, n, vocab)
    tokens, sizes = [], []
    for step in range(length):
        entries, place, _ = reference.apply(row(family, n, q, step % 7))
        tokens.append(int(entries["id"][place]))
        sizes.append(len(entries))
        reference.accept(tokens[-1])
    return {
        "chain": chain, "rows": (family, n, q), "tokens": tokens, "sizes": sizes, "digest": digest(entries),
    }  # fmt: skip


FAMILIES = ("spread", "ties", "equal", "narrow", "shifted", "short", "rising", "masked", "lonely")
FINITE = ("spread", "ties", "equal", "narrow", "shifted", "short", "rising")
SIZES = (1, 2, 7, 100, 129, 1000, 1025, 4099)
LARGE: tuple[Row, ...] = (("spread", 32000, 8, 1), ("short", 128256, 8, 2), ("ties", 262144, 3, 0))
DIST = ("dist", {"seed": 11})


def grid(
    values: list[dict[str, Any]], families: tuple[str, ...] = FAMILIES
) -> Iterator[tuple[dict[str, Any], Row]]:
    """Every parameter value on a rotating choice of rows, and every row with a rotating value."""
    rows: list[Row] = [(f, n, 2, 3) for n in SIZES for f in families if f != "masked" or n > 7]
    rows += [r for r in LARGE if r[0] in families]
    for i, value in enumerate(values):
        for j in range(3):
            yield value, rows[(7 * i + 23 * j) % len(rows)]
    for i, which in enumerate(rows):
        yield values[i % len(values)], which


def single(name: str, values: list[dict[str, Any]], families: tuple[str, ...] = FAMILIES, draws: int = 1,
           before: tuple[Chain, ...] = ([],), after: Chain | None = None) -> list[dict[str, Any]]:  # fmt: skip
    """Cases of one sampler, alone or after others."""
    return [
        applied([*before[i % len(before)], (name, value), *(after or [])], which, (), draws, None)
        for i, (value, which) in enumerate(grid(values, families))
    ]


KEEPS = [0, 1, 3, 50, 300]
SORTED: tuple[Chain, ...] = (
    [],
    [("top_k", {"top_k": 60})],
    [],
    [("temperature", {"temperature": 1.7})],
)


def truncations() -> dict[str, list[dict[str, Any]]]:
    """Samplers that cut, and greedy and dist."""
    fractions = [0.0, 0.01, 0.05, 0.1, 0.3, 0.5, 0.7, 0.9, 0.95, 0.99, 0.9999, 1.0]
    keeping = [{"min_keep": KEEPS[i % 5]} for i in range(12)]
    p = [{"top_p": f, **k} for f, k in zip(fractions, keeping, strict=True)]
    m = [{"min_p": f, **k} for f, k in zip(fractions, keeping, strict=True)]
    t = [{"typical_p": f, **k} for f, k in zip(fractions, keeping, strict=True)]
    k = [{"top_k": n} for n in (0, 1, 2, 5, 40, 64, 127, 128, 129, 200, 256, 1000, 2**31 - 1)]
    n = [{"top_n_sigma": s} for s in (0.0, 0.3, 1.0, 1.5, 2.0, 5.0)]
    return {
        "greedy": single("greedy", [{}], before=SORTED),
        "dist": single(
            "dist", [{"seed": s} for s in (0, 1, 42, 2**32 - 2)], draws=3, before=SORTED
        ),
        "top_k": single("top_k", k),
        "top_p": single("top_p", p, before=SORTED),
        "min_p": single("min_p", m, before=SORTED),
        "typical_p": single("typical_p", t, FINITE, before=SORTED[:2]),
        "top_n_sigma": single("top_n_sigma", n, before=SORTED, after=[DIST]),
    }


def changes() -> dict[str, list[dict[str, Any]]]:
    """Samplers that change logits, XTC, and those with state."""
    temperatures = [
        {"temperature": t, "dynatemp_range": r, "dynatemp_exponent": e}
        for t, r, e in ((0.0, 0.0, 1.0), (0.7, 0.0, 1.0), (1.0, 0.0, 1.0), (3.0, 0.0, 1.0), (0.8, 0.5, 1.0),
                        (0.0, 0.5, 1.0), (1.0, 1.0, 2.5), (1.5, 2.0, 0.0), (0.001, 0.0, 1.0))
    ]  # fmt: skip
    xtc = [
        {"xtc_probability": p, "xtc_threshold": t, "min_keep": k, "seed": s}
        for p, t, k, s in ((1.0, 0.1, 0, 0), (0.5, 0.02, 0, 7), (1.0, 0.001, 0, 1), (0.5, 0.2, 40, 3),
                           (0.9, 0.5, 0, 9), (1.0, 0.6, 0, 2), (0.0, 0.1, 0, 5))
    ]  # fmt: skip
    mirostat_v2 = [
        {"mirostat_tau": t, "mirostat_eta": e, "seed": s}
        for t, e, s in ((3.0, 0.1, 42), (5.0, 0.1, 1), (0.5, 0.3, 0), (8.0, 1.0, 9))
    ]
    mirostat = [{**v, "mirostat_tau": min(v["mirostat_tau"], 3.0), "mirostat_m": m}
                for v, m in zip(mirostat_v2, (100, 100, 20, 2), strict=True)]  # fmt: skip
    adaptive = [
        {"adaptive_target": t, "adaptive_decay": d, "seed": s}
        for t, d, s in (
            (0.3, 0.9, 5),
            (-1.0, 0.9, 42),
            (0.0, 0.0, 1),
            (1.0, 0.99, 2),
            (0.05, 0.5, 3),
        )
    ]
    biases: list[dict[str, Any]] = [
        {"logit_bias": [(0, 3.0)]},
        {"logit_bias": [(0, "-inf"), (3, -1.5), (5, 2.0)]},
    ]
    return {
        "temperature": single("temperature", temperatures, before=SORTED[:2]),
        "xtc": single("xtc", xtc, draws=4, before=SORTED),
        "mirostat": [
            *single("mirostat", mirostat, ("spread", "short", "masked"), draws=3),
            *[ran([("temperature", {"temperature": 0.9}), ("mirostat", v)], "spread", 2000, 6, 160, None)
              for v in mirostat[:2]],
        ],
        "mirostat_v2": [
            *single("mirostat_v2", mirostat_v2, draws=3),
            *[ran([("temperature", {"temperature": 0.9}), ("mirostat_v2", v)], "spread", 2000, 5, 160, None)
              for v in mirostat_v2],
        ],
        "adaptive_p": [
            *single("adaptive_p", adaptive, draws=3, before=SORTED),
            *[ran([("min_p", {"min_p": 0.02}), ("adaptive_p", v)], "spread", 1000, 4, 160, None)
              for v in adaptive],
        ],
        "logit_bias": [
            applied([("logit_bias", value), *after], (family, n, 2, 1), (), 1, None)
            for value in biases for after in ([], [("top_k", {"top_k": 9})], [DIST])
            for family in ("spread", "ties", "short") for n in (7, 200, 5000)
        ],
    }  # fmt: skip


def histories(vocab: Any) -> dict[str, list[dict[str, Any]]]:
    """Samplers that depend on accepted tokens, and whole chains."""
    past = tuple((i * i * 7 + i // 3) % 11 for i in range(90))
    penalties = [
        {"penalty_last_n": n, "repetition_penalty": r, "frequency_penalty": f, "presence_penalty": p}
        for n, r, f, p in ((64, 1.3, 0.2, 0.1), (3, 2.0, 0.0, 0.0), (64, 1.0, -0.5, 0.0), (500, 0.7, 0.0, 0.4),
                           (0, 1.5, 0.5, 0.5), (20, 1.1, 1.0, -1.0))
    ]  # fmt: skip
    dry = [
        {"dry_multiplier": m, "dry_base": b, "dry_allowed_length": a, "dry_penalty_last_n": n,
         "dry_sequence_breakers": texts}
        for m, b, a, n, texts in ((0.8, 1.75, 2, 64, []), (1.0, 1.1, 2, 5, []), (2.0, 3.0, 1, 500, []),
                                  (-0.5, 1.75, 0, 64, []), (0.8, 1.75, 2, 64, ["\n", ":", '"', "*"]),
                                  (5.0, 1.0, 3, 300, ["the end"]))
    ]  # fmt: skip
    pasts = (past, past[:5] * 9, (4,) * 70, (0, 1, 2, 0, 1), (7,), ())
    cut: Chain = [("top_k", {"top_k": 40}), ("top_p", {"top_p": 0.95}), ("min_p", {"min_p": 0.05})]
    soft: Chain = [*cut, ("temperature", {"temperature": 0.8}), ("dist", {"seed": 1234})]
    # Not both top_n_sigma and typical_p: tokens that one masks break the other's entropy in llama.cpp.
    everything: Chain = [
        ("penalties", penalties[0]), ("dry", dry[0]), ("top_n_sigma", {"top_n_sigma": 4.0}),
        ("top_k", {"top_k": 50}), *cut[1:], ("xtc", {"xtc_probability": 0.5, "xtc_threshold": 0.1, "seed": 99}),
        ("temperature", {"temperature": 1.2, "dynatemp_range": 0.4, "dynatemp_exponent": 1.0}),
        ("dist", {"seed": 99}),
    ]  # fmt: skip
    typical: Chain = [*everything[:2], cut[0], ("typical_p", {"typical_p": 0.9}), *everything[4:]]
    hot: Chain = [
        ("temperature", {"temperature": 2.0}),
        ("min_p", {"min_p": 0.1}),
        ("dist", {"seed": 9}),
    ]
    runs: list[Chain] = [
        soft, [("penalties", penalties[0]), ("dry", dry[0]), *soft], everything, typical, hot,
        [hot[1], hot[0], hot[2]],
        [("penalties", penalties[3]), *soft], [("dry", dry[4]), ("dist", {"seed": 5})],
        [("top_k", {"top_k": 200}), ("xtc", {"xtc_probability": 0.7, "xtc_threshold": 0.05, "seed": 3}),
         ("dist", {"seed": 3})],
        [*cut, ("adaptive_p", {"adaptive_target": 0.2, "adaptive_decay": 0.9, "seed": 8})],
        [("penalties", penalties[1]), ("greedy", {})],
    ]  # fmt: skip
    return {
        "penalties": [
            applied([*before, ("penalties", v)], (family, n, 2, 0), past_tokens, 1, vocab)
            for i, v in enumerate(penalties) for j, past_tokens in enumerate(pasts)
            for before in ([cut[:1], []][(i + j) % 2],)
            for family, n in ((("spread", 12), ("masked", 400)) if (i + j) % 3 else (("ties", 2000),))
        ],
        "dry": [
            applied([*before, ("dry", v)], (family, 2048, 2, 0), past_tokens, 1, vocab)
            for i, v in enumerate(dry)
            for j, past_tokens in enumerate((*pasts, (12, 80, 11, 12, 80), (300, 25, 9, 300, 25)))
            for before in ([cut[:1], []][(i + j) % 2],) for family in ("spread",)
        ],
        "infill": [
            applied([("logit_bias", {"logit_bias": [(t, b + (i * step) % spread) for i, t in enumerate(ids)]}),
                     *before, ("infill", {}), DIST], ("spread", 2048, 9, 0), (), 1, vocab)
            for before in (cut[:2], [("top_k", {"top_k": 300})])
            for ids in families(vocab)
            for b, step, spread in ((40, 0, 1), (40, 0.3, 1), (40, 0.7, 2), (60, 1, 3),
                                    (60, 0.01, 1), (35, 5, 7))
        ],
        "chain": [
            *[ran(chain, family, n, q, 160, vocab) for chain in runs
              for family, n, q in (("spread", 1000, 4), ("spread", 2048, 5), ("short", 4099, 6))],
            *[ran(chain, "spread", n, 8, 24, vocab) for chain in runs for n in (32000, 151936)],
            *[ran(chain, "ties", 262144, 3, 3, vocab) for chain in runs],
        ],
    }  # fmt: skip


def families(vocab: Any) -> list[list[int]]:
    """Tokens with a common prefix; some groups contain one that ends generation."""
    buffer = ctypes.create_string_buffer(256)
    pieces = []
    for token in range(llama.llama_vocab_n_tokens(vocab)):
        length = llama.llama_token_to_piece(vocab, token, buffer, 256, 0, False)
        pieces.append(buffer.raw[: max(0, length)])
    found = []
    for start in (b" th", b" w", b"s", b"\n", b" un", b"T"):
        ids = [i for i, piece in enumerate(pieces) if piece.startswith(start)]
        found += [ids[:2], ids[:5], ids[:20], sorted([*ids[:6], llama.llama_vocab_eos(vocab)])]
    return [ids for ids in found if ids]


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    vocab = vocabulary(MODEL)
    made = {
        "generator": "tools/golden_llama.py",
        "llama_cpp_python": importlib.metadata.version("llama-cpp-python"),
        "libllama": sorted(p.name for p in Path(llama.__file__).parent.glob("lib/libllama.so.*"))[
            -1
        ],
    }
    for stem, cases in {**truncations(), **changes(), **histories(vocab)}.items():
        lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
        head = json.dumps(made)[1:-1]
        (folder / f"{stem}.json").write_text(f'{{{head}, "cases": [\n{lines}\n]}}\n')
        print(f"{stem}: {len(cases)} cases")


if __name__ == "__main__":
    main()
