"""Records of texts, and texts made again from them (docs/reproducibility.md)."""

from __future__ import annotations

from aleator.engine.replay.again import differences as differences
from aleator.engine.replay.again import make_again as make_again
from aleator.engine.replay.record import KEY as KEY
from aleator.engine.replay.record import Made as Made
from aleator.engine.replay.record import Record as Record
from aleator.engine.replay.record import Replayable as Replayable
from aleator.engine.replay.record import hash_of_text as hash_of_text
from aleator.engine.replay.record import hash_of_tokens as hash_of_tokens
