from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from aleator import LanguageModel
from aleator.cli.declared import unescape
from aleator.generate.session_file import SessionFile
from aleator.models.hub.bundled import bundled_model
from tests.cli.conftest import Command

ROMEO = ("generate", "-t", "1", "-p", "ROMEO:", "--seed", "7")


@pytest.fixture
def text(model: LanguageModel) -> str:
    return model.generate("ROMEO:", max_tokens=12, seed=7).text


def test_text_goes_to_standard_output_and_nothing_else(aleator: Command, text: str) -> None:
    result = aleator(*ROMEO, "-n", "12")
    assert (result.code, result.out) == (0, text)
    assert aleator(*ROMEO, "-n", "20").out.startswith(text)


def test_standard_error_tells_seed_parameters_chain_and_speed(
    aleator: Command, model: LanguageModel
) -> None:
    err = aleator(*ROMEO, "-n", "3", "--repeat-penalty", "1.1").err
    assert "seed: 7\n" in err
    assert "parameters: repetition_penalty=1.1 " in err
    assert " top_k=40 top_p=0.95 min_p=0.05 temperature=0.8 (" in err
    assert "chain: logits -> penalties -> top_k -> top_p -> min_p -> temperature -> dist\n" in err
    speeds = (
        r"prompt \d+ tokens, [\d.]+ tokens/s \| text 3 tokens, [\d.]+ tokens/s \| sampler [\d.]+ us"
    )
    assert re.search(speeds, err)
    assert "ended by: length" in err


def test_a_draft_model_guesses(aleator: Command) -> None:
    words = ("generate", "-p", "ROMEO:", "-n", "40", "--temp", "0", "--model-draft", "bundled")
    guessed, alone = aleator(*words), aleator(*words, "--spec-type", "none")
    assert guessed.out == alone.out
    assert re.search(r"tokens/s, [1-9]\d* of \d+ guesses right \|", guessed.err), guessed.err
    assert "guesses" not in alone.err


def test_the_log_tells_where_samplers_run(aleator: Command) -> None:
    line = (
        "INFO aleator.generate.sampling_device: samplers: all run on the host, "
        "because the model is on the CPU\n"
    )
    assert line in aleator(*ROMEO, "-n", "1", "-v").err
    assert "samplers:" not in aleator(*ROMEO, "-n", "1").err
    pytest.importorskip("torch")
    told = "samplers: device (cpu): top_k -> top_p -> min_p -> temperature -> dist; host: nothing;"
    assert told in aleator(*ROMEO, "-n", "1", "-v", "--sampling-device", "device").err


def test_what_does_nothing_is_not_told(aleator: Command) -> None:
    err = aleator(*ROMEO, "-n", "1", "--preset", "vllm", "--numerics", "llama.cpp").err
    assert "parameters: numerics=llama.cpp (the others are neutral)\nchain: logits -> dist\n" in err
    err = aleator(*ROMEO, "-n", "1", "--mirostat", "2", "--ignore-eos").err
    assert "parameters: mirostat=2 temperature=0.8 ignore_eos (" in err
    assert "chain: logits -> logit_bias -> temperature -> mirostat_v2\n" in err


def test_layers_on_devices(aleator: Command) -> None:
    pytest.importorskip("torch")
    made = aleator(*ROMEO, "-n", "2", "-v", "--device-map", "cpu:0=0:2,cpu:1=2:6")
    assert made.code == 0
    assert "weights: 2 layers, cpu:0: 3.82 MiB" in made.err
    assert "weights: 4 layers, cpu:1: 6.63 MiB" in made.err
    assert "6 layers, cpu:0 1.00 MiB + cpu:1 2.00 MiB: K (f16)" in made.err
    refused = aleator(*ROMEO, "--device-map", "cpu:0=0:2,cpu:1=3:6")
    assert (refused.code, refused.out) == (2, "")
    assert "--device-map: device_map='cpu:0=0:2,cpu:1=3:6': layer 2 has no device" in refused.err


def test_a_seed_that_was_drawn_is_told(aleator: Command) -> None:
    first = aleator("generate", "-p", "ROMEO:", "-n", "12", "-t", "1")
    found = re.search(r"seed: (\d+)", first.err)
    assert found is not None
    words = ("-n", "12", "-t", "1", "--seed", found[1])
    assert aleator("generate", "-p", "ROMEO:", *words).out == first.out


def test_prompts_from_files_and_standard_input(aleator: Command, text: str, tmp_path: Path) -> None:
    path = tmp_path / "prompt.txt"
    path.write_bytes(b"ROMEO:\n")
    words = ("--seed", "7", "-n", "12", "-t", "1")
    assert aleator("generate", "-f", str(path), *words).out == text
    assert aleator("generate", *words, stdin=b"ROMEO:").out == text
    assert aleator("generate", "-p", "-", *words, stdin=b"ROMEO:\n").out == text
    assert aleator("generate", "-f", "-", *words, stdin=b"ROMEO:").out == text


def test_an_empty_prompt_starts_from_nothing(aleator: Command) -> None:
    result = aleator("generate", "-p", "", "-n", "5", "--seed", "1")
    assert result.code == 0
    assert "prompt 1 tokens" in result.err


def test_json(aleator: Command, model: LanguageModel) -> None:
    result = aleator(*ROMEO, "-n", "6", "--logprobs", "2", "--json", "--num", "2")
    made = json.loads(result.out)
    generation = model.generate("ROMEO:", max_tokens=6, seed=7, logprobs=2)
    assert made["prompt_tokens"] == list(generation.request.tokens)
    assert made["seed"] == 7
    assert made["params"]["top_k"] == 40
    assert made["chain"].startswith("logits -> ")
    assert made["stats"]["sampled_tokens"] == 12
    first, second = made["completions"]
    assert first["text"] == generation.text != second["text"]
    assert first["tokens"] == generation.tokens
    assert (first["stop_reason"], first["stop_string"]) == ("length", None)
    assert [each["token"] for each in first["logprobs"]] == generation.tokens
    assert [len(each["top"]) for each in first["logprobs"]] == [2] * 6


def test_json_has_no_infinities(aleator: Command) -> None:
    words = ("-n", "2", "--json", "-l", "40-inf", "--logprobs", "2048", "--ignore-eos")
    made = json.loads(aleator(*ROMEO, *words).out, parse_constant=pytest.fail)
    assert made["params"]["logit_bias"] == [[40, "-inf"]]


def test_several_completions(aleator: Command, model: LanguageModel) -> None:
    result = aleator(*ROMEO, "-n", "12", "--num", "2")
    batch = model.generate_batch(["ROMEO:"], n=2, max_tokens=12, seed=7)
    lines = [each.text if each.text.endswith("\n") else f"{each.text}\n" for each in batch]
    assert result.out == "".join(lines)
    assert "completion 2 of 2:" in result.err


def test_logprobs_in_text(aleator: Command, text: str) -> None:
    result = aleator(*ROMEO, "-n", "12", "--logprobs", "1")
    assert result.out == text
    assert len(re.findall(r"^ *-\d+\.\d{4} '", result.err, re.MULTILINE)) == 12


def test_stop_strings(aleator: Command, text: str) -> None:
    stop = text[8:11]
    result = aleator(*ROMEO, "-n", "12", "--stop", "never", "--stop", stop.replace("\n", "\\n"))
    assert result.out == text[: text.index(stop)]
    assert "ended by: stop" in result.err


def test_escapes() -> None:
    assert unescape(r"a\nb\tc\\n\x") == "a\nb\tc\\n\\x"


def test_no_escape(aleator: Command) -> None:
    words = ("generate", "--no-escape", "-p", r"a\n", "-n", "0", "--json")
    assert json.loads(aleator(*words).out)["prompt"] == r"a\n"
    assert json.loads(aleator(*words[:1], *words[2:]).out)["prompt"] == "a\n"


def test_echo(aleator: Command, text: str) -> None:
    assert aleator(*ROMEO, "-n", "12", "--echo").out == "ROMEO:" + text


def test_context_options(aleator: Command, text: str) -> None:
    words = (
        "-b", "2", "-ub", "1", "-tb", "1", "-c", "64", "-ctk", "f32", "-ctv", "f32", "-fa", "off",
    )  # fmt: skip
    assert aleator(*ROMEO, "-n", "12", *words).out == text


def test_a_full_context_is_explained(aleator: Command) -> None:
    result = aleator(*ROMEO, "-c", "16", "-n", "50")
    assert result.code == 4
    assert "context is full: 16 positions" in result.err
    assert "larger -c (the model was trained with 1024), or --context-shift" in result.err
    unlimited = aleator(*ROMEO, "-c", "16")
    assert (unlimited.code, unlimited.out) == (0, result.out)
    shifted = aleator(*ROMEO, "-c", "16", "-n", "50", "--context-shift", "--keep", "2")
    assert shifted.code == 0
    assert shifted.out.startswith(result.out)
    assert len(shifted.out) > len(result.out)


@pytest.mark.parametrize(
    ("words", "stdin", "code", "message"),
    [
        (["-p", "x", "--temp", "inf"], b"", 2, r"temperature=inf is out of range: give a number in"),
        (["-p", "x", "--top-k", "many"], b"", 2, "top_k='many' is not a whole number"),
        (["-p", "x", "--tmp", "1"], b"", 2, "unknown option --tmp; did you mean --temp"),
        (["-p", "x", "-l", "9999+1"], b"", 2, "token 9999"),
        (["-p", "x", "--device", "abacus"], b"", 2, "device='abacus'"),
        (["-p", "x", "-f", "y"], b"", 2, "-p and -f are both given"),
        (["-f", "nothing.txt"], b"", 3, "nothing.txt: No such file"),
        (["-m", "nothing.gguf", "-p", "x"], b"", 3, "nothing.gguf: no such file"),
        (["-p", "x", "-hff", "m.gguf"], b"", 2, "--hf-file m.gguf needs -hf ORG/NAME"),
        (["-p", "x", "-hf", "a/b:Q8_0", "-hff", "m.gguf"], b"", 2, "without :QUANT"),
        (["-p", "ROMEO, ROMEO", "-c", "2"], b"", 4, r"prompt has \d+ tokens and the context 2"),
        ([], b"ab\xffc", 2, "standard input is not valid UTF-8: byte 0xff at offset 2"),
    ],
)  # fmt: skip
def test_bad_input(
    aleator: Command, words: list[str], stdin: bytes, code: int, message: str
) -> None:
    result = aleator("generate", "-n", "3", *words, stdin=stdin)
    assert result.code == code
    assert result.out == ""
    assert re.search(f"aleator: error: .*{message}", result.err)


def test_files_that_are_no_models(aleator: Command, tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(b"hello")
    data = bundled_model().read_bytes()
    foreign = tmp_path / "foreign.gguf"
    foreign.write_bytes(data.replace(b"llama", b"lloma"))
    for length in (0, 3, 30, 3000, 60_000, len(data) - 1):
        cut = tmp_path / "cut.gguf"
        cut.write_bytes(data[:length])
        result = aleator("generate", "-m", str(cut), "-p", "x")
        assert (result.code, result.out) == (3, "")
        assert result.err.startswith(f"aleator: error: {cut}: ")
        assert result.err.count("\n") == 1
    result = aleator("generate", "-m", str(other), "-p", "x")
    assert result.code == 3
    assert f"aleator: error: {other}: " in result.err
    result = aleator("generate", "-m", str(foreign), "-p", "x")
    assert result.code == 3
    assert "lloma" in result.err
    assert "qwen2" in result.err
    (tmp_path / "adapter_config.json").touch()
    result = aleator("generate", "-m", str(tmp_path), "-p", "x")
    assert (result.code, "adapter, which is given beside" in result.err) == (3, True), result.err


def test_a_session_goes_on(aleator: Command, model: LanguageModel, tmp_path: Path) -> None:
    whole = model.generate("ROMEO:", max_tokens=25, seed=7)
    path = str(tmp_path / "scene.state")
    first = aleator(*ROMEO, "-n", "10", "--session", path)
    assert first.code == 0
    assert re.search(r"session: keys and values of \d+ tokens are in .*scene\.state", first.err)
    second = aleator("generate", "-t", "1", "-n", "15", "--session", path)
    assert first.out + second.out == whole.text
    assert "seed: 7\n" in second.err
    assert re.search(
        r"session: .*scene\.state holds \d+ tokens, \d+ with keys and values", second.err
    )
    third = aleator(*ROMEO, "-n", "3", "--session", path)
    assert "prompt 1 tokens (" in third.err
    assert " more reused)" in third.err


def test_a_session_goes_on_after_a_context_shift(aleator: Command, tmp_path: Path) -> None:
    options = ("-c", "32", "--context-shift", "-t", "1", "--temp", "0", "--ignore-eos")
    whole = aleator("generate", "-p", "Hello there", "-n", "90", *options)
    path = str(tmp_path / "scene.state")
    first = aleator("generate", "-p", "Hello there", "-n", "60", *options, "--session", path)
    second = aleator("generate", "-n", "30", *options, "--session", path)
    assert (first.code, second.code) == (0, 0)
    assert first.out + second.out == whole.out
    assert "holds 65 tokens, 19 with keys and values, 45 forgotten by" in second.err


def test_another_prompt_does_not_replace_a_session(aleator: Command, tmp_path: Path) -> None:
    path = tmp_path / "scene.state"
    words = ("generate", "-t", "1", "-n", "3", "--session", str(path), "-p")
    assert aleator(*words, "ROMEO:").code == 0
    before = path.read_bytes()
    refused = aleator(*words, "JULIET:")
    assert (refused.code, refused.out) == (2, "")
    assert "another text" in refused.err
    assert path.read_bytes() == before
    assert aleator(*words, "JULIET:", "--session-new").code == 0
    assert path.read_bytes() != before
    path.write_bytes(b"nothing")
    assert aleator(*words, "JULIET:", "--session-new").code == 0
    assert aleator("generate", "-p", "a", "-n", "1", "--session-new").code == 2


def test_a_session_that_cannot_be_written_is_refused_before_any_text(
    aleator: Command, tmp_path: Path
) -> None:
    path = tmp_path / "missing" / "scene.state"
    refused = aleator(*ROMEO, "-n", "3", "--session", str(path))
    assert (refused.code, refused.out) == (2, "")
    assert f"session={path}: there is no directory {path.parent}" in refused.err
    with SessionFile(tmp_path / "s"):
        refused = aleator(*ROMEO, "-n", "3", "--session", str(tmp_path / "s"))
    assert (refused.code, refused.out) == (1, "")
    assert "in use by this process" in refused.err


def test_a_session_is_of_one_text_and_whole(aleator: Command, tmp_path: Path) -> None:
    path = tmp_path / "scene.state"
    result = aleator(*ROMEO, "-n", "1", "--num", "2", "--session", str(path))
    assert (result.code, path.exists()) == (2, False)
    path.write_bytes(b"nothing")
    result = aleator(*ROMEO, "-n", "1", "--session", str(path))
    assert result.code == 3
    assert "not a state file of Aleator" in result.err
    assert path.read_bytes() == b"nothing"


def test_a_loop_ends_the_text(aleator: Command) -> None:
    words = ("generate", "-p", "ROMEO:", "-n", "300", "--temp", "0", "--ignore-eos")
    result = aleator(*words, "--stop-loops", "3,32")
    assert result.code == 0
    assert "text 60 tokens" in result.err
    assert "ended by: loop" in result.err
    warmer = aleator(*words, "--seed", "1", "--stop-loops", "3,32,1.5,8")
    assert warmer.out[: len(result.out)] == result.out
    assert "ended by: length" in warmer.err
    wrong = aleator(*words, "--stop-loops", "1,32")
    assert wrong.code == 2
    assert "--stop-loops: stop_loops: repeats=1 is out of range" in wrong.err


def test_banned_expressions(aleator: Command, model: LanguageModel) -> None:
    pytest.importorskip("re2")
    words = ("generate", "-p", "ROMEO:", "-n", "24", "--seed", "3", "--banned-regex")
    half = {"regex": "[aeiou]", "probability": 0.5}
    made = aleator(*words, "(?i)th", "--banned-regex", json.dumps(half))
    options: dict[str, Any] = {"banned_regex": ["(?i)th", half], "max_tokens": 24, "seed": 3}
    assert made.out == model.generate("ROMEO:", **options).text
    wrong = aleator(*words, "a*")
    assert wrong.code == 2
    assert "--banned-regex: banned_regex='a*': a match may have any number of bytes" in wrong.err


BEAMS = ("generate", "-t", "1", "-p", "ROMEO:", "-n", "8", "--num-beams", "3")


def test_beams(aleator: Command, model: LanguageModel) -> None:
    found = model.beams("ROMEO:", max_tokens=8, num_beams=3, num_return_sequences=2)
    result = aleator(*BEAMS)
    assert (result.code, result.out) == (0, found[0].text)
    several = aleator(*BEAMS, "--num-return-sequences", "2")
    assert several.out == "".join(each.text.removesuffix("\n") + "\n" for each in found)
    assert f"beam 2 of 2: score {found[1].score:.4f}" in several.err
    told = json.loads(aleator(*BEAMS, "--json", "--early-stopping", "never").out)["beams"][0]
    assert (told["tokens"], told["score"]) == (list(found[0].tokens), found[0].score)
    drawn = aleator(*BEAMS, "--stochastic-beams", "--seed", "4")
    own = model.beams("ROMEO:", max_tokens=8, num_beams=3, stochastic=True, seed=4)
    assert drawn.out == own[0].text
    assert "seed: 4\n" in drawn.err
    assert aleator(*BEAMS, "--regex", "[a-z]{30}").code == 4


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--num", "3"], "--num and --num-beams do not go together"),
        (["--logprobs", "2"], "--logprobs and --num-beams"),
        (["--session", "x"], "--session and --num-beams"),
        (["--temp", "0"], "leave it out"),
        (["--early-stopping", "maybe"], "--early-stopping: early_stopping='maybe'"),
        (["--num-return-sequences", "4"], "give at most num_beams"),
    ],
)
def test_beams_refuse(aleator: Command, words: list[str], says: str) -> None:
    result = aleator(*BEAMS, *words)
    assert result.code == 2
    assert says in result.err
    assert result.out == ""


def test_options_of_beams_need_beams(aleator: Command) -> None:
    result = aleator(*ROMEO, "-n", "2", "--length-penalty", "2")
    assert result.code == 2
    assert "--length-penalty needs --num-beams N" in result.err
