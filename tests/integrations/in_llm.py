"""llm: the plug-in llm-aleator through its command line, texts against ``generate`` and ``chat``.

Run by tools/integrations.py in an environment with llm and packages/llm-aleator.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import aleator
from aleator.models.hub.bundled import bundled_model

SCHEMA = {
    "type": "object",
    "properties": {"yes": {"type": "boolean"}},
    "required": ["yes"],
    "additionalProperties": False,
}
FOLDER = tempfile.mkdtemp()


def llm(*arguments: str, wrong: bool = False) -> str:
    """What the command prints."""
    made = subprocess.run(
        [sys.executable, "-m", "llm", *arguments],
        capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
        env={**os.environ, "LLM_USER_PATH": FOLDER, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert (made.returncode != 0) == wrong, made.stderr[-3000:]
    return made.stderr if wrong else made.stdout


def main() -> None:
    model = aleator.load(n_threads=1)
    assert "aleator" in llm("models", "list")
    said = [{"role": "user", "content": "Who goes there?"}]
    options = (
        "-o", "max_tokens", "12", "-o", "seed", "3", "-o", "temperature", "0.7", "-o", "n_threads", "1",
    )  # fmt: skip
    text = llm("-m", "aleator", "Who goes there?", *options)
    assert text.rstrip("\n") == model.chat(
        said, max_tokens=12, seed=3, temperature=0.7
    ).text.rstrip("\n")
    print("  a prompt: the text of model.chat")
    again = llm("-m", "aleator", "And now?", "-c", *options)
    turns = [
        *said,
        {"role": "assistant", "content": text.removesuffix("\n")},
        {"role": "user", "content": "And now?"},
    ]
    second = model.chat(turns, max_tokens=12, seed=3, temperature=0.7)
    assert again.rstrip("\n") == second.text.rstrip("\n")
    print("  a second turn (-c): the text of the whole conversation")
    logged = json.loads(llm("logs", "-n", "1", "--json"))[0]
    assert logged["response_json"]["seed"] == 3
    assert logged["output_tokens"] == len(second.generation.tokens)
    print("  llm logs: seed and numbers of tokens")
    made = json.loads(
        llm("-m", "aleator", "Say yes.", "--schema", json.dumps(SCHEMA), *options[3:])
    )
    assert isinstance(made["yes"], bool)
    print("  --schema: JSON of the schema")
    assert "temperatur" in llm("-m", "aleator", "x", "-o", "temperatur", "1", wrong=True)
    assert "max_tokens=-7" in llm("-m", "aleator", "x", "-o", "max_tokens", "-7", wrong=True)
    print("  unknown options and values out of range are refused by name")
    copy = Path(FOLDER) / "small.gguf"
    copy.write_bytes(bundled_model().read_bytes())
    assert llm("aleator", "add", str(copy), "--name", "small").strip() == "aleator/small"
    assert llm("-m", "aleator/small", "Who goes there?", *options) == text
    assert "small" in llm("aleator", "list")
    vector = json.loads(llm("embed", "-m", "aleator/small", "-c", "two pints of ale"))
    assert vector == model.embed("two pints of ale").tolist()
    llm("aleator", "remove", "small")
    assert "small" not in llm("aleator", "list")
    assert "Error" in llm("aleator", "add", __file__, wrong=True)
    print("  llm aleator add, list, remove; vectors equal those of model.embed")


if __name__ == "__main__":
    print(f"llm {version('llm')}")
    main()
