"""Options of texts in the npm package: the same tokens as here, and the same refusals."""

from __future__ import annotations

import lzma
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from make_models import SPECS, write_model

import aleator
from aleator.generate.loops import LoopDetector, LoopWatch
from aleator.models.hub.bundled import bundled_model
from aleator.samplers import SamplingParams
from tests.javascript.conftest import ROOT, Refuses, Run, Talks, Values
from tests.javascript.random_cases import check_texts

PATH = str(bundled_model())
LIGHT = "What light through yonder win"
PHASES: list[dict[str, Any]] = [
    {"thinking": {"temperature": 1.4, "min_p": 0.02}, "answer": "greedy"},
    {
        "thinking": {"begin": ":", "end": "\n", "top_k": 2},
        "answer": {"preset": "vllm", "xtc_probability": 0.5},
    },
    {"x": {"begin": "e", "end": "t", "mirostat": 2}, "histories": "own", "start": "x"},
    {
        "x": {"begin": " th", "end": "\n", "repetition_penalty": 1.5},
        "y": {"begin": 300, "end": 13, "draw": "gumbel"},
        "histories": "own",
    },
    {"x": {"begin": "the", "end": "999999"}, "y": {"begin": "ou", "end": " ", "logit_bias": [["I", 4]]}},
    {
        "x": {"begin": "\n", "adaptive_target": 0.3},
        "answer": {"temperature": 1.2, "samplers": "min_p;temperature", "min_p": 0.05},
    },
]  # fmt: skip
OPTIONS: list[tuple[str, dict[str, Any]]] = [
    *((LIGHT[:n], {"heal": True, "seed": n}) for n in (1, 2, 9, 12, 21, 27, 29)),
    ("ROMEO: \u00e9\U0001f600", {"heal": True}),
    ("ROMEO:", {"stop_loops": {"repeats": 3, "min_tokens": 6}, "preset": "greedy"}),
    ("ROMEO:", {"stop_loops": {}, "preset": "greedy"}),
    ("ROMEO:", {"stop_loops": '{"min_tokens": 3}', "top_k": 2}),
    ("ROMEO:", {"stop_loops": "2,12", "top_k": 2}),
    ("ROMEO:", {"stop_loops": [2, 1], "top_k": 4}),
    ("a <think>", {"reasoning_budget": 0}),
    ("a <think>", {"reasoning_budget": 7, "reasoning_budget_message": "\n... no.\u00e9"}),
    ("a <think> b</think> c", {"reasoning_budget": 7}),
    ("<think>a</think><think>", {"reasoning_budget": 2, "reasoning_budget_grace": 9, "seed": 5}),
    ("<think>a</think><think>", {"reasoning_budget": 2, "reasoning_budget_grace": 2, "seed": 5}),
    ("ROMEO:", {"reasoning_budget": 4, "reasoning_marks": ["\n", "!"]}),
    ("ROMEO:", {"reasoning_budget": 4, "reasoning_marks": ["\nI", "x"], "logit_bias": [["I", 9]]}),
    ("ROMEO:", {"reasoning_budget": 9, "reasoning_marks": ["I", " the"], "top_k": 3}),
    *(("ROMEO:", {"banned_strings": ["the", " my", "e\n", "Juliet"], "seed": n}) for n in range(4)),
    ("ROMEO:", {"banned_strings": "I", "top_k": 2}),
    ("ROMEO:", {"banned_strings": [" the", "\n\n"], "stop": ["\n"], "seed": 4}),
    ("ROMEO:", {"banned_strings": [" ", "a", "e"], "seed": 5, "stop_loops": [2, 4]}),
    ("ROMEO: \u00e9", {"banned_strings": ["\u00e9", "\U0001f600x", "the lord my"], "temperature": 3.0}),
    (LIGHT, {"heal": True, "banned_strings": ["windows", "ch", "ter"]}),
    ("ROMEO:", {"banned_strings": ["b", "ou"], "grammar": 'root ::= ("ay" | "nay") " " [a-z ]{30}'}),
    ("ROMEO:", {"banned_strings": ["I would not be so long to", "ll th"], "top_k": 3, "ignore_eos": True}),
    ("ROMEO:\n" * 40, {"banned_strings": ["a", "\n\n", "lo"], "seed": 8}),
    ("ROMEO:", {"stop_loops": {"repeats": 2, "min_tokens": 4, "temperature": 1.5}, "top_k": 2}),
    ("ROMEO:", {"stop_loops": [2, 3, 50, 2], "temperature": 0.3, "dynatemp_range": 0.2}),
    ("ROMEO:", {"stop_loops": "2,1,1.5,3", "samplers": "top_k", "top_k": 2}),
    ("ROMEO:", {"stop_loops": "2,3,9,4", "preset": "greedy", "mirostat": 2}),
    ("ROMEO:", {"stop_loops": [2, 2, 3.0, 5], "grammar": 'root ::= ([a-c]+ " ")+'}),
    ("ROMEO:", {"stop_loops": [2, 2, 9.0, 5], "banned_regex": "[aeo] ", "top_k": 3}),
    *(("ROMEO: <think>", {"seed": n, "phases": PHASES[n % len(PHASES)]}) for n in range(12)),
    ("ROMEO:\n a", {"heal": True, "phases": {"x": {"begin": "\n", "end": "e", "top_k": 2}}}),
    ("ROMEO:", {"phases": {"x": {"begin": "e"}}, "grammar": 'root ::= ([a-e]+ " ")+'}),
    ("ROMEO:", {"phases": {"x": {"begin": "e"}}, "banned_strings": ["the", "a"], "stop_loops": [2, 9]}),
    ("<think>", {"reasoning_budget": 2, "grammar": 'root ::= [^<]* "</think>" [a-z]+ "."'}),
]  # fmt: skip


def test_texts_are_the_same(run: Run) -> None:
    expected = check_texts(run, OPTIONS, 60)
    assert {"loop", "length", "grammar"} <= {told["reason"] for told in expected}


PAIRS = [a + b for a in "aeiou " for b in "bcdfhlmnrstw"]


@pytest.mark.parametrize("name", ["gemma3", "mamba", "jamba"])
def test_windows_and_states_go_back_to_the_same_texts(run: Run, tmp_path: Path, name: str) -> None:
    spec = replace(SPECS[name], n_vocab=2048)
    path = write_model(tmp_path / "model.gguf", spec, tokenizer_from=bundled_model())
    texts: list[tuple[str, dict[str, Any]]] = [
        ("ROMEO:", {"banned_strings": PAIRS, "ignore_eos": True, "seed": n}) for n in range(3)
    ]
    check_texts(run, texts, 40, path)


@pytest.mark.parametrize(("repeats", "least"), [(2, 1), (3, 10), (2, 64), (5, 7)])
def test_loops_end_where_they_do_here(values: Values, repeats: int, least: int) -> None:
    r = random.Random(repeats * 100 + least)
    texts = []
    for period in (1, 2, 3, 7, 8, 9, 16, 31, 50):
        cycle = [r.choice((0, 1, 2, 70000)) for _ in range(period)]
        texts.append([r.randrange(3) for _ in range(r.randrange(40))] + cycle * 20)
    code = """
      const { LoopDetector } = await inside('loops.js')
      return given.texts.map((text) => {
        const detector = new LoopDetector(given.limits)
        return text.map((token) => detector.push(token))
      })
    """
    [found] = values(code, given={"texts": texts, "limits": [repeats, least]})
    for text, periods in zip(texts, found, strict=True):
        detector = LoopDetector(repeats, least)
        assert periods == [detector.push(token) for token in text]


def test_looking_for_loops_costs_the_same_in_a_long_text(values: Values) -> None:
    r = random.Random(6)
    code = """
      const { LoopDetector } = await inside('loops.js')
      let reads = 0
      const tokens = new Proxy([], { get: (all, key) => (reads++, all[key]) })
      const detector = Object.assign(new LoopDetector([4, 64]), { tokens })
      return given.map((token) => {
        detector.push(token)
        return reads
      })
    """
    [reads] = values(code, given=[r.randrange(500) for _ in range(8001)])
    assert reads[8000] - reads[7000] < 2 * (reads[2000] - reads[1000])


@pytest.mark.parametrize("order", ["temperature;top_k", "top_k", "temperature;top_k;temperature"])
def test_loops_raise_the_temperature_where_they_do_here(values: Values, order: str) -> None:
    r, limits = random.Random(4), (2, 3, 1.5, 4)
    tokens = [r.choice((0, 0, 0, 1, 2)) for _ in range(300)]
    given: dict[str, Any] = {"samplers": order.split(";"), "top_k": 3}
    given |= {"temperature": 0.5} if "temperature" in order else {}
    code = """
      const { LoopWatch } = await inside('loops.js')
      const [parameters, limits, tokens] = given
      const chain = new Chain(parameters)
      const watch = new LoopWatch(limits, chain)
      const own = ({ constructor, temperature }) => (constructor.sampler === 'temperature' ? temperature : 0)
      const seen = () => chain.samplers.map(own)
      const made = tokens.map((token) => [watch.push(token), seen()])
      watch.end()
      return [...made, seen()]
    """
    chain = SamplingParams(seed=1, **given).chain()
    own = given.get("temperature", 1.0)
    watch = LoopWatch(limits, chain, own)

    def seen() -> list[float]:
        return [getattr(each, "temperature", 0) for each in chain]

    expected: list[Any] = [[watch.push(token), seen()] for token in tokens]
    watch.end()
    assert values(code, given=[given, limits, tokens]) == [[*expected, seen()]]
    assert {max(each) for _, each in expected} == {1.5, own if "temperature" in order else 0}


REFUSED = {
    "{ stopLoops: { repeats: 1 } }": "repeats=1 is out of range",
    "{ stopLoops: [4, 5000] }": "min_tokens=5000 is out of range",
    "{ stopLoops: { repeat: 4 } }": "stopLoops=",
    "{ stopLoops: { temperature: 0.5 } }": "temperature=0.5 is not above the request's",
    "{ stopLoops: [4, 64, 1.5, 0] }": "for=0 is out of range",
    "{ stopLoops: [4, 64, 2] }": "stopLoops=",
    "{ heal: 'yes' }": "heal=",
    "{ heal: true, grammar: 'root ::= \"a\"' }": "heal=true",
    "{ heal: true, reasoningBudget: 3 }": "heal=true",
    "{ completeGrammar: true, reasoningBudget: 3 }": "completeGrammar=true",
    "{ reasoningBudget: -2 }": "reasoningBudget=-2",
    "{ reasoningBudgetGrace: -1 }": "reasoningBudgetGrace=-1",
    "{ reasoningBudget: 3, reasoningBudgetMessage: 'a</think>' }": "reasoningBudgetMessage=",
    "{ reasoningBudget: 3, stop: 'b', reasoningBudgetMessage: 'ab' }": "reasoningBudgetMessage=",
    "{ bannedStrings: [''] }": "bannedStrings=",
    "{ bannedStrings: 'a', reasoningBudget: 3 }": "bannedStrings=",
    "{ bannedStrings: 'a', completeGrammar: true }": "completeGrammar=true",
    "{ phases: { start: 'answer' } }": "has no phase",
    "{ phases: { tool: { top_k: 3 } } }": "nothing in the options of a text says how 'tool' begins",
    "{ phases: { x: { end: 'a' } } }": "nothing says how 'x' begins",
    "{ phases: { x: { begin: 1e6 } } }": "mark 1000000 is no token",
    "{ phases: { x: { begin: 'a' }, y: { begin: 'ba' } } }": "'y' begins with",
    "{ phases: { answer: { begin: 'a' } } }": "'answer' has marks",
    "{ phases: { answer: { seed: 3 } } }": "'answer' has seed",
    "{ phases: { answer: { top_k: -2 } } }": "phases: in 'answer': top_k=-2",
    "{ phases: { answer: {}, start: 'x' } }": "start=",
    "{ phases: { answer: {}, histories: 'x' } }": "histories=",
    "{ phases: { answer: {} }, stopLoops: [2, 2, 9, 5] }": "in the chains of phases",
    "{ reasoningMarks: ['a'] }": "reasoningMarks=",
}


def test_a_cache_goes_back_or_begins_anew(values: Values) -> None:
    code = """
      const { following } = await inside('completion.js')
      return [[0, 9], [0, null], [2, 9], [2, null]].flatMap(([forget, next]) =>
        ['', 'CannotRewind', 'ContextFull'].map((error) => {
          const told = []
          const seqRm = (seq, at) => {
            told.push(at)
            if (error) throw new AleatorError(error, '')
          }
          const decoded = [1, 2, 3, 4, 5]
          try {
            const made = following({ seqRm, clear: () => told.push('clear') }, decoded, { next, forget })
            return [made, decoded, told]
          } catch (error) {
            return error.name
          }
        }))
    """
    [found] = values(code)
    kept = [[9], [1, 2, 3, 4, 5], []]
    again = [[5], [1, 2, 3, 4], [4]], [[1, 2, 3, 4, 5], [], [4, "clear"]], "ContextFull"
    other = [[9], [1, 2, 3], [3]], [[1, 2, 3, 9], [], [3, "clear"]], "ContextFull"
    both = [[3], [1, 2], [2]], [[1, 2, 3], [], [2, "clear"]], "ContextFull"
    assert found == [kept, kept, kept, *again, *other, *both]


def test_what_cannot_be_avoided_ends_with_an_error(refuses: Refuses) -> None:
    code = """
      const letters = model.tokenizer.encode('abcdefgh', { addSpecial: false })
      const banned = { allowed_token_ids: letters, bannedStrings: [...'abcdefgh'] }
      await model.generate('a', { ...banned, seed: 1, maxTokens: 9 }).text()
    """
    refuses({code: "none of the tokens that are left"}, "LogitsError")


def test_what_is_wrong_is_refused_by_name(refuses: Refuses) -> None:
    refuses({f"model.generate('a', {each})": said for each, said in REFUSED.items()})


@pytest.mark.parametrize(
    "name", ["stop", "heal", "reasoningBudget", "bannedStrings", "bannedRegex"]
)
def test_texts_need_a_vocabulary(values: Values, name: str) -> None:
    given = {name: {"heal": True, "reasoningBudget": 0}.get(name, "a")}
    code = """
      const { textOptions } = await inside('text-options.js')
      return [Boolean(textOptions({}, given)), textOptions(null, given)]
    """
    [told] = values(code, given=given)
    assert told["error"] == "TokenizerError"
    assert told["message"].startswith(f"{name}: the model has no vocabulary")


def test_a_chat_knows_the_marks_of_its_template(talks: Talks) -> None:
    talk = [{"role": "user", "content": "a"}]
    source = "{{ messages[0].content }}<think>"
    plain = {"chatTemplate": "{{ messages[0].content }}"}
    phases = {"thinking": {"top_k": 2}, "answer": {"temperature": 1.5}}
    divided = {"chatTemplate": source, "phases": phases, "maxTokens": 30, "seed": 2}
    opened = {"chatTemplate": source, "reasoningBudget": 4, "maxTokens": 30, "seed": 2}
    wrong = [{**plain, "reasoningBudget": 4}, {**plain, "heal": True}, {**plain, "phases": phases}]
    told, in_phases, none, healed, unmarked = talks(talk, opened, divided, *wrong)
    answer = aleator.load().chat(
        talk, chat_template=source, reasoning_budget=4, max_tokens=30, seed=2
    )
    assert told["pieces"] == "".join(answer)
    assert told["message"]["reasoning_content"] == answer.message.reasoning_content
    assert "nothing says how this model writes its reasoning" in none["message"]
    assert "heal=true" in healed["message"]
    other = aleator.load().chat(talk, chat_template=source, phases=phases, max_tokens=30, seed=2)
    assert in_phases["pieces"] == "".join(other)
    assert "nothing in the chat template says how 'thinking' begins" in unmarked["message"]


def test_a_text_after_nothing_begins_without_the_space_of_the_vocabulary(
    values: Values, tmp_path: Path
) -> None:
    path = tmp_path / "spm.gguf"
    path.write_bytes(lzma.decompress((ROOT / "tests/data/vocab/llama-spm.gguf.xz").read_bytes()))
    code = """
      const { Completion } = await inside('completion.js')
      const bytes = await (await import('node:fs/promises')).readFile(given)
      const data = new native.NativeArray(Uint8Array, bytes.length)
      data.array.set(bytes)
      const tokenizer = new Tokenizer(new Vocabulary(new GGUF(data)))
      const [bos, hello] = tokenizer.encode('Hello')
      return [[bos], [bos, hello]].map((prompt) => {
        const text = { tokenizer, nCtx: 9, prompt, maxTokens: 5, stops: [] }
        return new Completion(new Chain(), text).feed(hello)
      })
    """
    assert values(code, given=str(path)) == [["Hello", " Hello"]]
