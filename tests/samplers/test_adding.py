"""docs/adding-a-sampler.md, done: its blocks go into a copy of the repository, and everything picks them up."""

from __future__ import annotations

import copy
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from golden_portable import chain_of, described, row_of
from golden_rows import row

import aleator
from aleator import _native
from aleator import samplers as S
from aleator.core.errors import ParameterError
from aleator.core.numerics import Row, Step
from aleator.samplers.base import Place
from aleator.samplers.reference import ReferenceChain
from tests.copies import python
from tests.samplers.test_golden_portable import STEMS, cases

ROOT = Path(__file__).parents[2]
STEM = "top_share"
USE = """
import numpy as np
from aleator import samplers as S
from aleator.cli.arguments import Parser
from aleator.cli.sampling import add_sampling_options, sampling_arguments
from aleator.core.errors import ParameterError

row = np.random.default_rng(0).normal(size=300).astype(np.float32)
chain = S.SamplingParams(samplers="top_share", top_share=0.01, seed=3).chain()
assert chain.describe() == "logits -> top_share -> dist"
best = set(np.argsort(-row)[:3].tolist())
tokens = [chain.sample(row) for _ in range(40)]
assert set(tokens) == best
chain.rollback(30)
copy = chain.clone()
assert [chain.sample(row) for _ in range(30)] == tokens[10:] == [copy.sample(row) for _ in range(30)]
for wrong in (-0.1, 1.1, float("nan"), "half"):
    try:
        S.SamplingParams(top_share=wrong)
    except ParameterError as error:
        assert "top_share" in str(error) and "[0, 1]" in str(error)
    else:
        raise AssertionError(wrong)
parser = Parser("generate", "write text", "")
add_sampling_options(parser)
arguments = parser.parse(["--top-share", "0.5"])
arguments.no_escape = False  # of another group of options
assert sampling_arguments(arguments) == {"top_share": 0.5}
assert parser.parse(["--help"]) is None
"""
BENCHMARK = f"""
import sys
sys.path.append("benchmarks")
from host_cases import cases
print([case.ours(500).sample(case.make_rows(500)[0]) for case in cases() if case.stem == {STEM!r}])
"""


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the recipe touches and of the tests that should pick it up, with the recipe followed."""
    root = tmp_path_factory.mktemp("repository")
    package = Path(aleator.__file__).parent
    shutil.copytree(
        package, root / "src" / "aleator", ignore=shutil.ignore_patterns("data", "__pycache__")
    )
    shutil.copy(_native.__file__, root / "src" / "aleator")
    for folder in ("docs", "native", "tools", "tests/golden", "tests/samplers", "benchmarks/host"):
        shutil.copytree(
            ROOT / folder, root / folder, ignore=shutil.ignore_patterns("data", "__pycache__")
        )
    for file in (
        "pyproject.toml",
        "README.md",
        "tests/__init__.py",
        "tests/conftest.py",
        "tests/torch_threads.py",
        "tests/drawn.py",
        "tests/optional.py",
        "tests/test_stems.py",
        "tests/test_from_other_engines.py",
        "tests/device/__init__.py",
        "tests/device/inside.py",
        "tests/device/templates.py",
        "tests/device/test_chain.py",
        "benchmarks/host_cases.py",
    ):
        (root / file).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / file, root / file)

    module, line, golden, told = blocks()[:4]
    (root / f"src/aleator/samplers/{STEM}.py").write_text(module)
    (root / f"tests/golden/portable/{STEM}.json").write_text(golden)
    index = root / "src/aleator/samplers/index.py"
    above = "from aleator.samplers.top_p import TopP as TopP\n"
    assert above in index.read_text()
    index.write_text(index.read_text().replace(above, above + line))
    others = root / "tools/from_other_engines.toml"
    others.write_text(others.read_text().replace("[only_ours]\n", "[only_ours]\n" + told))
    return root


def blocks() -> list[str]:
    """The code of the page, in order."""
    page = (ROOT / "docs" / "adding-a-sampler.md").read_text()
    return re.findall(r"```\w+\n(.*?)```", page, flags=re.DOTALL)


@pytest.mark.slow
def test_a_sampler_is_a_module_a_golden_file_and_a_line(copied: Path) -> None:
    pytest.importorskip("torch")  # for the docs
    assert STEM in python(copied, "tools/golden_portable.py", STEM)
    filled = json.loads((copied / f"tests/golden/portable/{STEM}.json").read_text())
    assert [step["size"] for step in filled["cases"][0]["steps"]] == [65, 65, 65]
    python(copied, "tools/docs.py")
    assert "`TopShare`" in (copied / "docs/samplers.md").read_text()
    assert "`--top-share`" in python(copied, "tools/docs.py", "parameters")
    assert "--top-share" in python(copied, "-c", USE)
    tests = [
        "tests/test_stems.py",
        "tests/test_from_other_engines.py",
        "tests/samplers/test_golden_portable.py",
        "tests/samplers/test_order.py",
        "tests/samplers/test_properties.py",
    ]
    chosen = f"{STEM} or any_chain or neutral or refused or is_told or is_asked_for"
    out = python(copied, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", chosen, *tests)
    assert " passed" in out


def test_its_test_and_its_benchmark_run(copied: Path) -> None:
    test, case = blocks()[6:8]
    (copied / f"tests/samplers/test_{STEM}.py").write_text(test)
    (copied / f"benchmarks/host/{STEM}.toml").write_text(case)
    out = python(
        copied, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"tests/samplers/test_{STEM}.py"
    )
    assert "1 passed" in out
    out = python(copied, "-c", BENCHMARK)
    assert re.fullmatch(r"\[\d+\]\n", out)


@pytest.mark.slow
def test_its_device_form_gives_the_tokens_of_the_host(copied: Path) -> None:
    pytest.importorskip("torch")
    module, imported, entry, chain = blocks()[8:]
    package = copied / "src" / "aleator"
    (package / f"device/backends/torch/{STEM}.py").write_text(module)
    for name, above, line in (
        ("samplers/plan.py", '"top_n_sigma", ', f'"{STEM}", '),
        ("device/backends/torch/program.py", "from aleator.device.backends.torch.user", imported),
        (
            "device/backends/torch/program.py",
            '    "typical_p": truncation.DeviceTypicalP,\n',
            entry,
        ),
        ("device/cases.py", '    "top_p": [', chain),
    ):
        text = (package / name).read_text()
        assert text.count(above) == 1
        (package / name).write_text(text.replace(above, line + above))
    tests = ["tests/device/test_chain.py", "-k", f"test_tokens_are_the_host_s and {STEM}"]
    assert "1 passed" in python(copied, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests)
    planned = f"""
from aleator import DeviceChain, samplers as S
chain = DeviceChain([S.TopShare(top_share=0.5), S.Dist()], 1, 9, kernels="torch")
assert chain.plan().device == ({STEM!r}, "dist")
"""
    python(copied, "-c", planned)


def without_kernel(sampler: S.Sampler) -> S.Sampler:
    """The same sampler as if nobody had written a kernel for it."""
    cls = type(sampler)
    plain = copy.copy(sampler)
    without = {"kernel": None, "native": S.Sampler.native}
    object.__setattr__(plain, "__class__", type(cls.__name__, (cls,), without))
    return plain


# What only kernels can: leave a temperature pending, note a mass, choose a token that is no candidate.
ON_THEIR_OWN = [stem for stem in STEMS if stem not in ("temperature", "softmax", "infill")]


@pytest.mark.parametrize("stem", ON_THEIR_OWN)
def test_without_a_kernel_a_sampler_does_the_same(stem: str) -> None:
    for case in cases(stem):
        sound = chain_of(case)
        plain = [without_kernel(s) if s.name == stem else s for s in sound]
        chain = S.SamplerChain(plain, seed=case["seed"], completion=case["completion"])
        for token in case["accepted"]:
            chain.accept(token)
        rows = [row_of(case, step) for step in range(case["n"])]
        golden = [step["token"] for step in case["steps"]]
        assert [chain.sample(logits) for logits in rows] == golden
        clone = chain.clone()
        for again in (chain, clone):
            again.rollback(2)
            assert [again.sample(logits) for logits in rows[1:]] == golden[1:]
        candidates = S.Candidates(rows[0])
        chain.reset()
        for token in case["accepted"]:
            chain.accept(token)
        chain.apply(candidates)
        assert described(candidates.ids, candidates.logits, golden[0]) == case["steps"][0]


def test_a_temperature_takes_a_kernel() -> None:
    chain = S.SamplerChain([without_kernel(S.Temperature(temperature=0.5)), S.Dist()])
    with pytest.raises(ParameterError, match="kernel of its own"):
        chain.sample(row("spread", 260, 1))


def test_without_a_kernel_the_position_and_the_ordinal_count() -> None:
    rows = [row("spread", 300, 2, step) for step in range(20)]
    samplers = [S.XTC(xtc_probability=0.5, xtc_threshold=0.001), S.Dist()]
    sound = S.SamplerChain(samplers, seed=3)
    plain = S.SamplerChain([without_kernel(s) for s in samplers], seed=3)

    def tokens(chain: S.SamplerChain) -> list[int]:
        return [chain.sample(logits) for logits in rows]

    start = tokens(sound)
    assert tokens(plain) == start
    for chain in (sound, plain):
        chain.position = 1000
        chain.rollback(3)
    moved = tokens(sound)
    assert tokens(plain) == moved != start
    for chain in (sound, plain):
        chain.position = 0
        chain.insert(0, S.XTC())  # does nothing, but it is the first of its kind now
    assert tokens(plain) == tokens(sound) != start


class Remembers(S.Sampler):
    """Masks the token that it saw accepted before the last."""

    name = "remembers"

    def reference(self, row: Row, step: Step, place: Place) -> None:
        key = (self.name, place.ordinal)
        best = int(row.ids[row.logits.argmax()])
        step.pending[key] = (best, best)
        if key in step.state:
            row.keep(row.ids != step.state[key])


def test_without_a_kernel_state_moves_with_the_ordinal() -> None:
    logits = np.array([0, 3, 2, 1], np.float32)
    chain = S.SamplerChain([Remembers(), S.Greedy()])
    assert chain.sample(logits) == 1
    chain.insert(0, Remembers())
    # The first has seen nothing drawn; the second still masks token 1.
    assert [chain.sample(logits) for _ in range(2)] == [2, 2]
    chain.rollback(2)
    chain.remove(0)
    assert chain.sample(logits) == 2


class Unwanted(S.Sampler):
    """Does nothing, and must not be asked to."""

    name = "unwanted"
    neutral = True

    def reference(self, row: Row, step: Step, place: Place) -> None:
        raise AssertionError("a neutral sampler")


def test_whether_a_sampler_is_neutral_is_no_method() -> None:
    with pytest.raises(TypeError, match=r"^Mine\.neutral is a method.*make it a property"):
        type("Mine", (S.Sampler,), {"neutral": lambda self: False})
    type("Mine", (S.Sampler,), {"neutral": property(lambda self: False)})


def test_a_neutral_sampler_is_not_run() -> None:
    logits = np.array([0, 3, 2, 1], np.float32)
    chain = S.SamplerChain([Unwanted(), S.Greedy()])
    assert chain.sample(logits) == ReferenceChain(chain).apply(logits).selected == 1
