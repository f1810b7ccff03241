"""The cells again, as slowly and plainly as possible: what every operation must do, cell by cell."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

END = 2**31 - 1


@dataclass
class Cell:
    """One cell; ``stored`` is the position its key is rotated for, ``extra`` is (y, x, token)."""

    pos: int = -1
    stored: int = -1
    owners: set[int] = field(default_factory=set)
    extra: tuple[int, ...] | None = None

    def empty(self) -> None:
        self.pos = self.stored = -1
        self.owners, self.extra = set(), None


class CellsModel:
    """Follows the rules of the study's operation table one cell at a time."""

    def __init__(
        self, size: int, n_seq_max: int, streams: bool = False, llama_2024: bool = False
    ) -> None:
        self.cells = [Cell() for _ in range(size)]
        self.n_seq_max, self.streams, self.llama_2024 = n_seq_max, streams, llama_2024
        self.share = size // n_seq_max if streams else size
        self.heads = [s * self.share for s in range(n_seq_max if streams else 1)]
        self._saved: list[tuple[list[Cell], list[int]]] = []

    @property
    def size(self) -> int:
        return len(self.cells)

    @property
    def used(self) -> int:
        return sum(c.pos >= 0 for c in self.cells)

    @property
    def top(self) -> int:
        return max((i + 1 for i, c in enumerate(self.cells) if c.pos >= 0), default=0)

    def positions(self, seq: int) -> list[int]:
        return sorted(c.pos for c in self.cells if seq in c.owners)

    def span(self, seq: int) -> tuple[int, int]:
        positions = self.positions(seq)
        return (positions[0], positions[-1]) if positions else (-1, -1)

    def map(self) -> str:
        def sign(c: Cell) -> str:
            if len(c.owners) > 1:
                return "M"
            return "." if not c.owners else str(*c.owners) if max(c.owners) < 10 else "+"

        return "".join(sign(c) for c in self.cells[: self.top])

    # placement

    def find(self, n: int, contiguous: bool = False, stream: int = 0) -> list[int]:
        low = stream * self.share
        ring = range(low, low + self.share)
        used = sum(self.cells[i].pos >= 0 for i in ring)
        if n == 0 or n > self.share - used:
            return []
        head = self.heads[stream]
        if head - low > used + 2 * n:
            head = low
        order = [*range(head, ring.stop), *range(low, head)]
        if not contiguous:
            return [i for i in order if self.cells[i].pos < 0][:n]
        for start in order:
            run = range(start, start + n)
            if run.stop <= ring.stop and all(self.cells[i].pos < 0 for i in run):
                return list(run)
        return []

    def put(
        self,
        cells: Sequence[int],
        positions: Iterable[int],
        owners: Iterable[int],
        extras: Sequence[tuple[int, ...]] | None = None,
    ) -> None:
        mine = set(owners)
        for k, (i, pos) in enumerate(zip(cells, positions, strict=True)):
            self.cells[i] = Cell(pos, pos, set(mine), extras[k] if extras else None)
        if cells:
            stream = cells[-1] // self.share
            self.heads[stream] = cells[-1] + 1
            if self.llama_2024 and self.heads[stream] >= (stream + 1) * self.share:
                self.heads[stream] = stream * self.share

    # verbs

    def matching(self, seq: int, p0: int, p1: int) -> list[int]:
        p0, p1 = max(p0, 0), END if p1 < 0 else p1
        return [
            i for i, c in enumerate(self.cells) if p0 <= c.pos < p1 and (seq in c.owners or seq < 0)
        ]

    def lower(self, freed: Iterable[int]) -> None:
        for i in freed:
            self.heads[i // self.share] = min(self.heads[i // self.share], i)

    def seq_rm(self, seq: int, p0: int = -1, p1: int = -1) -> None:
        freed = []
        for i in self.matching(seq, p0, p1):
            c = self.cells[i]
            c.owners = set() if seq < 0 else c.owners - {seq}
            if not c.owners:
                c.empty()
                freed.append(i)
        self.lower(freed)

    def seq_cp(self, src: int, dst: int, p0: int = -1, p1: int = -1) -> None:
        if src == dst:
            return
        for i in self.matching(src, p0, p1):
            self.cells[i].owners.add(dst)
        if self.llama_2024:
            self.heads[0] = 0

    def seq_keep(self, seq: int) -> None:
        freed = []
        for i, c in enumerate(self.cells):
            if seq in c.owners:
                c.owners = {seq}
            else:
                if c.pos >= 0 or self.llama_2024:
                    freed.append(i)
                c.empty()
        self.lower(freed)

    def seq_add(self, seq: int, p0: int, p1: int, delta: int) -> bool:
        """False if a position would become too large; nothing changes then."""
        if delta == 0 or max(p0, 0) == (END if p1 < 0 else p1):
            return True
        cells = [self.cells[i] for i in self.matching(seq, p0, p1)]
        if any(c.pos + delta >= END for c in cells):
            return False
        freed = []
        for i in self.matching(seq, p0, p1):
            self.cells[i].pos += delta
            if self.cells[i].pos < 0:
                self.cells[i].empty()
                freed.append(i)
        stream = seq if self.streams else 0
        self.heads[stream] = min(freed, default=stream * self.share)
        return True

    def seq_div(self, seq: int, p0: int, p1: int, divisor: int) -> None:
        for i in self.matching(seq, p0, p1):
            self.cells[i].pos //= divisor

    def duplicate(self, source: list[int], target: list[int], seq: int, leave: bool) -> None:
        for a, b in zip(source, target, strict=True):
            self.cells[b] = dataclasses.replace(self.cells[a], owners={seq})
            if leave:
                self.cells[a].owners.discard(seq)

    def clear(self) -> None:
        for c in self.cells:
            c.empty()
        self.heads = [s * self.share for s in range(len(self.heads))]

    def clear_shifts(self) -> None:
        for c in self.cells:
            c.stored = c.pos

    def shifts(self) -> list[int]:
        return [c.pos - c.stored for c in self.cells]

    def defrag_ids(self, max_moves: int = -1) -> list[int]:
        """Where each cell below top goes; top: nowhere.  Follows the study's section 1.9."""
        top, used = self.top, self.used
        ids = [i if c.pos >= 0 and i < used else top for i, c in enumerate(self.cells[:top])]
        full = [c.pos >= 0 for c in self.cells]
        i = 0
        while i < used and max_moves != 0:
            if full[i]:
                i += 1
                continue
            length = 1
            while i + length < used and not full[i + length]:
                length += 1
            block = [j for j in range(top) if j > i and full[j] and ids[j] == top][-length:]
            to, last = i, -2
            for j in block:
                if j != last + 1:
                    if max_moves == 0:
                        break
                    max_moves -= 1
                ids[j], full[j], last = to, False, j
                to += 1
            i += length
        return ids

    def move(self, ids: list[int]) -> None:
        moved = [(i, to) for i, to in enumerate(ids) if to not in (i, len(ids))]
        for i, to in moved:
            self.cells[to], self.cells[i] = self.cells[i], Cell()
        if moved:
            self.heads[0] = self.used

    # journal

    def begin(self) -> None:
        self._saved.append((copy.deepcopy(self.cells), list(self.heads)))

    def commit(self) -> None:
        self._saved.pop()

    def rollback(self) -> None:
        self.cells, self.heads = self._saved.pop()

    # masks

    def sees(
        self,
        seq: int,
        pos: int,
        causal: bool = True,
        window: str = "",
        width: int = 0,
        yx: tuple[int, ...] | None = None,
    ) -> list[bool]:
        def near(key: int) -> bool:
            if window == "standard":
                return pos - key < width
            if window == "chunked":
                return key >= pos // width * width
            return True

        def before(c: Cell) -> bool:
            if yx is not None and c.extra is not None:
                return (c.pos, *c.extra[:2]) <= (pos, *yx)
            return c.pos <= pos

        return [seq in c.owners and (before(c) or not causal) and near(c.pos) for c in self.cells]
