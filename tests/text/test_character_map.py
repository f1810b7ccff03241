"""SentencePiece's replacements of characters; maps may be hostile."""

from __future__ import annotations

import random
import struct

import pytest
from tokenizers import normalizers

from aleator.core.errors import TokenizerError
from aleator.text import character_map as maps
from aleator.text.character_map import CharacterMap
from tests.text.sentencepiece_models import character_map

SINGLE = {"ﬁ": "fi", "½": "1/2", "\t": " ", "Ａ": "A", "\u00ad": "", "é": "e\u0301"}
AFTER = SINGLE | {"éa": "x"}
JOINED = SINGLE | {"e\u0301": "é", "e\u0301\u0302": "ê", "가": "ga", "ab": "c"}
PLAIN = {key: value for key, value in JOINED.items() if key != "ab"}


def wanted(text: str, replacements: dict[str, str]) -> str:
    """The text with the longest keys replaced, from its start."""
    made, keys = "", sorted(replacements, key=len, reverse=True)
    while text:
        key = next((key for key in keys if text.startswith(key)), "")
        made += replacements[key] if key else text[0]
        text = text[len(key) or 1 :]
    return made


@pytest.mark.parametrize("replacements", [SINGLE, JOINED, PLAIN, AFTER])
def test_the_longest_key_is_replaced(replacements: dict[str, str]) -> None:
    rng, ours = random.Random(3), CharacterMap(character_map(replacements))
    for _ in range(300):
        text = "".join(
            rng.choice("abe\u0301\u0302ﬁ½\t Ａé\u00ad가각\0\n🚀") for _ in range(rng.randint(0, 20))
        )
        assert ours.replace(text) == wanted(text, replacements), ascii(text)
    assert (ours._of_ascii == {}) == (replacements in (JOINED, AFTER))


def test_single_characters_are_those_of_tokenizers() -> None:
    data = character_map(SINGLE)
    ours, theirs = CharacterMap(data), normalizers.Precompiled(data)
    for character in (*SINGLE, "a", "z", " ", "각", "🚀"):
        assert ours.replace(character) == theirs.normalize_str(character)


def test_long_parts_are_not_remembered() -> None:
    ours = CharacterMap(character_map(SINGLE))
    for length in (maps.REMEMBERED, maps.REMEMBERED + 1):
        assert ours.replace("½" * length) == "1/2" * length
    assert ours._remembered.cache_info().currsize == 1


def test_offsets_of_wide_nodes() -> None:
    """A node that is marked so has 256 times the offset."""
    table = list(struct.unpack("<512I", character_map({"a": "b"})[4 : 4 + 2048] or bytes(2048)))
    table[0] = 1 << 10 | 1 << 9  # the root's children are from 256 on, as before
    data = struct.pack("<512I", *table)
    rest = character_map({"a": "b"})[4 + 2048 :]
    size = struct.unpack("<I", character_map({"a": "b"})[:4])[0]
    ours = CharacterMap(struct.pack("<I", size) + data + rest)
    assert ours.replace("xax") == "xbx"


@pytest.mark.parametrize("entry", [0xFFFFFFFF, 1 << 31 | 0x7FFFFFFF, 300 << 10])
def test_maps_that_lead_outside_themselves(entry: int) -> None:
    data = struct.pack("<I256I", 1024, *[entry] * 256) + b"x\0"
    with pytest.raises(TokenizerError, match=r"leads to .* outside"):
        CharacterMap(data).replace("é")


@pytest.mark.parametrize(("cut", "sound"), [(0, True), (1, False), (3, False)])
def test_replacements_without_an_end(cut: int, sound: bool) -> None:
    data = character_map({"a": "xy"})
    ours = CharacterMap(data[: len(data) - cut])
    if sound:
        assert ours.replace("a") == "xy"
    else:
        with pytest.raises(TokenizerError, match="no replacement"):
            ours.replace("a")


def test_replacements_that_are_not_utf_8() -> None:
    data = character_map({"a": "x"}).replace(b"x\0", b"\xff\0")
    assert CharacterMap(data).replace("ab") == "\ufffdb"


@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize("long", ["key", "replacement"])
def test_maps_that_would_take_all_time_or_memory(long: str, more: int) -> None:
    key = "é" * (maps.MOST_BYTES // 2) + "é" * more if long == "key" else "é"
    value = "x" * (maps.MOST_BYTES + more) if long == "replacement" else "x"
    ours = CharacterMap(character_map({key: value, "b": "c"}))
    assert (ours._of_ascii == {}) == (long == "key" and more == 1)
    if more:
        with pytest.raises(TokenizerError, match=f"{long} of .* {maps.MOST_BYTES} bytes"):
            ours.replace(f"b{key}")
    else:
        assert ours.replace(f"b{key}") == f"c{value}"
