from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from aleator import cache
from aleator.cache import MicroBatch, Part
from aleator.cache.pools.hybrid import HybridBatch
from aleator.cache.pools.recurrent_rows import RecurrentBatch
from aleator.cache.rows.batch import WindowBatch
from aleator.cache.sequence import Sequence
from aleator.cache.sequence_verbs import SequenceVerbs
from aleator.core.errors import NoLogits
from aleator.core.moved import MOVED, RENAMED, MovedModules
from aleator.generate import Batch
from aleator.models.architecture import HuggingFace
from aleator.samplers import Dist, Sampler, SamplerChain, TopK
from aleator.samplers.base import StandaloneSampler
from aleator.samplers.explained import Mark


@contextmanager
def installed() -> Iterator[None]:
    """Skip a test where it meets a package that is not installed."""
    try:
        yield
    except ImportError as error:
        if (error.name or "").startswith("aleator"):
            raise
        pytest.skip(str(error))


@pytest.mark.parametrize(("old", "new"), sorted(MOVED.items()))  # packages first
def test_a_module_is_found_under_its_old_name(old: str, new: str) -> None:
    with installed(), pytest.warns(DeprecationWarning, match=f"{old} is {new} now"):
        found = import_module(old)
    public = {name: each for name, each in vars(import_module(new)).items() if name[:2] != "__"}
    assert public
    assert {name: getattr(found, name) for name in public} == public


def test_other_names_are_not_found() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"aleator\.never"):
        import_module("aleator.never")


def test_what_was_renamed_in_a_moved_module_has_both_names() -> None:
    """Each renamed class is in one of the moved modules, under its old name too."""
    pytest.importorskip("torch")  # modules of device chains need it
    found: dict[str, object] = {}
    for old in MOVED:
        module = ModuleType(old)
        with pytest.warns(DeprecationWarning, match=f"{old} is"):
            MovedModules(MOVED).exec_module(module)
        found.update(vars(module))
    for old, new in RENAMED.items():
        assert found[old] is found[new]


NAMES = (Path(__file__).parents[1] / "data" / "public_names.txt").read_text().replace("\n    ", " ")


@pytest.mark.parametrize("line", NAMES.splitlines())
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_packages_and_docs_offered_before_modules_moved_is_still_there(line: str) -> None:
    module, names = line.split(":")
    with installed():
        found = import_module(module)
        for name in names.split():
            assert getattr(found, name, None) is not None or import_module(f"{module}.{name}")


def test_a_name_that_left_a_package_warns() -> None:
    from aleator.cache import storage

    with pytest.warns(DeprecationWarning, match=r"storage\.make_storage is in .*\.storage now"):
        assert storage.make_storage.__name__ == "Storage"
    with pytest.warns(DeprecationWarning, match=r"^aleator\.cache\.Slid is .*, as ContextShift;"):
        assert cache.Slid is cache.ContextShift
    with pytest.raises(AttributeError, match="has no attribute 'never'"):
        _ = storage.never


def test_a_pickle_has_a_class_under_its_former_name() -> None:
    old = pickle.dumps(cache.ContextShift(1, 2), 0).replace(b"ContextShift", b"Slid")
    with pytest.warns(
        DeprecationWarning, match=r"^aleator\.cache\.sequence\.Slid is ContextShift now"
    ):
        assert pickle.loads(old) == cache.ContextShift(1, 2)


def test_what_was_renamed_in_its_module_has_both_names() -> None:
    from aleator.samplers import base

    with pytest.warns(DeprecationWarning, match=r"samplers\.base\.Alone is StandaloneSampler now"):
        assert base.Alone is base.StandaloneSampler
    for name in ("never", "Core"):
        with pytest.raises(AttributeError, match=f"has no attribute '{name}'"):
            getattr(base, name)


FORMER_NAMES = [
    (HuggingFace, "ours", "usual_name"),
    (StandaloneSampler, "alone", "own_chain"),
    (Sampler, "course", "state_history"),
    (SamplerChain, "course", "state_history"),
    (SamplerChain, "placed", "samplers_with_places"),
    (SamplerChain, "all_placed", "all_with_places"),
    (Dist, "luck", "watermark_score"),
    (Sequence, "adopt", "reuse_prefix"),
    (SequenceVerbs, "adopt", "reuse_prefix"),
    (SequenceVerbs, "give_up", "forget_namespace"),
    (SequenceVerbs, "stands_for", "has_exactly"),
    (Batch, "wanted", "outputs"),
    (Part, "wanted", "outputs"),
]


@pytest.mark.parametrize(("cls", "old", "new"), FORMER_NAMES)
def test_an_attribute_has_both_names(cls: type, old: str, new: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"^{cls.__name__}.{old} is {new} now"):
        assert getattr(cls, old) == getattr(cls, new)


def test_an_object_has_an_attribute_under_both_names() -> None:
    sampler = TopK(top_k=3)
    with pytest.warns(DeprecationWarning, match=r"^TopK\.alone is own_chain now"):
        assert sampler.alone() is sampler.own_chain()


@pytest.mark.parametrize(
    ("base", "old", "new"), [(Sampler, "alone", "own_chain"), (TopK, "course", "state_history")]
)
def test_an_override_under_a_former_name_is_refused(base: type, old: str, new: str) -> None:
    """It would never be called."""
    with pytest.raises(
        TypeError, match=rf"^Mine\.{old}: .*\.{old} is {new} now: give the override"
    ):
        type("Mine", (base,), {old: lambda self, *given: {}})
    type("Mine", (base,), {new: lambda self, *given: {}})


def test_a_value_has_both_names() -> None:
    with pytest.warns(DeprecationWarning, match=r"^Mark\.luck is score now"):
        assert Mark("watermark", (), 0.5).luck == 0.5
    batches: list[Any] = [
        cls.__new__(cls) for cls in (MicroBatch, WindowBatch, RecurrentBatch, HybridBatch)
    ]
    for each in (*batches, NoLogits("row", 3, [1])):
        each.outputs = [1]
        with pytest.warns(DeprecationWarning, match=r"wanted is outputs now"):
            assert each.wanted == [1]
