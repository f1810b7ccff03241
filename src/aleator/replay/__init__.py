"""Records of texts, and texts made again from them (docs/reproducibility.md)."""

from __future__ import annotations

from aleator.replay.again import differences as differences
from aleator.replay.again import make_again as make_again
from aleator.replay.record import KEY as KEY
from aleator.replay.record import Made as Made
from aleator.replay.record import Record as Record
from aleator.replay.record import Replayable as Replayable
from aleator.replay.record import hash_of_text as hash_of_text
from aleator.replay.record import hash_of_tokens as hash_of_tokens
