"""``aleator serve``: it says where it listens, answers there, and ends when told to."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from aleator.cli import main
from aleator.cli.serve import curl, server_options


def started(*words: str) -> tuple[subprocess.Popen[str], list[str]]:
    """A server of its own process, and what it printed until it listened."""
    start = "import sys; from aleator.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", start, "serve", "-t", "1", "-np", "2", *words]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    printed: list[str] = []
    assert process.stderr is not None
    for line in process.stderr:
        printed.append(line.rstrip())
        if line.startswith("curl "):
            break
    return process, printed


def ended(process: subprocess.Popen[str]) -> int:
    """The exit code after SIGTERM."""
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert "Traceback" not in said, said
    return process.returncode


@pytest.mark.parametrize("where", ["port", "uds"])
def test_it_says_where_it_listens_and_answers_there(where: str, tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    process, printed = started(*(("--port", "0") if where == "port" else ("--uds", path)))
    try:
        assert "prompt cache: " in printed[0]
        assert "2 requests at a time" in printed[1]
        listens = next(x for x in printed if x.startswith("listening on ")).split()[-1]
        if where == "port":
            assert re.fullmatch(r"http://127\.0\.0\.1:[0-9]+", listens)
            http = httpx.Client(base_url=listens, timeout=60)
        else:
            transport = httpx.HTTPTransport(uds=path)
            http = httpx.Client(transport=transport, base_url="http://localhost", timeout=60)
            assert os.stat(path).st_mode & 0o777 == 0o600
        with http:
            words = shlex.split(printed[-1])  # the line for a shell is a request
            body = json.loads(words[words.index("-d") + 1])
            url = next(word for word in words if word.startswith("http"))
            response = http.post(httpx.URL(url).path, json=body)
            assert response.status_code == 200
            assert response.json()["choices"]
    finally:
        assert ended(process) == 0
    assert not Path(path).exists()


def test_a_port_in_use_is_told_before_the_model_is_loaded(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["serve", "--port", port, "-m", "no-such-model.gguf"]) == 2
    assert f"--port {port}" in capsys.readouterr().err


def test_options_are_checked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--port", "70000"]) == 2
    assert "--port" in capsys.readouterr().err
    assert main(["serve", "--port", "0", "--temp", "nan"]) == 2
    assert main(["serve", "--port", "0", "--chat-template", "{% if %}"]) != 0


def test_a_huge_context_is_refused_with_what_it_would_take(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["serve", "--port", "0", "-c", "2000000000"]) == 2
    said = capsys.readouterr().err
    assert re.search(r"8 sequences of n_ctx=2000000000: .* needs [0-9,]+ MiB", said)


def test_the_line_for_a_shell() -> None:
    assert "--unix-socket /tmp/s http://localhost/v1/completions" in curl("unix:/tmp/s", False)
    assert "x/v1/embeddings" in curl("http://x", True, writes=False)
    assert "http://127.0.0.1:80/v1/chat/completions" in curl("http://127.0.0.1:80", True)


def test_an_example_names_the_model_where_there_are_several() -> None:
    shown = curl("http://x", False, 'a "b"')
    body = shlex.split(shown)[-1]
    assert json.loads(body) == {"model": 'a "b"', "prompt": "Once upon a time", "max_tokens": 40}


def test_a_template_may_be_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "chat é.jinja"
    path.write_text("{{ messages[0].content }}", encoding="utf-8")
    assert server_options({"chat_template": str(path)}).chat_template == "{{ messages[0].content }}"
    for text in ("{{ messages }}", "x" * 10_000, str(tmp_path / "missing.jinja")):
        assert server_options({"chat_template": text}).chat_template == text
