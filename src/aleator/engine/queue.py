"""Requests that wait, in a fair order."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator

from aleator.engine.job import Job

LOOKED_AT = 4
"""Jobs at the head of the queue that are looked at when there is room."""
PASSED_OVER = 64
"""So often a job that needs more room than there is lets later ones go first; then they wait for it."""


class Queue:
    """Jobs by their turn: in the order of arrival, moved ahead or back by their priorities.

    Nobody waits for ever: a priority is worth a fixed number of places (:attr:`Job.turn`), and who does not
    fit is passed over :data:`PASSED_OVER` times at most.
    """

    def __init__(self) -> None:
        # Ascending from the end: the next is the last, which is cheap to take.
        self._jobs: list[Job] = []

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[Job]:
        return reversed(self._jobs)

    def add(self, job: Job) -> None:
        """Let a job wait."""
        insort(self._jobs, job, key=_backwards)

    def remove(self, job: Job) -> bool:
        """Take a job out; whether it was there."""
        try:
            self._jobs.remove(job)
        except ValueError:
            return False
        return True

    def head(self) -> list[Job]:
        """The jobs that may go next, in their order."""
        found = []
        for job in reversed(self._jobs[-LOOKED_AT:]):
            found.append(job)
            if job.passed_over >= PASSED_OVER:
                break
        return found

    def take(self, job: Job) -> None:
        """A job goes; those that it overtakes remember."""
        for i in range(len(self._jobs) - 1, -1, -1):
            each = self._jobs[i]
            if each is job:
                del self._jobs[i]
                return
            each.passed_over += 1


def _backwards(job: Job) -> tuple[int, int]:
    turn, number = job.turn
    return -turn, -number
