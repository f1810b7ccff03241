from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from aleator import LanguageModel
from aleator.core.errors import EngineClosed, GrammarError, ParameterError
from aleator.samplers import Grammar
from aleator.samplers.constrained import ConstraintSampler
from aleator.server import grammar_limits
from aleator.server.auth import Caller, set_caller
from aleator.server.errors import api_error
from aleator.server.grammar_limits import KEPT, KEPT_BYTES, KeptGrammars, Trials
from aleator.server.grammars import MAX_CONCURRENT, Grammars, sampler_of
from aleator.server.native_memory import allocated_bytes
from tests.server.conftest import TEMPLATE
from tests.server.live import in_thread, request_of, rest, until

SLOW = {"type": "integer", "multipleOf": 249989}
"""Takes some seconds of native code."""
HANGS = "import sys; print('{}', flush=True); sys.stdin.read()"
"""A process that says it is ready, and never answers."""


def begin_one_that_hangs(self: Trials) -> None:
    """In place of :meth:`Trials.begin`."""
    if self._process is None:
        self._greeted = False
        self._process = subprocess.Popen(
            [sys.executable, "-c", HANGS], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )


@pytest.fixture(scope="module")
def trials(model: LanguageModel) -> Iterator[Trials]:
    made = Trials(str(model.weights.path), 20)
    made.begin()
    yield made
    made.close()


def test_the_process_that_was_begun_ahead_is_used(trials: Trials) -> None:
    begun = trials._process
    assert begun is not None
    group = os.getpgid(begun.pid)
    assert group == begun.pid  # Ctrl-C, which is for a group, is for the server alone
    trials.begin()
    trials.run("regex", {"option": "regex", "value": "[a-c]"})
    assert trials._process is begun


ANSWERS = {"whole": b"{}\n", "half": None}
"""What a process writes, and what is read of it: one that was killed may leave half a line."""


@pytest.mark.parametrize("written", ANSWERS)
def test_answers_of_a_process_whose_pipe_has_a_high_number(written: str) -> None:
    """A server with a thousand connections has such files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2048:
        pytest.skip("this process may not open 2,048 files")
    code = "input(); print('{}', end='')" if written == "half" else "input(); print('{}')"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
        try:
            with open(fcntl.fcntl(process.stdout, fcntl.F_DUPFD, 1500), "rb") as high:
                low, process.stdout = process.stdout, high
                resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))  # it may open no more
                assert Trials._ask(process, b"x\n", 20) == ANSWERS[written]
                process.stdout = low
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


LACKS = {"ENOMEM": 503, "EMFILE": 503, "ENFILE": 503, "EAGAIN": 503, "ENOENT": 500}
"""Why a process does not start, and the status of the request."""


@pytest.mark.parametrize("lack", LACKS)
def test_a_lack_because_of_which_no_process_starts_may_pass(
    lack: str, trials: Trials, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = Trials(trials._model, 20)
    failing = Mock(side_effect=OSError(getattr(errno, lack), "the system's words"))
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", failing)
        with pytest.raises(OSError, match="words") as caught:
            new.run("regex", {"option": "regex", "value": "[a-c]"})
    made = api_error(caught.value)
    assert (made.status, "ask again" in str(made)) == (LACKS[lack], LACKS[lack] == 503)
    assert "words" not in str(made)
    if lack == "EMFILE":
        new.run("regex", {"option": "regex", "value": "[a-c]"})
        new.close()


@pytest.mark.parametrize(
    ("error", "status"),
    [(MemoryError(), 503), (RuntimeError("can't start new thread"), 503), (RuntimeError("x"), 500)],
)
def test_a_lack_of_memory_or_threads_may_pass(error: Exception, status: int) -> None:
    made = api_error(error)
    assert (made.status, "ask again" in str(made)) == (status, status == 503)


def test_what_can_be_compiled_passes_and_what_is_wrong_is_told(trials: Trials) -> None:
    trials.run("regex", {"option": "regex", "value": "[0-9]+"})
    trials.run("json_schema", {"option": "json_schema", "value": {"type": "object"}})
    with pytest.raises(GrammarError) as caught:
        trials.run("grammar", {"option": "grammar", "value": 'root ::= "a'})
    assert caught.value.line == 1
    with pytest.raises(GrammarError, match="regular expression"):
        trials.run("regex", {"option": "regex", "value": "("})
    trials.run("regex", {"option": "regex", "value": "[a-z]+"})
    rules = "\n".join(f'a{i}: a{i + 1} "y"' for i in range(20_000))
    deep = f'%llguidance {{}}\nstart: a0\n{rules}\na20000: "x"'
    with pytest.raises(ParameterError, match="grammar ends the process that tries it"):
        trials.run("grammar", {"option": "grammar", "value": deep})


def test_what_all_grammars_share_is_made_ahead(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[object] = []
    monkeypatch.setattr("aleator.server.grammars.prepare", made.append)
    grammars = Grammars(model.tokenizer)
    grammars.begin()
    grammars.close()
    assert made == [model.tokenizer]


def test_what_takes_too_long_really_ends(
    model: LanguageModel, trials: Trials, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials.close()
    with monkeypatch.context() as hanging:
        hanging.setattr(Trials, "begin", begin_one_that_hangs)
        trials.begin()
        process = trials._process
        assert process is not None
        trials.seconds = 0.1
        with pytest.raises(ParameterError, match="--grammar-timeout") as caught:
            trials.run("json_schema", {"option": "json_schema", "value": {}})
    assert caught.value.parameter == "json_schema"
    assert trials._process is None
    assert process.returncode == -signal.SIGKILL
    trials.seconds = 20
    trials.run("regex", {"option": "regex", "value": "[a-z]+"})  # by another process


def test_native_code_that_takes_long_is_ended(trials: Trials) -> None:
    trials.run("regex", {"option": "regex", "value": "y"})
    trials.seconds = 0.01  # of some seconds
    with pytest.raises(ParameterError, match="--grammar-timeout"):
        trials.run("json_schema", {"option": "json_schema", "value": SLOW})
    trials.seconds = 20


def test_who_is_cut_is_told_that_the_server_ends(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trials, "begin", begin_one_that_hangs)
    made = Trials("no model", 1000)
    cutting = threading.Timer(0.05, made.cut)
    cutting.start()
    with pytest.raises(EngineClosed):
        made.run("regex", {"option": "regex", "value": "x"})
    cutting.join()
    with pytest.raises(EngineClosed):
        made.run("regex", {"option": "regex", "value": "x"})
    made.close()


def test_what_takes_too_much_memory_is_refused(
    trials: Trials, monkeypatch: pytest.MonkeyPatch
) -> None:
    def big(i: int) -> dict[str, Any]:
        return {"option": "json_schema", "value": {"type": "integer", "multipleOf": 50021 + i}}

    monkeypatch.setattr(grammar_limits, "NOTICED_BYTES", 2**22)
    for i in range(2):
        monkeypatch.setattr(grammar_limits, "MOST_BYTES", 2**30)
        assert trials.run("json_schema", big(2 * i)) > 2**22
        assert trials._process is None  # what it used is not used again unseen
        monkeypatch.setattr(grammar_limits, "MOST_BYTES", 2**20)
        with pytest.raises(GrammarError, match="MiB of memory"):
            trials.run("json_schema", big(2 * i + 1))
    assert trials.run("regex", {"option": "regex", "value": "[a-z]+"}) < 2**22


def test_a_grammar_is_compiled_once(model: LanguageModel) -> None:
    made_by = Grammars(model.tokenizer)
    options: dict[str, Any] = {"regex": "[0-9]{3}", "max_tokens": 5}
    first, again = made_by.compiled(options), made_by.compiled(dict(options))
    assert first["regex"] is again["regex"]
    assert first["max_tokens"] == 5
    texts = [model.generate("x", seed=s, **each).text for each in (first, again) for s in (1, 2)]
    assert texts[:2] == texts[2:]
    assert texts == [model.generate("x", seed=s, **options).text for s in (1, 2, 1, 2)]
    made = Grammar('root ::= "a"')
    assert made_by.compiled({"grammar": made})["grammar"] == made
    for i in range(KEPT + 5):
        made_by.compiled({"grammar": f'root ::= "{i}"'})
    assert len(made_by) == KEPT


def test_grammars_are_remembered_by_digest(model: LanguageModel) -> None:
    # A body may have eight megabytes, and twice as many grammars are remembered as are kept.
    made_by = Grammars(model.tokenizer)
    made_by.compiled({"json_schema": {"enum": ["x" * 5000]}})
    assert [len(key) for key in made_by._made._made] == [64]


def test_others_are_served_while_a_grammar_takes_its_time(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Trials, "begin", begin_one_that_hangs)
    with in_thread(model, engine={"n_seq_max": 2}, grammar_timeout=1000.0) as live:
        assert live.grammars is not None
        semaphore = live.grammars._semaphore
        slow = [live.send(request_of({"prompt": "x", "regex": f"x{i}"})) for i in range(6)]
        until(lambda: len(semaphore._waiting) == 5)
        assert live.post("/v1/completions", {"prompt": "x", "max_tokens": 2})[0] == 200
    # The server has ended: who waited was told so, and no task had to be cancelled.
    for each in slow:
        with each:
            answer = rest(each)
        assert b" 503 " in answer.split(b"\r\n")[0]
        assert b"shutting down" in answer
    assert not [each for each in caplog.records if each.levelname == "ERROR"]


async def test_known_grammars_do_not_wait_for_new_ones(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_by, goes_on = Grammars(model.tokenizer), threading.Event()
    known = {"regex": "[0-9]{3}"}
    made = made_by.compiled(known)
    monkeypatch.setattr(Trials, "run", lambda self, name, told: int(goes_on.wait(30)))
    made_by.trials = [Trials("no model", 1)]
    options = [{"regex": f"x{i}"} for i in range(50)]
    slow = [
        asyncio.ensure_future(made_by.in_thread(each, partial(made_by.compiled, each)))
        for each in options
    ]
    try:
        async with asyncio.timeout(10):
            await asyncio.sleep(0.1)
            again = await made_by.in_thread(known, partial(made_by.compiled, known))
            assert again["regex"] is made["regex"]
    finally:
        goes_on.set()
    await asyncio.gather(*slow)


def test_grammars_are_kept_as_long_as_memory_allows(model: LanguageModel) -> None:
    allocated = 10**9
    kept = KeptGrammars(lambda: allocated)
    grammars = [regex_of(model, f"{i}") for i in range(9)]
    for i in range(3):
        kept.keep(f"{i}", grammars[i])
        allocated += KEPT_BYTES // 4
    assert [kept.find(f"{i}") for i in (1, 2, 0)] == [grammars[i] for i in (1, 2, 0)]
    allocated += KEPT_BYTES // 2  # they grew
    assert kept.find("1") is grammars[1]
    assert len(kept) == 0  # and nothing was freed, so all had to go
    allocated -= KEPT_BYTES
    for i in range(3):
        kept.keep(f"{i}", grammars[i])
    assert len(kept) == 3


def regex_of(model: LanguageModel, pattern: str) -> ConstraintSampler:
    """A grammar, compiled."""
    return sampler_of({"option": "regex", "value": pattern}).bound(model.tokenizer)


def test_memory_that_is_freed_ends_the_search_for_more(model: LanguageModel) -> None:
    all_kept: list[KeptGrammars] = []
    kept = KeptGrammars(lambda: sum(map(len, all_kept)) * KEPT_BYTES // 3)
    all_kept.append(kept)
    for i in range(9):
        kept.keep(f"{i}", regex_of(model, f"{i}"))
    assert len(kept) == 3
    assert kept.find("5") is None
    assert kept.find("6") is not None


def test_what_native_code_allocates_is_told() -> None:
    before = allocated_bytes()
    held = np.ones(2**23)
    assert 2**26 <= allocated_bytes() - before < 2**26 + 2**24
    del held
    assert allocated_bytes() - before < 2**24


def test_new_grammars_of_one_key_do_not_hold_up_those_of_another(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_by, goes_on = Grammars(model.tokenizer), threading.Event()
    tried: list[str] = []

    def run(self: Trials, name: str, told: Any) -> int:
        tried.append(told["value"])
        if told["value"].startswith("x"):
            goes_on.wait(30)
        return 0

    monkeypatch.setattr(Trials, "run", run)
    made_by.trials = [Trials("no model", 1) for _ in range(MAX_CONCURRENT)]

    async def one(key: str, pattern: str) -> None:
        set_caller(Caller(key))
        await made_by.in_thread({"regex": pattern}, partial(made_by.compiled, {"regex": pattern}))

    async def ask() -> None:
        slow = [asyncio.ensure_future(one("a", f"x{i}")) for i in range(9)]
        try:
            async with asyncio.timeout(20):
                while not tried:
                    await asyncio.sleep(0.001)
                await asyncio.gather(*(one("b", f"y{i}") for i in range(3)))
            assert [each[0] for each in tried] == ["x", "y", "y", "y"]
        finally:
            goes_on.set()
        await asyncio.gather(*slow)

    asyncio.run(ask())
    assert len(tried) == len(set(tried)) == 12


def test_a_grammar_that_several_ask_for_is_tried_and_compiled_once(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_by, tried = Grammars(model.tokenizer), list[str]()

    def run(self: Trials, name: str, told: Any) -> int:
        tried.append(told["value"])
        return 0

    monkeypatch.setattr(Trials, "run", run)
    made_by.trials = [Trials("no model", 1) for _ in range(MAX_CONCURRENT)]
    found: list[Any] = []

    async def one(key: str) -> None:
        set_caller(Caller(key))
        options = {"regex": "[0-9]{4}"}
        found.append(await made_by.in_thread(options, partial(made_by.compiled, options)))

    async def ask() -> None:
        await asyncio.gather(*(one(key) for key in "abcabc"))

    asyncio.run(ask())
    assert tried == ["[0-9]{4}"]
    assert len({id(each["regex"]) for each in found}) == 1


def test_a_chat_s_schema_is_tried_once(make_client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def run(self: Trials, name: str, told: Any) -> int:
        tried.append(name)
        return 0

    monkeypatch.setattr(Trials, "run", run)
    client = make_client(chat_template=TEMPLATE)
    client.service.grammars.trials = [Trials("no model", 1)]
    body = {
        "messages": [{"role": "user", "content": "Speak."}],
        "response_format": {"type": "json_object"},
        "max_tokens": 8,
    }
    for _ in range(2):
        client.made("/v1/chat/completions", **body)
    assert tried == ["json_schema"]


def test_so_many_grammars_that_passed_are_remembered(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Noted:
        def run(self, name: str, grammar: dict[str, Any]) -> None:
            tried.append(grammar["value"])

    tried: list[str] = []
    monkeypatch.setattr("aleator.server.grammars.KEPT", 1)
    grammars = Grammars(model.tokenizer)
    grammars.trials = [Noted()]  # type: ignore[list-item]
    for value in "aababcba":
        grammars.try_out({"regex": value})
    assert tried == ["a", "b", "c", "a"]
