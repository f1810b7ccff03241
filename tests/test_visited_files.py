"""The files that a call visits, and calls into files that are built from the calling one."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest
from visited_files import Profile, upwards

from aleator.core.seeds import fresh_seed
from aleator.samplers import TopK


@pytest.fixture
def profile() -> Iterator[Profile]:
    """A profile; afterwards threads are watched by whoever watched them before."""
    before = sys.getprofile()
    yield Profile()
    sys.setprofile(before)
    threading.setprofile(before)


def test_files_are_recorded_in_the_order_of_their_first_visit(profile: Profile) -> None:
    fresh_seed(2)
    with profile.recorded():
        TopK(top_k=3)
        TopK(top_k=4)
        thread = threading.Thread(target=fresh_seed, args=(2,))
        thread.start()
        thread.join()
    fresh_seed(2)
    (calls,) = profile.runs
    files = list(dict.fromkeys(called for _, called, _ in calls))
    assert files.index("samplers/base.py") < files.index("core/parameter.py")
    assert calls[-1] == ("", "core/seeds.py", "fresh_seed")
    assert len({call[:2] for call in calls}) == len(calls)


def test_calls_into_files_that_are_built_from_the_calling_one() -> None:
    up = "core/options.py", "language_model/model.py", "checked -> LanguageModel.generate"
    down = "language_model/model.py", "core/options.py", "LanguageModel.beams -> resolved"
    beside = "chat/message.py", "engine/engine.py", "one -> other"
    outside = "", "core/options.py", "resolved"
    assert upwards([down, up, beside, outside, up]) == [(up, False)]
