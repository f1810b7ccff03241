"""Sends llama-server and ``aleator serve`` the same requests, and reports where the answers differ.

    python tools/compare_server.py --llama-server build/bin/llama-server --model model.gguf [--model ...]
                                   [--prompts N] [--n-predict N] [--threads N] [--out FILE.md]

Texts are greedy, with ``numerics="llama.cpp"``.  The two decoders compute logits that differ in their low
bits, so texts are compared up to the first step whose best two tokens are closer than the two servers'
log-probabilities are apart.  A text that differs before that step is a difference, and so is any other field.
Refusals are compared by status and kind.  Exit code 1: some differences are unexplained.

Compared: token ids, texts, stop types and words, counts and usage, stop strings, grammars, sampled texts
(shown, not counted: the last bit can flip a draw near a boundary), tokenisation and back, rendered templates,
streams, errors, and the sets of fields.
"""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import jsonschema
from compared_requests import GRAMMARS, PROMPTS, REFUSED, SCHEMAS, TEXTS
from run_report import parser, table_head, table_row
from server_process import PROGRAM, ServerProcess


@dataclass
class Server:
    """A server under test; ``ask`` gives status and body."""

    url: str
    http: httpx.Client

    def ask(self, path: str, body: object) -> tuple[int, Any]:
        """POST; text instead of JSON is sent as it is."""
        raw = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        headers = {"content-type": "application/json"}
        response = self.http.post(self.url + path, content=raw, headers=headers)
        return response.status_code, _json(response.text)

    def get(self, path: str) -> Any:
        """GET; the body."""
        return _json(self.http.get(self.url + path).text)

    def events(self, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        """The events of a stream."""
        with self.http.stream("POST", self.url + path, json={**body, "stream": True}) as response:
            lines = [line[6:] for line in response.iter_lines() if line.startswith("data: ")]
        return [json.loads(line) for line in lines if line != "[DONE]"]


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


@dataclass
class Outcome:
    """The results of the comparison.

    Attributes:
        counts: By kind: (equal, compared).
        notes: Explained differences.
        wrong: Unexplained differences.
    """

    counts: dict[str, Counter[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def count(self, kind: str, how: str) -> None:
        """Count one comparison."""
        self.counts.setdefault(kind, Counter())[how] += 1

    def same(self, kind: str, what: str, theirs: object, ours: object) -> bool:
        """Compare two values."""
        equal = theirs == ours
        self.count(kind, "equal" if equal else "different")
        if not equal:
            self.wrong.append(
                f"{kind}: {what}: llama-server {theirs!r:.160}, aleator {ours!r:.160}"
            )
        return equal


GREEDY: dict[str, Any] = {"temperature": 0.0, "cache_prompt": False, "return_tokens": True}
SAME = (
    "content", "tokens", "stop_type", "stopping_word", "tokens_predicted", "truncated",
    "has_new_line",
)  # fmt: skip


class Comparison:
    """Two servers with one model.

    Args:
        llama: llama-server.
        ours: Aleator's server.
        n_predict: Tokens of a text.
    """

    def __init__(self, llama: Server, ours: Server, n_predict: int) -> None:
        self.llama, self.ours, self.n_predict = llama, ours, n_predict
        self.found = Outcome()

    def both(self, body: dict[str, Any], path: str = "/completion") -> tuple[Any, Any]:
        """The two answers; ours computes with llama.cpp's numerics."""
        status, theirs = self.llama.ask(path, body)
        mine_status, mine = self.ours.ask(path, {**body, "numerics": "llama.cpp"})
        if status != 200 or mine_status != 200:
            raise SystemExit(
                f"{path} {body!r:.200}: {status} {theirs!r:.300}; {mine_status} {mine!r:.300}"
            )
        return theirs, mine

    def text(self, kind: str, what: str, body: dict[str, Any]) -> str:
        """Compare one text; return ours."""
        theirs, mine = self.both({**GREEDY, "n_probs": 10, **body})
        found = self.found
        a, b = theirs["tokens"], mine["tokens"]
        if _ends(theirs["stop_type"], a, b):
            a = a[: len(b)]  # llama-server draws the end of a text that a grammar has completed
        step = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
        if step is not None:
            if step >= len(
                theirs["completion_probabilities"]
            ):  # it leaves out those of a stop string
                theirs, mine = self.both({**GREEDY, "n_probs": 10, **body, "stop": []})
            gap, apart = _margins(theirs, mine, step)
            told = f"{kind} {what}: token {step}: best two {gap:.2g} apart, logits {apart:.2g}"
            tie = gap <= apart
            found.count(kind, "equal up to a tie" if tie else "different")
            (found.notes if tie else found.wrong).append(told)
            return str(mine["content"])
        ended = a == b and len(theirs["tokens"]) > len(b)
        names = [n for n in SAME if not (ended and n in ("tokens", "tokens_predicted"))]
        names += ["prompt", "tokens_evaluated"]
        found.same(kind, what, {n: theirs[n] for n in names}, {n: mine[n] for n in names})
        return str(mine["content"])

    def all(self, prompts: Sequence[str]) -> Outcome:
        """Compare everything."""
        base = {"n_predict": self.n_predict}
        for i, prompt in enumerate(prompts):
            made = self.text("greedy", f"prompt {i}", {**base, "prompt": prompt})
            if len(made) > 12:
                stop = made[len(made) // 2 :][:3]
                self.text(
                    "stop strings", f"prompt {i}", {**base, "prompt": prompt, "stop": ["@@@", stop]}
                )
        for i, grammar in enumerate(GRAMMARS):
            self.text(
                "grammars", f"grammar {i}", {**base, "prompt": prompts[0], "grammar": grammar}
            )
        for i, schema in enumerate(SCHEMAS):
            self.schema(i, {**base, "prompt": prompts[0], "json_schema": schema, **GREEDY})
        self.text("lengths", "n_predict 1", {"prompt": prompts[0], "n_predict": 1})
        self.nothing(prompts[0])
        for seed, prompt in enumerate(prompts):
            self.sampled(seed, prompt)
        self.tokens()
        self.templates()
        self.openai(prompts)
        self.streams(prompts[0])
        self.errors()
        self.fields(prompts[0])
        return self.found

    def schema(self, i: int, body: dict[str, Any]) -> None:
        """JSON of a schema; white space and open choices may differ between the servers."""
        made = self.both({**body, "n_predict": 200})
        if any(each["stop_type"] == "limit" for each in made):
            self.found.count("JSON schemas", "cut off")
            return
        valid = [_valid(each["content"], body["json_schema"]) for each in made]
        self.found.same(
            "JSON schemas", f"schema {i}: {[m['content'] for m in made]}", [True, True], valid
        )

    def nothing(self, prompt: str) -> None:
        """Ask for no tokens; llama-server reports none, but returns one."""
        theirs, mine = self.both({**GREEDY, "prompt": prompt, "n_predict": 0})
        self.found.same(
            "lengths", "n_predict 0, ours", ("", 0), (mine["content"], mine["tokens_predicted"])
        )
        if theirs["tokens_predicted"]:
            self.found.notes.append(
                f"n_predict 0: llama-server gives {theirs['tokens_predicted']} token"
            )

    def sampled(self, seed: int, prompt: str) -> None:
        """Draws with one seed and llama.cpp's default chain."""
        body = {"prompt": prompt, "n_predict": self.n_predict, "seed": seed, "cache_prompt": False}
        theirs, mine = self.both({**body, "return_tokens": True})
        equal = theirs["tokens"] == mine["tokens"]
        self.found.count("sampled, one seed", "equal" if equal else "go another way somewhere")

    def tokens(self) -> None:
        """Tokens of texts, and texts of tokens."""
        for text in TEXTS:
            for more in (
                {},
                {"add_special": True},
                {"parse_special": False},
                {"with_pieces": True},
            ):
                body = {"content": text, **more}
                theirs, mine = (s.ask("/tokenize", body)[1] for s in (self.llama, self.ours))
                self.found.same("tokens", f"{text!r:.30} {more}", theirs, mine)
            ids = self.llama.ask("/tokenize", {"content": text})[1]["tokens"]
            theirs, mine = (
                s.ask("/detokenize", {"tokens": ids})[1] for s in (self.llama, self.ours)
            )
            self.found.same("texts of tokens", repr(text)[:30], theirs["content"], mine["content"])

    def templates(self) -> None:
        """Conversations as text."""
        if not self.llama.get("/props").get("chat_template"):
            return
        talk = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
        for messages in (
            talk[:1],
            [*talk, *talk[:1]],
            [{"role": "system", "content": "Be kind"}, talk[0]],
        ):
            body = {"messages": messages}
            theirs, mine = (s.ask("/apply-template", body)[1] for s in (self.llama, self.ours))
            self.found.same("templates", f"{len(messages)} messages", theirs, mine)

    def openai(self, prompts: Sequence[str]) -> None:
        """Usage and ends of OpenAI's endpoints; and whether each server's text is its own greedy one."""
        kind = "OpenAI's endpoints"
        for prompt in prompts[:4]:
            body: dict[str, Any] = {"prompt": prompt, "max_tokens": 6, "temperature": 0.0}
            told = self.both(body, "/v1/completions")
            self.found.same(f"{kind}: usage", "/v1/completions", *map(_usage, told))
            alone = self.both({**GREEDY, **body})
            for each, own in zip(told, alone, strict=True):
                self.found.same(f"{kind}: text", prompt, own["content"], each["choices"][0]["text"])
        if self.llama.get("/props").get("chat_template"):
            body = {"messages": [{"role": "user", "content": "Count to three."}], "max_tokens": 6}
            told = self.both({**body, "temperature": 0.0}, "/v1/chat/completions")
            self.found.same(f"{kind}: usage", "/v1/chat/completions", *map(_usage, told))

    def streams(self, prompt: str) -> None:
        """Whether a stream has the content of a response, and in which fields."""
        body = {**GREEDY, "prompt": prompt, "n_predict": 12}
        whole = self.both(body)
        fields = []
        for server, alone in zip((self.llama, self.ours), whole, strict=True):
            more = {"numerics": "llama.cpp"} if server is self.ours else {}
            made = server.events("/completion", {**body, **more})
            fields.append(made[0].keys())
            text = "".join(each["content"] for each in made)
            tokens = [token for each in made for token in each["tokens"]]
            expected = alone["content"], alone["tokens"], alone["stop_type"]
            self.found.same(
                "streams", "text, tokens, end", expected, (text, tokens, made[-1]["stop_type"])
            )
        self.found.same("streams", "fields that we lack", [], sorted(fields[0] - fields[1]))

    def errors(self) -> None:
        """Refusals: by both with the same status and kind, or only by us, which is stricter."""
        for path, body in REFUSED:
            (a, theirs), (b, mine) = (s.ask(path, body) for s in (self.llama, self.ours))
            what = f"{path} {body!r:.90}"
            if 200 <= a < 300 <= b < 500:
                self.found.count("errors", "stricter here")
                self.found.notes.append(f"refused here alone ({b}): {what}")
            elif (a, _error(theirs)) == (b, _error(mine)):
                self.found.count("errors", "equal")
            else:
                how = "both refuse, otherwise" if a >= 300 and b >= 300 else "different"
                self.found.count("errors", how)
                line = f"{what}: llama-server {a} {_error(theirs)}, aleator {b} {_error(mine)}"
                (self.found.notes if how != "different" else self.found.wrong).append(line)

    def fields(self, prompt: str) -> None:
        """Fields of responses that we lack."""
        theirs, mine = self.both({**GREEDY, "prompt": prompt, "n_predict": 2, "n_probs": 1})
        for name, path in (
            ("response", ()),
            ("settings", ("generation_settings",)),
            ("timings", ("timings",)),
        ):
            a, b = theirs, mine
            for each in path:
                a, b = a[each], b[each]
            self.found.same("fields", name, [], sorted(a.keys() - b.keys()))
        a, b = (s.get("/props") for s in (self.llama, self.ours))
        lacking = sorted(a.keys() - b.keys())
        self.found.notes.append(
            f"/props has not: {', '.join(lacking) or 'nothing that llama-server has'}"
        )


def _ends(stop_type: str, a: Sequence[int], b: Sequence[int]) -> bool:
    return stop_type == "eos" and len(a) == len(b) + 1 and list(a[:-1]) == list(b)


def _valid(text: str, schema: dict[str, Any]) -> bool:
    try:
        jsonschema.validate(json.loads(text), schema)
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


def _usage(made: Any) -> tuple[list[int], str]:
    counts = ("prompt_tokens", "completion_tokens", "total_tokens")
    return [made["usage"][name] for name in counts], made["choices"][0]["finish_reason"]


def _error(body: Any) -> str:
    error = body.get("error") if isinstance(body, dict) else None
    return str(error.get("type")) if isinstance(error, dict) else "no error"


def _margins(theirs: Any, mine: Any, step: int) -> tuple[float, float]:
    """The distance of the best two tokens, and of the two servers' log-probabilities of them."""
    tops = [
        {t["id"]: t["logprob"] for t in made["completion_probabilities"][step]["top_logprobs"]}
        for made in (theirs, mine)
    ]
    best = [sorted(top.values(), reverse=True) for top in tops]
    gap = min(each[0] - each[1] for each in best)
    both = tops[0].keys() & tops[1].keys()
    # Two values may err in opposite directions.
    apart = 2 * max((abs(tops[0][t] - tops[1][t]) for t in both), default=0.0)
    return gap, apart


def report(results: dict[str, Outcome], version: str) -> str:
    """The findings, as Markdown."""
    lines = ["# Answers of aleator serve and of llama-server", ""]
    lines += [f"{datetime.date.today()}; llama-server {version}.", ""]
    for name, found in results.items():
        lines += [f"## {name}", "", *table_head("compared", "outcome")]
        for kind, counts in found.counts.items():
            lines.append(table_row(kind, ", ".join(f"{n} {how}" for how, n in counts.items())))
        lines += ["", f"Differences that nothing explains: {len(found.wrong)}", ""]
        lines += [f"- {each}" for each in found.wrong]
        if found.notes:
            lines += ["", "Explained:", "", *(f"- {each}" for each in found.notes)]
        lines.append("")
    return "\n".join(lines)


def main() -> int:
    """Compare with every model; the exit code says whether anything is unexplained."""
    asked = parser(__doc__, out="Markdown")
    asked.add_argument("--llama-server", required=True, metavar="PROGRAM")
    asked.add_argument("--model", action="append", required=True, metavar="FILE")
    asked.add_argument("--prompts", type=int, default=len(PROMPTS))
    asked.add_argument("--n-predict", type=int, default=32)
    asked.add_argument("--threads", type=int, default=1)
    asked.add_argument(
        "--logs", type=Path, default=Path("."), help="directory of the servers' logs"
    )
    arguments = asked.parse_args()
    told = subprocess.run(
        [arguments.llama_server, "--version"], capture_output=True, text=True, check=False
    )
    version = (told.stdout + told.stderr).split("version:")[-1].splitlines()[0].strip()
    results: dict[str, Outcome] = {}
    logs, one = arguments.logs, {"OMP_NUM_THREADS": "1"}
    for model in arguments.model:
        words = ["-m", model, "--port", "{port}", "-c", "1024", "--parallel", "1"]
        words += ["-t", str(arguments.threads), "--slot-save-path", str(logs)]
        llama = [arguments.llama_server, *words, "--no-webui", "--embedding"]
        with (
            ServerProcess("llama-server", llama, logs / "llama-server.log", **one) as theirs,
            ServerProcess(
                "aleator serve",
                [PROGRAM, "serve", "--no-cache-disk", *words],
                logs / "aleator-serve.log",
                **one,
            ) as mine,
            httpx.Client(timeout=600, trust_env=False) as http,
        ):
            servers = Server(theirs.url(), http), Server(mine.url(), http)
            comparison = Comparison(*servers, arguments.n_predict)
            results[Path(model).name] = comparison.all(PROMPTS[: arguments.prompts])
        if arguments.out is not None:  # after each model, as a run may be interrupted
            arguments.out.write_text(report(results, version))
    print(report(results, version))
    return int(any(found.wrong for found in results.values()))


if __name__ == "__main__":
    sys.exit(main())
