"""One stem per sampler: `git ls-files '*typical_p*'` shows all of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from aleator import samplers as S

ROOT = Path(__file__).parent.parent
# llama.cpp had these once; there is nothing to record golden cases with.
GONE_FROM_LLAMA = ("softmax", "tail_free")


def mentions(path: str, word: str) -> bool:
    return re.search(rf"\b{word}", (ROOT / path).read_text()) is not None


@pytest.mark.parametrize("cls", S.SAMPLERS, ids=lambda cls: cls.name)
def test_a_sampler_is_whole_under_its_stem(cls: type[S.Sampler]) -> None:
    stem = cls.name
    assert cls.__module__ == f"aleator.samplers.{stem}"
    own_kernel = bool(cls.kernel) or cls.native is not S.Sampler.native
    in_llama = bool(cls.llama_kernel) or cls.native_llama is not S.Sampler.native_llama
    wanted = {
        f"src/aleator/samplers/{stem}.py": True,
        f"tests/golden/portable/{stem}.json": True,
        f"native/samplers/{stem}.cpp": own_kernel,
        f"native/llama/{stem}.cpp": in_llama,
        f"tests/golden/{stem}.json": in_llama and stem not in GONE_FROM_LLAMA,
        f"benchmarks/host/{stem}.toml": own_kernel,  # without a kernel there is nothing to measure
    }
    assert {path: (ROOT / path).is_file() for path in wanted} == wanted
    contract = (ROOT / f"src/aleator/samplers/{stem}.py").read_text().partition('"""\n')[0]
    assert "Elsewhere" in contract, "its docstring says how other implementations differ"
    if own_kernel:
        assert mentions(f"native/samplers/{stem}.cpp", f"samplers/{stem}.py")
        assert mentions(f"tests/samplers/test_{stem}.py", f"S.{cls.__name__}")
        assert mentions(f"tests/samplers/test_{stem}.py", "def test_")
    assert mentions("docs/samplers.md", cls.__name__), "`make docs` writes the list of samplers"


@pytest.mark.parametrize("cls", S.SAMPLERS, ids=lambda cls: cls.name)
def test_golden_cases_are_about_their_sampler(cls: type[S.Sampler]) -> None:
    content = (ROOT / f"tests/golden/portable/{cls.name}.json").read_text()
    assert content.count(f'["{cls.name}",') >= content.count('"chain"') > 0


def test_there_are_no_files_of_nothing() -> None:
    names = {cls.name for cls in S.SAMPLERS}
    assert {path.stem for path in (ROOT / "tests/golden/portable").iterdir()} == names
    assert {path.stem for path in (ROOT / "benchmarks/host").iterdir()} <= {*names, "chain"}
