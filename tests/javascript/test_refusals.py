"""What the npm package refuses, and what ends, fails or is used again."""

from __future__ import annotations

import base64
import struct
from pathlib import Path

from tests.javascript.conftest import Refuses, Run, Values
from tests.models import builders

REFUSED = {
    "new Chain({ toString: 1 })": "toString",
    "new Chain({}, { preset: 'constructor' })": "constructor",
    "new Chain({}, { completion: -1 })": "completion",
    "new Chain({ temperature: NaN })": "temperature=NaN",
    "new Chain({ logit_bias: 5 })": "logit_bias=5",
    "new Chain({ logit_bias: { '': 2 } })": "logit_bias",
    "new Chain({ logit_bias: [[1n, 2]] })": "logit_bias",
    "new Chain({ bad_words: ['a'] }, { tokenizer: 5 })": "tokenizer",
    "new Chain().acceptAll([1, 2 ** 32 + 7])": "tokens[1]=4294967303",
    "explain(new Chain(), new Float32Array(9), 'x')": "top=x",
    "model.chain({ bad_words: [' '] })": "bad_words",
    "load(5)": "source",
    "load(path, { nctx: 5 })": "nctx",
    "load('missing.gguf', { onProgress: 5 })": "onProgress",
    "model.cache({ nSeq: 2 })": "nSeq",
    "load(path, { nCtx: 2 ** 31 - 1 })": "nCtx=2147483647: give a whole number from 1 to 268435456",
    "model.cache({ nSeqs: 0 })": "nSeqs",
    "model.cache({ type: 'Q4_K' })": "typeK=Q4_K",
    "model.cache().decode([1, undefined])": "tokens[1]=undefined",
    "model.cache().decode([1], { seq: 1 })": "seq=1",
    "model.chain({}, { seed: 1 })": "seed",
    "model.tokenizer.encode('a', { parseSpecial: 'false' })": "parseSpecial=false",
    "model.generate()": "prompt",
    "model.generate([1, 1e9])": "tokens[1]=1000000000",
    "model.generate('a', { max_tokens: 5 })": "max_tokens",
    "model.generate('a', { maxTokens: '5' })": "maxTokens=5",
    "model.generate('a', { stop: 5 })": "stop",
    "model.generate('a', { signal: 5 })": "signal",
    "model.generate('a', { seed: -2 })": "seed=-2",
    "model.generate('a', { seed: 2n ** 64n })": "seed=18446744073709551616",
}


def test_what_is_wrong_is_refused_by_name(refuses: Refuses) -> None:
    refuses(REFUSED)


def test_what_does_not_fit_or_is_not_there_is_refused(values: Values) -> None:
    refused = {
        "load('missing.gguf')": "ModelNotFound",
        "new native.NativeArray(Uint8Array, 2 ** 32 + 64)": "MemoryError",
        "model.cache({ nCtx: 2 ** 25 })": "MemoryError",
        "model.generate('a'.repeat(999))": "ContextFull",
        "(model.free(), model.generate('a').text())": "StateError",
        "(model.free(), model.gguf.data.part(0, 4).array)": "StateError",
        "((cache) => (cache.free(), cache.free(), cache.decode([1])))(model.cache())": "StateError",
        "(async (made) => [await made.text(), await made.text()])(model.generate('a'))": "StateError",
    }
    found = values(*refused)
    assert [each["error"] for each in found] == list(refused.values()), found
    assert found[2]["message"].startswith("nCtx=33554432: ")


def test_a_file_of_many_parts_is_read_without_a_warning(values: Values) -> None:
    code = """
      const { SIZES } = await inside('loading.js')
      SIZES.part = 1 << 18
      return new Promise((resolve, reject) => {
        process.on('warning', reject)
        load(path).then(() => setTimeout(resolve, 0, 'read'), reject)
      })
    """
    assert values(code) == ["read"]


def test_names_that_every_object_has_are_no_architecture(run: Run, tmp_path: Path) -> None:
    for name in ("constructor", "__proto__"):
        path = builders.write_gguf(tmp_path / "odd.gguf", {}, architecture=name)
        [result] = run("text", [{"path": str(path), "prompt": "a", "options": {}}])
        assert result["error"] == "UnsupportedModel"
        assert f"'{name}'" in result["message"]


def test_a_float_is_no_integer_of_a_file(run: Run) -> None:
    made = builders.raw_gguf([builders.entry("general.alignment", 12, struct.pack("<d", 32.0))])
    [result] = run("hostile", [{"bytes": base64.b64encode(made).decode()}])
    assert result["error"] == "FileFormatError"
    assert "general.alignment must be of the type integer" in result["message"]


def test_biases_may_be_a_map(values: Values) -> None:
    code = "new Chain({ logit_bias: new Map([[1, 2.5]]) }).values.logit_bias"
    assert values(code) == [[[1, 2.5]]]


def test_rows_of_logits_end_with_the_vocabulary(values: Values) -> None:
    code = """
      Object.defineProperty(model.vocabulary, 'size', { value: 100 })
      const made = model.generate([1], { seed: 1, preset: 'neutral', maxTokens: 20 })
      await made.text()
      return made.tokens
    """
    [tokens] = values(code)
    assert max(tokens) < 100


def test_a_clone_has_its_grammar(values: Values) -> None:
    code = """
      const chain = model.chain({ seed: 3, grammar: 'root ::= "a"' })
      const row = new Float32Array(model.config.n_vocab)
      const told = (each) => explain(each, row).stages.map((stage) => [stage.sampler, stage.left])
      const stages = [told(chain), told(chain.clone())]
      chain.sample(row)
      return [...stages, chain.finished, chain.clone().finished]
    """
    [[own, clones, finished, also]] = values(code)
    assert own == clones
    assert own[1] == ["grammar", 1]
    assert (finished, also) == (True, True)


def test_texts_at_once_interrupted_and_left(values: Values) -> None:
    code = """
      const make = (more) => model.generate('ROMEO:', { seed: 2n ** 64n - 1n, maxTokens: 9, ...more })
      const [one, two] = await Promise.all([make().text(), make().text()])
      const stopper = new AbortController()
      const stopped = make({ signal: stopper.signal })
      for await (const _ of stopped) stopper.abort()
      const left = make()
      for await (const _ of left) break
      const again = await make().text()
      return [one === two, again === one, stopped.stopReason, stopped.tokens.length, left.tokens.length]
    """
    assert values(code) == [[True, True, "interrupted", 1, 1]]


def test_a_prompt_is_interrupted_while_it_is_read(values: Values) -> None:
    code = """
      const stopper = new AbortController()
      const made = (await load(path)).generate(new Array(64 + 1).fill(1), { signal: stopper.signal })
      setImmediate(() => stopper.abort())
      return [await made.text(), made.stopReason, made.tokens]
    """
    assert values(code) == [["", "interrupted", []]]


def test_a_download_that_fails_is_cancelled(values: Values) -> None:
    code = """
      const told = []
      for (const size of [3, 20, 2 ** 33]) {
        let cancelled = false
        const parts = [8, 8].map((n) => new Uint8Array(n))
        const body = new ReadableStream({
          pull: (to) => (parts.length ? to.enqueue(parts.pop()) : to.close()),
          cancel: () => void (cancelled = true),
        }, { highWaterMark: 0 })
        globalThis.fetch = async () => new Response(body, { headers: { 'content-length': String(size) } })
        await load('https://example.org/a.gguf').catch((error) => told.push(error.name, cancelled))
      }
      globalThis.fetch = async () => new Response('', { status: 404 })
      await load('https://example.org/a.gguf').catch((error) => told.push(error.name))
      return told
    """
    told = ["FileFormatError", True, "DownloadError", False, "MemoryError", True, "ModelNotFound"]
    assert values(code) == [told]
