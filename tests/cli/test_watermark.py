from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from tests.cli.conftest import Command

KEY = Path(__file__).parents[1] / "golden" / "watermark_key.txt"
FLAG = ("--watermark-key-file", str(KEY))
WORDS = (
    "generate", "-t", "1", "-p", "ROMEO:", "-n", "60", "--seed", "7", "--temp", "1", "--preset", "neutral",
)  # fmt: skip
NAME = "fingerprint:1af0a723b1c53f94"


def test_a_text_is_found_by_its_key_and_made_again(
    aleator: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, text = tmp_path / "record.json", tmp_path / "text.txt"
    made = aleator(*WORDS, "--draw", "watermark", *FLAG, "--replay", str(record))
    assert made.code == 0
    text.write_text(made.out)
    secret = KEY.read_text().strip()
    assert NAME in record.read_text()
    assert secret not in record.read_text() + made.out + made.err
    assert str(KEY) not in record.read_text()
    found = aleator("watermark", "detect", str(text), *FLAG)
    assert found.code == 0
    assert f"key: {NAME}" in found.out
    ids = tmp_path / "ids.json"
    ids.write_text(json.dumps(json.loads(record.read_text())["made"]["tokens"]))
    told = json.loads(aleator("watermark", "detect", str(ids), "--ids", "--json", *FLAG).out)
    assert (told["n_tokens"], told["fingerprint"]) == (60, NAME)
    assert told["log10_p"] < -10
    monkeypatch.setenv("ALEATOR_WATERMARK_KEY", "not the key of this text")
    other = aleator("watermark", "detect", "-", "--json", stdin=made.out.encode())
    assert json.loads(other.out)["p_value"] > 1e-3
    other_key = tmp_path / "other.json"
    other_key.write_text(record.read_text().replace(NAME, "fingerprint:0123456789abcdef"))
    refused = aleator("replay", str(other_key))
    assert refused.code == 2
    assert "this process has no such key" in refused.err
    again = aleator("replay", str(record), *FLAG)
    assert (again.code, again.out) == (0, "the text is the same: 60 tokens, seed 7\n")


def test_a_tournament_is_found(aleator: Command, tmp_path: Path) -> None:
    key, text = tmp_path / "keys.json", tmp_path / "text.txt"
    key.write_text("[654, 400, 836, 123, 340, 443, 597, 160, 57]")
    flags = ("--draw", "synthid", "--watermark-key-file", str(key))
    text.write_text(aleator(*WORDS, *flags).out)
    found = aleator("watermark", "detect", str(text), *flags)
    assert found.code == 0
    assert "(0.5 expected without the watermark)" in found.out
    told = json.loads(aleator("watermark", "detect", str(text), "--json", *flags).out)
    assert (told["layers"], told["log10_p"] < -3) == (9, True)


def test_explanations_and_pages_tell_the_numbers_and_not_the_key(
    aleator: Command, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    words = ("explain", "-t", "1", "-p", "ROMEO:", "--seed", "7", "--draw", "watermark", *FLAG)
    one = aleator(*words, "--temp", "1")
    assert "watermark: an ordinary draw" in one.out
    made = aleator(*words, "-n", "8", "--html", str(page))
    assert made.code == 0
    text = page.read_text()
    assert "watermark: an ordinary draw" in text
    assert re.search(r"watermark: u 0\.\d{4} after ", text)
    for each in (KEY.read_text().strip(), str(KEY)):
        assert each not in one.out + made.out + made.err + text


def test_a_key_without_a_keyed_draw_is_refused(aleator: Command) -> None:
    for words in (
        ("generate", "-n", "1"),
        ("explain",),
        ("generate", "-n", "1", "--draw", "gumbel"),
    ):
        made = aleator(words[0], "-p", "a", *words[1:], *FLAG)
        assert (made.code, made.out) == (2, "")
        assert "watermark_key_file would have no effect: draw=" in made.err


def test_the_help_names_the_default_of_this_command(aleator: Command) -> None:
    assert "default: watermark)" in " ".join(aleator("watermark", "--help").out.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["detect"], "write: aleator watermark detect FILE"),
        (["find", "x"], "write: aleator watermark detect FILE"),
        (["detect", "-"], "a watermark needs a key: give watermark_key_file, or set"),
        (["detect", "-", "--watermark-key-file", "no such file"], "the file cannot be read (No such"),
        (["detect", "-", "--watermark-key-file", os.devnull], "the key has 0 bytes: give 16 to 4096"),
        (["detect", "-", *FLAG, "--watermark-ngram", "17"], "watermark_ngram=17 is out of range"),
        (["detect", "-", *FLAG, "--draw", "gumbel"], "draw='gumbel' leaves no watermark"),
        (["detect", "-", *FLAG, "--ids"], "not a JSON list of token ids"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told(aleator: Command, words: list[str], message: str) -> None:
    result = aleator("watermark", *words, stdin=b"ROMEO:")
    assert (result.code, result.out) == (2, "")
    assert message in result.err
