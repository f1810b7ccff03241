"""Threads of the npm package in Node: bits of one thread, what ends them, what is refused."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aleator.models.hub.bundled import bundled_model
from tests.javascript.conftest import PACKAGE, Refuses, Values, needs
from tests.javascript.test_models import RELAXED

TOKENS = [1 + 7 * i % 200 for i in range(40)]

LOGITS = """
  const told = []
  for (const threads of [1, 2, 3]) {
    const model = await load(path, { nCtx: 64, threads })
    const cache = model.cache()
    const prompt = cache.decode(given, { all: true })
    const next = [5, 6, 7].map((token) => cache.decode([token]))
    const bits = [prompt, ...next].map((row) => Buffer.from(row.buffer).toString('base64')).join(' ')
    told.push([model.threads, bits])
    model.free()
  }
  return told
"""


@pytest.mark.parametrize("flags", [(), RELAXED], ids=["plain", "relaxed"])
def test_logits_have_the_same_bits_with_any_number_of_threads(
    values: Values, flags: tuple[str, ...]
) -> None:
    [told] = values(LOGITS, given=TOKENS, flags=flags)
    assert [threads for threads, _ in told] == [1, 2, 3]
    assert len({bits for _, bits in told}) == 1


@pytest.mark.parametrize("given", ["0", "33", "1.5", "'2'", "null"])
def test_a_number_out_of_range_is_refused_by_name(refuses: Refuses, given: str) -> None:
    said = f"threads={given.strip(chr(39))}: give a whole number from 1 to 32"
    refuses({f"load('missing.gguf', {{ threads: {given} }})": said})


def test_models_with_threads_of_their_own_take_turns(values: Values) -> None:
    code = """
      const models = await Promise.all([2, 3].map((threads) => load(path, { threads })))
      const text = async (model) => model.generate('ROMEO:', { seed: 4, maxTokens: 8 }).text()
      const texts = await Promise.all(models.map(text))
      models[0].free()
      const again = await text(models[1])
      models[1].free()
      const error = await text(models[1]).catch((error) => error.name)
      return [models.map((each) => each.threads), new Set([...texts, again]).size, error]
    """
    assert values(code) == [[[2, 3], 1, "StateError"]]


# Counts workers: those that began, in `began`; `ended` waits for all.
COUNTED = """
  const { Worker } = await import('node:worker_threads')
  const ends = []
  const seen = new Set()
  const post = Worker.prototype.postMessage
  Worker.prototype.postMessage = function (...given) {
    if (!seen.has(this)) ends.push(new Promise((resolve) => this.once('exit', resolve)))
    seen.add(this)
    return post.apply(this, given)
  }
  const told = (made) => made.then(() => 'loaded', ({ name, message }) => `${name}: ${message}`)
  const ended = () => Promise.all(ends).then(() => ends.length)
"""


Counted = Callable[[str], Any]


@pytest.fixture
def counted(values: Values) -> Counted:
    return lambda code: values(COUNTED + code)[0]


def test_a_model_that_is_freed_ends_its_workers(counted: Counted) -> None:
    code = """
      const made = await load(path, { threads: 3 })
      await made.generate('a', { maxTokens: 2 }).text()
      made.free()
      made.free()
      return ended()
    """
    assert counted(code) == 2


def test_an_abort_while_workers_start_ends_them(counted: Counted) -> None:
    code = """
      const stop = new AbortController()
      const counted = Worker.prototype.postMessage
      Worker.prototype.postMessage = function (...given) {
        stop.abort(new Error('enough'))
        return counted.apply(this, given)
      }
      return [await told(load(path, { threads: 3, signal: stop.signal })), await ended()]
    """
    assert counted(code) == ["Error: enough", 2]


GONE = (
    "StateError: a thread of the pool does nothing any more: its worker was ended, by the system or "
    "by terminate(): load the model again"
)
AGAIN = "StateError: a thread of the pool has ended: load the model again"
KILLED = """
  const { LOST } = await inside('threads.js')
  LOST.looks = 3
  const workers = new Set()
  const counted = Worker.prototype.postMessage
  Worker.prototype.postMessage = function (...given) {
    workers.add(this)
    return counted.apply(this, given)
  }
  const made = await load(path, { threads: 3 })
  const text = (model) => told(model.generate('a', { seed: 1, maxTokens: 20 }).text())
  // A busy machine has the caller compute alone for a while.
  const gone = async () => {
    for (;;) {
      const said = await text(made)
      if (said !== 'loaded') return said
    }
  }
"""


def test_a_worker_that_is_killed_between_requests_ends_those_that_follow(counted: Counted) -> None:
    code = """
      await [...workers][0].terminate()
      const all = [await gone(), ...(await Promise.all([text(made), text(made)]))]
      made.free()
      const other = await load(path, { threads: 2 })
      return [...all, await text(other), (other.free(), await ended())]
    """
    assert counted(KILLED + code) == [GONE, AGAIN, AGAIN, "loaded", 3]


def test_a_worker_that_is_killed_within_a_text_ends_it(counted: Counted) -> None:
    code = """
      const asked = [1, 2].map((seed) => {
        const generation = made.generate('a', { seed, maxTokens: 2000, ignore_eos: true })
        return told((async () => {
          for await (const piece of generation)
            if (generation.tokens.length === 5) [...workers][seed - 1].terminate()
        })())
      })
      const all = await Promise.all(asked)
      return [...all.sort(), await text(made), (made.free(), await ended())]
    """
    assert counted(KILLED + code) == [GONE, AGAIN, AGAIN, 2]


def test_a_model_whose_worker_was_killed_is_freed(counted: Counted) -> None:
    code = """
      await [...workers][0].terminate()
      made.free()
      return ended()
    """
    assert counted(KILLED + code) == 2


def test_a_wrong_file_starts_no_workers(counted: Counted) -> None:
    code = """
      const { readFile } = await import('node:fs/promises')
      const bytes = await readFile(path)
      bytes[bytes.indexOf('blk.0.attn_q.weight')] = 66
      return [await told(load(bytes, { threads: 3 })), ends.length]
    """
    message = "FileFormatError: the tensor 'blk.0.attn_q.weight' is missing"
    assert counted(code) == [message, 0]


def test_threads_that_do_not_fit_into_memory_are_refused(counted: Counted) -> None:
    code = """
      const { NativeArray } = native
      const held = []
      for (let size = 2 ** 30; size >= 2 ** 16; ) {
        try {
          held.push(new NativeArray(Uint8Array, size))
        } catch {
          size /= 2
        }
      }
      held.findLast(({ length }) => length >= 2 ** 24).free() // for the model, and not 31 threads
      const refused = [await told(load(path, { threads: 32 })), await ended()]
      held.forEach((each) => each.free())
      return [...refused, await told(load(path, { threads: 2 }))]
    """
    message, *others = counted(code)
    assert message.startswith("MemoryError: threads=32: their ")
    assert message.endswith(
        " bytes do not fit into WebAssembly's memory of at most 4 GiB: give fewer"
    )
    assert others == [31, "loaded"]


def _node(tmp_path: Path, script: str, *flags: str) -> subprocess.CompletedProcess[str]:
    needs("node")
    path = tmp_path / "main.mjs"
    path.write_text(
        f"const {{ load }} = await import({(PACKAGE / 'index.js').as_uri()!r})\n"
        f"const path = {str(bundled_model())!r}\n{script}"
    )
    return subprocess.run(["node", *flags, path], capture_output=True, text=True, timeout=120)


def test_idle_workers_do_not_keep_a_program_from_ending(tmp_path: Path) -> None:
    done = _node(
        tmp_path,
        "const model = await load(path, { threads: 3 })\n"
        "console.log(await model.generate('a', { seed: 1, maxTokens: 2 }).text())",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_memory_that_cannot_be_shared_leaves_one_thread(tmp_path: Path) -> None:
    hook = tmp_path / "hook.mjs"
    hook.write_text("delete globalThis.SharedArrayBuffer\n")
    texts = []
    for flags in ((), ("--import", hook.as_uri())):
        done = _node(
            tmp_path,
            "const model = await load(path, { threads: 2 })\n"
            "const text = await model.generate('ROMEO:', { seed: 4, maxTokens: 8 }).text()\n"
            "console.log(JSON.stringify([model.threads, text]))",
            *flags,
        )
        assert done.returncode == 0, done.stderr
        texts.append(done.stdout.strip())
    shared, alone = texts
    assert shared.startswith("[2,")
    assert alone == shared.replace("[2,", "[1,")


def test_a_module_that_cannot_be_unshared_is_refused(tmp_path: Path) -> None:
    needs("node")
    package = tmp_path / "package"
    shutil.copytree(PACKAGE, package)
    for module in package.glob("*.wasm"):
        module.write_bytes(module.read_bytes().replace(b"\x03env\x06memory\x02\x03", b"", 1))
    script = tmp_path / "main.mjs"
    script.write_text(
        "delete globalThis.SharedArrayBuffer\n"
        f"await import({(package / 'index.js').as_uri()!r}).catch((e) => console.log(e.message))"
    )
    done = subprocess.run(["node", script], capture_output=True, text=True, timeout=120)
    assert done.stdout == "the module imports no shared memory: build it with make wasm\n", (
        done.stderr
    )


def _hooked(tmp_path: Path, hook: str, script: str) -> str:
    """What a program writes whose workers run the hook first."""
    path = tmp_path / "hook.mjs"
    path.write_text(
        "import { isMainThread } from 'node:worker_threads'\n"
        f"const {{ Instance }} = WebAssembly\nif (!isMainThread) {{\n{hook}}}\n"
    )
    done = _node(tmp_path, script, "--import", path.as_uri())
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_worker_that_does_not_start_is_told(tmp_path: Path) -> None:
    told = _hooked(
        tmp_path,
        "WebAssembly.Instance = function () { throw new Error('no room') }",
        "const told = await load(path, { threads: 2 }).catch((error) => error)\n"
        "console.log(told.name, told.message)",
    )
    assert told == "RuntimeError threads=2: a worker did not start (no room): give threads: 1\n"


def test_a_host_that_refuses_workers_is_told(tmp_path: Path) -> None:
    done = _node(
        tmp_path,
        "globalThis.Worker = class { constructor() { throw new Error('policy') } }\n"
        "const told = await load(path, { threads: 2 }).catch((error) => error)\n"
        "console.log(told.name, told.message)",
    )
    assert done.stdout == (
        "RuntimeError threads=2: a worker did not start (policy): give threads: 1\n"
    ), done.stderr


def test_an_instruction_that_fails_in_a_thread_ends_the_request(tmp_path: Path) -> None:
    told = _hooked(
        tmp_path,
        # The thread finds no other function than its first: the call of its job's fails.
        """WebAssembly.Instance = function (...given) {
          const { exports } = new Instance(...given)
          const table = exports.__indirect_function_table
          const all = Array.from({ length: table.length }, (_, i) => table.get(i))
          const put = (keep) => all.forEach((f, i) => table.set(i, keep(i) ? f : null))
          const get = (number) => (put((i) => i === number), all[number])
          const thread_ends = () => (put(() => true), exports.thread_ends())
          return { exports: { ...exports, __indirect_function_table: { get }, thread_ends } }
        }""",
        """const model = await load(path, { threads: 2 })
        const text = (model) => model.generate('a', { maxTokens: 2 }).text()
        const told = () => text(model).catch(({ name, message }) => `${name}: ${message}`)
        console.log(await told())
        console.log(await told())
        model.free()
        const other = await load(path, { threads: 1 })
        console.log((await text(other)).length > 0)""",
    )
    assert told.splitlines() == [
        "StateError: a thread ended within a job",
        "StateError: a thread of the pool has ended: load the model again",
        "true",
    ]
