"""Runs several steps on the device before the host looks at their tokens."""

from __future__ import annotations

from collections.abc import Sequence

from aleator.core.errors import LogitsError, ParameterError
from aleator.generate.completion import Detokenizer
from aleator.generate.context import Context, Prefixes
from aleator.generate.device_token_sampler import DeviceTokenSampler
from aleator.generate.model_runner import Chunk, ModelRunner
from aleator.generate.multi_step import DecodeLoop, Feed
from aleator.generate.request_state import RequestState
from aleator.generate.token_sampler import TokenSampler


class MultiStepRunner(ModelRunner):
    """Samples several tokens of each request at once, where the host need not look at any of them.

    ``states`` are all requests that will ever take part; ``multi_step`` of the first says how many tokens.

    Raises:
        ParameterError: tokens are drawn on the host; or see :class:`DecodeLoop`.
    """

    def __init__(
        self,
        context: Context,
        sampler: TokenSampler,
        detokenizer: Detokenizer,
        prefixes: Prefixes,
        states: Sequence[RequestState],
    ) -> None:
        n_tokens, multi_step = len(detokenizer), states[0].request.options.multi_step
        super().__init__(context, sampler, n_tokens, prefixes)
        if not isinstance(sampler, DeviceTokenSampler):
            raise ParameterError(
                "multi_step",
                f"multi_step={multi_step}: several steps are drawn on the device: give "
                "sampling_device='device'",
            )
        self._states, self._on_device = states, sampler
        self._loop = DecodeLoop(
            context,
            sampler.chain,
            multi_step,
            n_vocab=n_tokens,
            ends=(token for token in detokenizer.eog if token < n_tokens),
        )

    def step(
        self, rows: Sequence[tuple[RequestState, list[int]]], chunks: Sequence[Chunk] = ()
    ) -> None:
        """Sample several tokens of each request before the host looks at any of them.

        With prompts to compute, or if the host must look at the tokens of some request, do what
        :meth:`ModelRunner.step` does.
        """
        if chunks or not all(map(self._runs_on_device, self._states)):
            super().step(rows, chunks)
            return
        states = [state for state, _ in rows]
        feeds = []
        for state in states:
            limit, wanted = state.n_ctx - len(state.tokens), state.request.options.max_tokens
            if wanted is not None:
                limit = min(limit, wanted - len(state.completion.tokens))
            heeds = not state.request.params.ignore_eos
            row = self._on_device.row_of(state)
            feeds.append(Feed(row, state.seq, state.drawn, len(state.tokens), limit, heeds))
        found = self._loop.run(feeds)
        for state, feed, drawn in zip(states, feeds, found, strict=True):
            for i, token in enumerate(drawn.tokens):
                if state.completion.done:  # by a stop string
                    self._loop.chain.rollback(feed.row, len(drawn.tokens) - i)
                    self.context.cache.seq_rm(state.seq, len(state.tokens), -1)
                    break
                state.tokens.append(state.drawn)
                state.stats.decode_tokens += 1
                state.chain.accept(token, generated=True)
                self.feed(state, token, drawn.logprobs_of(i))
        for state, drawn in zip(states, found, strict=True):
            if drawn.failed and not state.completion.done:
                raise LogitsError(
                    f"sequence {state.seq}: no token that may be drawn has a finite logit"
                )

    def _runs_on_device(self, state: RequestState) -> bool:
        """Whether the host need not look at its tokens: no constraint, and all samplers run on the device."""
        on_host = self._on_device.chain.runs_on_host(self._on_device.row_of(state))
        return state.completer is None and not state.chain.constraints and not on_host
