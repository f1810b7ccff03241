"""The llm command, with the server as one of its extra models."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from checks import Server, equal, main


def llm(server: Server, *words: str) -> str:
    """What the command prints."""
    user = Path(server.folder) / "llm"
    user.mkdir(exist_ok=True)
    (user / "extra-openai-models.yaml").write_text(
        f"- model_id: local\n  model_name: {server.model}\n  api_base: {server.url}/v1\n"
        "  supports_schema: true\n  supports_tools: true\n"
        f"- model_id: local-completion\n  model_name: {server.model}\n  api_base: {server.url}/v1\n"
        "  completion: true\n"
    )
    made = subprocess.run(
        [sys.executable, "-m", "llm", *words],
        env={**os.environ, "LLM_USER_PATH": str(user), "OPENAI_API_KEY": "none"},
        input="",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if made.returncode:
        raise AssertionError(made.stderr)
    return made.stdout


def options(server: Server, n: int) -> list[str]:
    return ["-o", "seed", str(server.seed), "-o", "max_tokens", str(n)]


def prompts(server: Server) -> None:
    said = [server.messages[0]["content"], "-m", "local", *options(server, server.max_tokens)]
    equal(llm(server, *said).strip(), server.chat.strip())
    equal(llm(server, *said, "--no-stream").strip(), server.chat.strip())


def conversations(server: Server) -> None:
    assert llm(server, "Go on.", "-m", "local", "-c", *options(server, server.max_tokens))


def completions(server: Server) -> None:
    asks = [server.prompt, "-m", "local-completion", *options(server, server.max_tokens)]
    equal(llm(server, *asks).strip(), server.completion.strip())


def schemas(server: Server) -> None:
    asks = [server.messages[0]["content"], "-m", "local", *options(server, 200)]
    made = json.loads(llm(server, *asks, "--schema", json.dumps(server.schema)))
    assert made["city"] in ("Verona", "Mantua")


if __name__ == "__main__":
    main("llm", prompts, conversations, completions, schemas)
