"""Several steps of a decoder that captures its steps itself, before the host looks at any token."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from aleator.core.errors import ParameterError
from aleator.device.candidates import NOTHING
from aleator.generate.context import Batch, Context
from aleator.generate.decode_steps import DecodeResult, DecodeStart
from aleator.generate.device_token_sampler import DeviceTokenSampler


class ReplayLoop:
    """Decodes and draws up to ``multi_step`` tokens per sequence before the host sees any.

    The host plans one step after another without waiting: each step decodes what the one before has drawn, on
    the device.  A row that has ended continues to the last step of the run; what it wrote after its end is
    taken back. Logits and tokens are those of single steps.

    Args:
        context: of a model with ``dtype="exact"`` whose layers all have full attention, on one device.
        sampler: its rows run on the device, and have accepted the texts.
        multi_step: most steps of a run.
        ends: end-of-generation tokens.
    """

    def __init__(
        self,
        context: Context,
        sampler: DeviceTokenSampler,
        multi_step: int,
        ends: Iterable[int] = (),
    ) -> None:
        self._context, self._sampler, self._multi_step = context, sampler, multi_step
        self._ends = set(ends)

    def run(self, starts: Sequence[DecodeStart]) -> list[DecodeResult]:
        """Decode the starts' tokens and draw up to ``multi_step`` more each.

        Raises:
            CacheFull: not enough cells; after any error, cache and chain are unchanged.
        """
        chain = self._sampler.chain
        mark = chain.mark()
        try:
            found: list[DecodeResult] = self._context.cache.journal.run(self._decode, starts)
        except BaseException:
            chain.back(mark)
            raise
        return found

    def _decode(self, starts: Sequence[DecodeStart]) -> list[DecodeResult]:
        steps = [min(self._multi_step, start.limit) for start in starts]
        report, made = self._sampler.chain.report, list[list[torch.Tensor]]()
        reports = [report.logprobs, report.top_ids, report.top_logprobs]
        for step in range(max(steps, default=0)):
            going = [start for start, n in zip(starts, steps, strict=True) if step < n]
            batch = Batch()
            for start in going:  # later tokens are on the device
                batch.add(start.token, start.pos + step, [start.seq], logits=True)
            draw = self._sampler.draws([start.row for start in going], fed=step > 0)
            self._context.decode(batch, draw)
            if draw.made is None:
                raise ParameterError(
                    f"multi_step={self._multi_step} needs the {len(going)} sequences in one micro-batch, on "
                    "the model's device: give a larger n_ubatch, or multi_step=1",
                )
            drawn = [draw.made, *(reports if len(report.logprobs) else [])]
            made.append([each.clone() for each in drawn])
        # The only transfer from the device.
        read = [torch.stack(each).tolist() for each in zip(*made, strict=True)]
        return [self._found(start, n, read) for start, n in zip(starts, steps, strict=True)]

    def _found(self, start: DecodeStart, n: int, read: Sequence[list[Any]]) -> DecodeResult:
        """The tokens of a row in ``n`` steps, up to its end; the rest is taken back."""
        tokens, *logged = ([step[start.row] for step in each[:n]] for each in read)
        found = DecodeResult()
        for token in tokens:
            if found.failed or (start.heeds_ends and self._ends.intersection(found.tokens[-1:])):
                break
            if token == NOTHING:
                found.failed = True
            else:
                found.tokens.append(token)
        made = len(found.tokens)
        if logged:
            found.logprobs, found.top_ids, found.top_logprobs = (each[:made] for each in logged)
        surplus = sum(token != NOTHING for token in tokens) - made
        if surplus:
            self._sampler.chain.rollback(start.row, surplus)
        self._context.cache.seq_rm(start.seq, start.pos + made)
        return found
