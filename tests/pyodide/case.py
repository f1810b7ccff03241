"""What a browser's Python and this one must print alike: draws, logits, texts, an error."""

import hashlib
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

import aleator
from aleator.generate import Batch, Context

CHAINS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.7, "top_k": 40, "top_p": 0.9, "min_p": 0.05},
    {"repetition_penalty": 1.2, "no_repeat_ngram_size": 2, "xtc_probability": 0.5, "typical_p": 0.9},
    {"mirostat": 2, "mirostat_tau": 4.0},
    {"adaptive_target": 0.3, "smoothing_factor": 0.4},
    {"top_h": 0.4, "draw": "gumbel"},
)  # fmt: skip


def row(n: int, number: int) -> NDArray[np.float32]:
    """Logits from -12 to 12 that no library has drawn."""
    mixed = (np.arange(n, dtype=np.uint64) + np.uint64(n * number)) * np.uint64(2654435761)
    return ((mixed >> np.uint64(7)) % np.uint64(24001)).astype(np.float32) / np.float32(1000) - 12


for given in CHAINS:
    chain = aleator.SamplingParams(seed=7, **given).chain()
    print([chain.sample(row(1000, number)) for number in range(50)])
model = aleator.load()
context = Context(model, n_ctx=64)
logits = np.asarray(context.decode(Batch.one(model.prompt_tokens("To be, or not to be"), 0)))
print(hashlib.sha256(logits.tobytes()).hexdigest())
for seed in range(3):
    print(model.generate("ROMEO:", seed=seed, max_tokens=60).text)
print(model.generate("Age: ", grammar='root ::= [1-9] [0-9]? "\\n"', seed=1, max_tokens=5).text)
guessing = aleator.load(model_draft="bundled")
print(guessing.generate("ROMEO:", max_tokens=40, temperature=0, spec_type="draft").text)
try:
    aleator.SamplingParams(top_p=2)
except aleator.ParameterError as error:
    print(error)
try:
    aleator.load(n_threads=4 if sys.platform == "emscripten" else 2**20)
except aleator.ParameterError as error:
    print(str(error).split("=")[0], "give" in str(error))
