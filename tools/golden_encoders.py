"""Records the vectors and scores of llama-server for small random encoders (encoder_models.py).

    python tools/golden_encoders.py --server build/bin/llama-server [NAME ...]

Needs llama.cpp's server.  Everything is in float32, without flash attention.
"""

from __future__ import annotations

import json
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
from encoder_models import ENCODERS, write_encoder, write_reranker
from run_report import parser
from server_process import ServerProcess

DATA = Path("tests/data/encoders")
TEXTS = (
    "The king's sword, and the queen!",
    "a",
    "To be or not to be, that is the question: whether tis nobler in the mind",
    "Née   Ærøskøbing\n\tloved 42 dogs",
    "good friends, playing on the stage in the night of the storm at sea, lords and ladies",
)
QUERY = "who was the queen's friend"
DOCUMENTS = (
    "The lord was her friend.",
    "bread and ale",
    "A cat is not a dog, said the king to the queen",
)


def asked(server: ServerProcess, path: str, body: dict[str, Any]) -> Any:
    """The answer to a request."""
    request = urllib.request.Request(
        server.url(path), json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


def recorded(program: str, path: Path, pooling: str, log: Path) -> dict[str, Any]:
    """Vectors, or scores where pooling is "rank", and the tokens of the texts."""
    kind = ("--reranking",) if pooling == "rank" else ("--embedding", "--pooling", pooling)
    plain = ("-fa", "off", "-fit", "off", "-t", "1", "--no-warmup", "-np", "1")
    command = (program, "-m", str(path), "--port", "{port}", *plain, *kind)
    made: dict[str, Any] = {}
    with ServerProcess("llama-server", command, log) as server:
        if pooling == "rank":
            body = {"query": QUERY, "documents": list(DOCUMENTS)}
            answer = asked(server, "/v1/rerank", body)
            scores = {each["index"]: each["relevance_score"] for each in answer["results"]}
            made["scores"] = np.array([scores[i] for i in range(len(DOCUMENTS))], np.float32)
            return made
        answer = asked(server, "/embedding", {"content": list(TEXTS), "embd_normalize": -1})
        rows = [each["embedding"] for each in sorted(answer, key=lambda each: each["index"])]
        made[f"vectors-{pooling}"] = np.array([row[0] for row in rows], np.float32)
        for i, text in enumerate(TEXTS):
            asking: dict[str, Any] = {"content": text, "add_special": True}
            made[f"tokens-{i}"] = np.array(asked(server, "/tokenize", asking)["tokens"], np.int32)
    return made


def main() -> None:
    """Write the files."""
    options = parser(__doc__)
    options.add_argument("--server", required=True)
    options.add_argument("names", nargs="*", default=[])
    given = options.parse_args()
    DATA.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for name in given.names or [*ENCODERS, "qwen3"]:
            if name == "qwen3":
                path = write_reranker(Path(folder) / "qwen3.gguf")
                scores = recorded(given.server, path, "rank", Path(folder) / "log")
                np.savez_compressed(DATA / "qwen3.npz", **scores)
                continue
            spec = ENCODERS[name]
            path = write_encoder(Path(folder) / f"{name}.gguf", spec)
            log = Path(folder) / "log"
            made: dict[str, Any] = {}
            for pooling in ("mean", "cls", "last", *(["rank"] if spec.head else [])):
                made |= recorded(given.server, path, pooling, log)
            np.savez_compressed(DATA / f"{name}.npz", **made)
            print(name, {key: value.shape for key, value in made.items()})


if __name__ == "__main__":
    main()
