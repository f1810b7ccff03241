"""Run popular client packages against ``aleator serve``, each in its own environment.

    python tools/clients.py                      all, against the bundled model
    python tools/clients.py openai anthropic     some
    python tools/clients.py --model chat.gguf    against another model
    python tools/clients.py --record             writes what they sent to tests/server/recorded
    python tools/clients.py --report FILE        writes the results as Markdown

The scripts are tests/clients/*_client.py.  The package itself computes the expected answers here, without a
server.  Environments are made in build/clients, with the newest packages that pip finds.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from server_process import PROGRAM, ServerProcess

import aleator

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ROOT / "tests" / "clients"
RECORDED = ROOT / "tests" / "server" / "recorded"
ENVIRONMENTS = ROOT / "build" / "clients"
TEMPLATE = RECORDED / "template.jinja"
ALIAS = "local-model"

PACKAGES = {
    "openai": ("openai>=3",),
    "anthropic": ("anthropic",),
    "ollama": ("ollama",),
    "litellm": ("litellm", "mcp"),
    "langchain": ("langchain-openai",),
    "llm": ("llm",),
    "instructor": ("instructor",),
    "lm_eval": ("lm-eval[api]",),
}
"""What pip installs for each script."""

MESSAGES = [{"role": "user", "content": "Who goes there?"}]
PROMPT = "ROMEO:"
SEED, MAX_TOKENS = 3, 24
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Verona", "Mantua"]}},
    "required": ["city"],
    "additionalProperties": False,
}
QUESTIONS = [
    {"question": question, "choices": choices.split("/"), "answer": answer}
    for question, choices, answer in (
        ("O, she doth teach the", "torches/xylophone/pint/of", 0),
        ("But soft, what light through yonder", "window breaks/breaks window/ale/the the", 0),
        ("Good night, good night! Parting is such", "sweet sorrow/sorrow sweet/a pint/bread", 0),
        ("A horse, a horse, my kingdom for a", "pint/horse/the/crown of gold", 1),
        ("To be, or not to be: that is the", "answer/answers/question/questions", 2),
        ("My lord, the king", "is come/are come/xylophone/to to", 0),
        ("Romeo, Romeo, wherefore art thou", "Juliet/the/of/Romeo", 3),
        ("Now is the winter of our", "pints/discontent/window/sorrows", 1),
    )
]
HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "host"}


def environment(name: str) -> Path:
    """The Python of a client's environment, which is made if it is missing."""
    folder = ENVIRONMENTS / name
    made, python = folder / ".made", folder / "bin" / "python"
    if not made.exists():
        print(f"making {folder.relative_to(ROOT)}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        subprocess.run([*pip, *PACKAGES[name]], check=True, stderr=subprocess.DEVNULL)
        made.touch()
    return python


def wanted(model: aleator.LanguageModel, template: str | None, budget: int) -> dict[str, Any]:
    """The answers that the server must give, computed without one."""
    options: dict[str, Any] = {"seed": SEED, "max_tokens": MAX_TOKENS}
    chat_format = model.chat_format(template)
    chat = model.chat(MESSAGES, chat_template=template, reasoning_budget=budget, **options)
    return {
        "tools": chat_format.shows_tools and chat_format.foreign_mark is None,
        "thinks": "enable_thinking" in chat_format.variables,
        "chat": chat.text,
        "completion": model.generate(PROMPT, **options).text,
        "embedding": model.embed(PROMPT).tolist(),
        "scores_of_ids": [[score_of_ids(model, *pair) for pair in pairs(q)] for q in QUESTIONS],
        "scores_of_texts": [[score_of(model, *pair) for pair in pairs(q)] for q in QUESTIONS],
    }


def pairs(question: dict[str, Any]) -> list[tuple[str, str]]:
    """A prompt and a continuation for each choice."""
    return [(question["question"], f" {choice}") for choice in question["choices"]]


def score_of_ids(model: aleator.LanguageModel, prompt: str, end: str) -> tuple[list[float], bool]:
    """The score with the harness's token ids: those of the whole minus those of the prompt, without BOS."""
    first = model.tokenizer.encode(prompt, add_special=False)
    whole = model.tokenizer.encode(prompt + end, add_special=False)
    return score_of(model, list(first), list(whole[len(first) :]))


def score_of(
    model: aleator.LanguageModel, prompt: str | list[int], end: str | list[int]
) -> tuple[list[float], bool]:
    """The log-probabilities of a continuation, and whether it is greedy."""
    found = model.score([prompt], [end])
    score = found[0] if isinstance(found, list) else found
    return list(score.logprobs), score.greedy


class Recorder(ThreadingHTTPServer):
    """Forwards requests to the server, and records them.

    Attributes:
        requests: Method, path, body and status of each; only the first of several with one shape.
    """

    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), Passing)
        self.port, self.requests = port, dict[Any, dict[str, Any]]()
        self.lock = threading.Lock()

    def handle_error(self, *args: object) -> None:
        """Ignore errors: clients may disconnect, and they report themselves what is missing."""

    def note(self, method: str, path: str, body: bytes, status: int) -> None:
        """Record a request, unless one of its shape was recorded."""
        said = json.loads(body) if body else None
        made = {"method": method, "path": path, "body": said, "status": status}
        with self.lock:
            self.requests.setdefault((method, path, status, shape(said)), made)


def shape(value: object) -> object:
    """The fields of a body and the types of their values."""
    if isinstance(value, dict):
        return tuple(sorted((name, shape(each)) for name, each in value.items()))
    if isinstance(value, list):
        return "list", tuple(dict.fromkeys(shape(each) for each in value))
    return value if isinstance(value, bool) else type(value).__name__


class Passing(BaseHTTPRequestHandler):
    """One forwarded request, and its response as it arrives."""

    protocol_version = "HTTP/1.1"
    server: Recorder

    def pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        headers = {k: v for k, v in self.headers.items() if k.lower() not in HOP_BY_HOP}
        to = HTTPConnection("127.0.0.1", self.server.port)
        to.request(self.command, self.path, body, headers)
        response = to.getresponse()
        self.server.note(self.command, self.path, body, response.status)
        self.send_response_only(response.status)
        for name, value in response.getheaders():
            if name.lower() not in HOP_BY_HOP:
                self.send_header(name, value)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        while piece := response.read1(1 << 16):
            self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        self.wfile.write(b"0\r\n\r\n")
        to.close()

    do_GET = do_POST = do_DELETE = pass_on

    def log_message(self, *args: object) -> None:
        """Say nothing."""


def serving(model: str | None, template: str | None, budget: int, log: Path) -> ServerProcess:
    """``aleator serve``."""
    command = [PROGRAM, "serve", "--port", "{port}", "--alias", ALIAS, "--parallel", "8"]
    command += ["-t", "1", "-tb", "1", "--no-cache-disk"]
    command += [] if model is None else ["-m", model]
    command += [] if template is None else ["--chat-template", template]
    command += [] if budget < 0 else ["--reasoning-budget", str(budget)]
    return ServerProcess("aleator serve", command, log)


def run(
    name: str, python: Path, port: int, answers: dict[str, Any], record: bool
) -> tuple[bool, str]:
    """Run a script; return whether all of its checks passed, and what it printed."""
    with tempfile.TemporaryDirectory() as folder, Recorder(port) as recorder:
        threading.Thread(target=recorder.serve_forever, daemon=True).start()
        about = {
            "url": f"http://127.0.0.1:{recorder.server_port}", "model": ALIAS, "messages": MESSAGES,
            "prompt": PROMPT, "schema": SCHEMA, "seed": SEED, "max_tokens": MAX_TOKENS,
            "questions": QUESTIONS, "folder": folder, **answers,
        }  # fmt: skip
        given = Path(folder) / "server.json"
        given.write_text(json.dumps(about))
        made = subprocess.run(
            [python, SCRIPTS / f"{name}_client.py", given],
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
            cwd=folder,
        )
        recorder.shutdown()
    if record:
        path = RECORDED / f"{name}.json"
        requests = json.dumps(list(recorder.requests.values()), indent=1, ensure_ascii=False)
        path.write_text(requests + "\n")
    print(made.stdout, end="", flush=True)
    if made.returncode:
        print(made.stderr[-6000:], flush=True)
    return made.returncode == 0, made.stdout


def report(outputs: Sequence[str], model: aleator.LanguageModel) -> str:
    """The results as Markdown."""
    lines = [
        f"# Client packages against `aleator serve` ({model.weights.path.name})",
        "",
        f"aleator {aleator.__version__}, Python {platform.python_version()}, {platform.machine()}. Made by",
        "`make clients`. Texts, vectors and log-likelihoods are compared with those without a server.",
        "",
    ]
    for output in outputs:
        head, *rest = output.splitlines()
        checks = [f"- {line.strip()}" for line in rest if line.startswith("  ")]
        lines += [f"## {head}", "", *checks, ""]
    return "\n".join(lines)


def main() -> None:
    """Run all that was asked for; exits with 1 if a check failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(PACKAGES))
    parser.add_argument(
        "--model", help="default: the bundled one, with a template that shows tools"
    )
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--report", type=Path)
    arguments = parser.parse_args()
    names = arguments.names or list(PACKAGES)
    pythons = {name: environment(name) for name in names}
    model = aleator.load(arguments.model, n_threads=1)
    template = TEMPLATE.read_text() if arguments.model is None else None
    budget = -1 if model.chat_format(template).thinking is None else 8
    answers = wanted(model, template, budget)
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(arguments.model, template, budget, Path(folder) / "log") as server,
    ):
        made = [run(name, pythons[name], server.port, answers, arguments.record) for name in names]
    if arguments.report:
        arguments.report.write_text(report([output for _, output in made], model))
    sys.exit(0 if all(passed for passed, _ in made) else 1)


if __name__ == "__main__":
    main()
