"""Engines for bench_generate.py, each in its own process, which answers orders with seconds.

    python benchmarks/generate_engines.py KIND MODEL THREADS [ORDER ...]

An order is a line of JSON, such as ["decode", "flash", 16, 0]; without any they are read from standard input.
All engines do the same work with the same tokens and read the same logits; nothing is sampled.  llama.cpp has
two variants, with and without flash attention; everything else is its default, which is its best here.  A
variant may also be a type of keys and values, such as "q8_0".
"""

from __future__ import annotations

import ctypes
import json
import random
import struct
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

VARIANTS = {"aleator": ("",), "llama.cpp": ("flash", "plain"), "transformers": ("",)}
"""Measured settings of each engine; the best one counts."""
LEFT_OUT = (
    ("llama.cpp", "beams"),
    *(("transformers", order) for order in ("batch", "filled", "sampled", "drawn")),
)
"""Orders that an engine does not get; llama-cpp-python has no beams."""
DEFAULT = {"top_k": 40, "top_p": 0.95, "min_p": 0.05, "temperature": 0.8}
"""What acts of llama.cpp's default samplers, which are ours too, before the draw."""
PROMPT = 16
"""Tokens that each sequence of a batch begins with."""

Step = Sequence[tuple[int, int, int]]
"""Tokens to compute together: token, position, sequence."""


def state(n: int, layers: int, width: int, by_channel: bool) -> bytes:
    """A sequence of ``n`` cells in llama.cpp's format: in each the same float16 row of ``width`` elements.

    A cache is filled with it in a second, where computing 32,768 tokens takes minutes.
    """
    r = random.Random(1)
    rows = n * struct.pack(f"<{width}e", *(r.gauss(0, 1) for _ in range(width)))
    f16 = 1
    parts = [struct.pack("<IiII", 0xAF143CD8, 0, 1, n)]  # magic, sequence, streams, cells
    parts += [struct.pack("<iIi", pos, 1, 0) for pos in range(n)]  # position, owners, owner
    parts.append(struct.pack("<II", by_channel, layers))
    parts += [struct.pack("<iQ", f16, 2 * width), rows] * layers
    values = (
        struct.pack("<iII", f16, 2, width) if by_channel else struct.pack("<iQ", f16, 2 * width)
    )
    return b"".join([*parts, *[values, rows] * layers])


class Aleator:
    """This package.  All engines have ``n_vocab``, and ``open``, ``clear`` and ``compute``."""

    def __init__(self, path: Path, threads: int) -> None:
        self.path = path
        import numpy as np

        from aleator.generate import Batch, Context
        from aleator.models import build_decoder, open_weights

        self._np, self._batch, self._make, self._threads = np, Batch, Context, threads
        self._decoder = build_decoder(open_weights(path))
        self.n_vocab: int = self._decoder.config.n_vocab
        self._context: Any = None
        self._model: Any = None
        self._rows: Any = None
        self._chain: Any = None

    def open(self, n_ctx: int, n_seq: int, variant: str) -> None:
        """Use an empty context of ``n_ctx`` cells and ``n_seq`` sequences from now on."""
        types: dict[str, Any] = {"type_k": variant, "type_v": variant} if variant else {}
        self._context = None
        self._context = self._make(
            self._decoder, n_ctx=n_ctx, n_seq_max=n_seq, n_threads=self._threads, **types
        )

    def cache_bytes(self) -> int:
        """Bytes of keys and values."""
        cache = self._context.cache
        return int(cache.keys.nbytes + cache.values.nbytes)

    def clear(self) -> None:
        """Forget everything."""
        self._context.cache.clear(data=False)

    def compute(self, step: Step, n_logits: int) -> None:
        """Compute tokens and read the logits of the last ones."""
        if n_logits == 1 and len({seq for _, _, seq in step}) == 1:
            batch = self._batch.one([token for token, _, _ in step], step[0][1], step[0][2])
        else:
            batch = self._batch()
            for i, (token, pos, seq) in enumerate(step):
                batch.add(token, pos, (seq,), logits=i >= len(step) - n_logits)
        self._rows = self._np.asarray(self._context.decode(batch))
        float(self._rows[-1, 0])

    def fill(self, n: int) -> None:
        """Give the first sequence ``n`` cells without computing them."""
        c, cache = self._decoder.config, self._context.cache
        cache.state_read(state(n, c.n_layers, c.n_kv_heads[0] * c.head_dim, cache.v_trans), 0)

    def draw(self) -> int:
        """A token from the last logits, by the default samplers."""
        if self._chain is None:
            from aleator import samplers as S

            each = (S.TopK, S.TopP, S.MinP, S.Temperature)
            steps = [make(value) for make, value in zip(each, DEFAULT.values(), strict=True)]
            self._chain = S.SamplerChain([*steps, S.Dist()], seed=1)
        return int(self._chain.sample(self._rows[-1]))

    def beams(self, prompt: list[int], n: int, width: int) -> None:
        """Search for a text of ``n`` tokens with ``width`` beams."""
        if self._model is None:
            from aleator import load

            self._model = load(self.path, n_threads=self._threads, prompt_cache=False)
        self._model.beams(prompt, num_beams=width, max_tokens=n, ignore_eos=True)


class LlamaCpp:
    def __init__(self, path: Path, threads: int) -> None:
        sys.path.append(str(Path(__file__).resolve().parent.parent / "tools"))
        import llama_cpp
        from llama_peer import TYPES, load

        self._lib, self._types, self._threads = llama_cpp, TYPES, threads
        self._model = load(path)
        vocab = llama_cpp.llama_model_get_vocab(self._model)
        self.n_vocab: int = llama_cpp.llama_vocab_n_tokens(vocab)
        self._context: Any = None
        self._batch: Any = None
        self._chain: Any = None
        self._variant = ""

    def open(self, n_ctx: int, n_seq: int, variant: str) -> None:
        lib = self._lib
        if self._context:
            lib.llama_free(self._context)
            lib.llama_batch_free(self._batch)
        self._variant = variant
        params = lib.llama_context_default_params()
        params.n_ctx, params.n_seq_max = n_ctx, n_seq
        params.n_threads = params.n_threads_batch = self._threads
        if variant in self._types:  # flash attention is its choice then: blocks need it
            params.type_k = params.type_v = self._types[variant]
        else:
            params.flash_attn_type = int(variant == "flash")
        self._context = lib.llama_init_from_model(self._model, params)
        self._batch = lib.llama_batch_init(n_ctx, 0, 1)

    def clear(self) -> None:
        self._lib.llama_memory_clear(self._lib.llama_get_memory(self._context), True)

    def compute(self, step: Step, n_logits: int) -> None:
        batch = self._batch
        # Like Aleator, in chunks of the largest batch; a prompt needs only its last logits.
        for start in range(0, len(step), 2048):
            part = step[start : start + 2048]
            batch.n_tokens = len(part)
            for i, (token, pos, seq) in enumerate(part):
                batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, pos, 1
                batch.seq_id[i][0] = seq
                batch.logits[i] = start + i >= len(step) - n_logits
            if self._lib.llama_decode(self._context, batch):
                raise RuntimeError("llama_decode failed")
        float(self._lib.llama_get_logits_ith(self._context, -1)[0])

    def fill(self, n: int) -> None:
        lib, model = self._lib, self._model
        head = lib.llama_model_n_embd(model) // lib.llama_model_n_head(model)
        width = lib.llama_model_n_head_kv(model) * head
        data = state(n, lib.llama_model_n_layer(model), width, by_channel=self._variant == "plain")
        where = ctypes.cast(ctypes.c_char_p(data), ctypes.POINTER(ctypes.c_uint8))
        if lib.llama_state_seq_set_data(self._context, where, len(data), 0) != len(data):
            raise RuntimeError("llama_state_seq_set_data failed")

    def draw(self) -> int:
        lib = self._lib
        if self._chain is None:
            k, p, m, heat = DEFAULT.values()
            self._chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
            for each in (
                lib.llama_sampler_init_top_k(k), lib.llama_sampler_init_top_p(p, 1),
                lib.llama_sampler_init_min_p(m, 1), lib.llama_sampler_init_temp(heat),
                lib.llama_sampler_init_dist(1),
            ):  # fmt: skip
                lib.llama_sampler_chain_add(self._chain, each)
        return int(lib.llama_sampler_sample(self._chain, self._context, -1))


class Transformers:
    """A Llama with the file's weights, in bfloat16 if they are, otherwise in float32."""

    def __init__(self, path: Path, threads: int) -> None:
        import torch
        from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

        from aleator.models import open_weights
        from aleator.models.layers import linear

        torch.set_num_threads(threads)
        weights = open_weights(path)
        c, stored = weights.config, weights.stored("blk.0.attn_q.weight").type
        dtype = torch.bfloat16 if stored == "BF16" else torch.float32
        config = LlamaConfig(
            vocab_size=c.n_vocab, hidden_size=c.n_embd, intermediate_size=c.n_ff[0],
            num_hidden_layers=c.n_layers, num_attention_heads=c.n_heads[0],
            num_key_value_heads=c.n_kv_heads[0], head_dim=c.head_dim, rms_norm_eps=c.rms_eps,
            max_position_embeddings=c.context_length, rope_theta=c.rope.theta,
            tie_word_embeddings=c.tied,
        )  # fmt: skip
        tensors = {}
        for name in weights.names():
            tensor = linear.tensor(weights, name, dtype)
            layer, part = (
                name.removesuffix(".weight").split(".")[1:] if "blk" in name else ("", name)
            )
            if part in ("attn_q", "attn_k"):  # GGUF interleaves the two halves of a head
                pairs = tensor.view(-1, c.head_dim // 2, 2, c.n_embd)
                tensor = pairs.transpose(1, 2).reshape(tensor.shape)
            at = f"model.layers.{layer}." if layer else ""
            tensors[f"{at}{THEIR_NAMES[part.removesuffix('.weight')]}.weight"] = tensor
        self._torch, self._new, self.n_vocab = torch, DynamicCache, c.n_vocab
        self._model = LlamaForCausalLM(config).to(dtype).eval()
        self._model.load_state_dict(tensors, strict=not c.tied)

    def open(self, n_ctx: int, n_seq: int, variant: str) -> None:
        self.clear()

    def clear(self) -> None:
        self._cache = self._new()

    def compute(self, step: Step, n_logits: int) -> None:
        tokens = self._torch.tensor([[token for token, _, _ in step]])
        with self._torch.inference_mode():
            made = self._model(tokens, past_key_values=self._cache, logits_to_keep=n_logits)
        float(made.logits[0, -1, 0])

    def beams(self, prompt: list[int], n: int, width: int) -> None:
        self._model.generation_config.eos_token_id = None  # the text does not end
        self._model.generate(
            self._torch.tensor([prompt]), num_beams=width, max_new_tokens=n, do_sample=False
        )


THEIR_NAMES = {
    "token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}  # fmt: skip
"""Names of GGUF -> those of transformers."""
KINDS: dict[str, Any] = {"aleator": Aleator, "llama.cpp": LlamaCpp, "transformers": Transformers}


class Measured:
    """An engine with its orders; each returns the measured seconds."""

    def __init__(self, engine: Any) -> None:
        self._engine, self._open = engine, (0, 0, "")
        r = random.Random(1)
        self._tokens = [r.randrange(engine.n_vocab) for _ in range(2**14)]

    def _begin(self, n_ctx: int, n_seq: int, variant: str) -> None:
        wanted = (-(-n_ctx // 256) * 256, n_seq, variant)
        if wanted != self._open:
            self._engine.open(*wanted)
            self._open = wanted
        self._engine.clear()

    def prefill(self, variant: str, n: int) -> float:
        """A prompt of ``n`` tokens into an empty cache."""
        self._begin(n, 1, variant)
        return self._timed([(token, i, 0) for i, token in enumerate(self._tokens[:n])], 1)

    def decode(self, variant: str, n: int, depth: int) -> float:
        """``n`` tokens one by one, after ``depth`` others."""
        self._begin(depth + n, 1, variant)
        if depth:
            self._timed([(token, i, 0) for i, token in enumerate(self._tokens[:depth])], 1)
        return self._one_by_one(n, depth)

    def filled(self, variant: str, n: int, depth: int) -> float:
        """``n`` tokens one by one, after ``depth`` cells that were not computed."""
        self._begin(depth + n, 1, variant)
        self._engine.fill(depth)
        return self._one_by_one(n, depth)

    def sampled(self, variant: str, n: int) -> float:
        """``n`` tokens one by one, each drawn from the logits of the one before."""
        return sum(self._sampled(variant, n))

    def drawn(self, variant: str, n: int) -> float:
        """The part of ``sampled`` that draws."""
        return self._sampled(variant, n)[1]

    def batch(self, variant: str, n: int, size: int) -> float:
        """``n`` tokens of each of ``size`` sequences, a step for all of them at a time."""
        self._begin(size * 256, size, variant)
        for seq in range(size):
            self._timed([(self._tokens[seq + i], i, seq) for i in range(PROMPT)], 1)
        start = time.perf_counter()
        for i in range(PROMPT, PROMPT + n):
            step = [(self._tokens[seq * 7 + i], i, seq) for seq in range(size)]
            self._engine.compute(step, size)
        return time.perf_counter() - start

    def beams(self, variant: str, n: int, width: int) -> float:
        """A search for a text of ``n`` tokens, including the prompt's time."""
        start = time.perf_counter()
        self._engine.beams(self._tokens[:PROMPT], n, width)
        return time.perf_counter() - start

    def touched(self, variant: str, n: int) -> float:
        """Bytes of the mapped file's pages that Linux sees a token's step read, on average of ``n``."""
        self._begin(n + 1, 1, variant)
        found = []
        for i in range(n + 1):
            Path("/proc/self/clear_refs").write_text("1")
            self._engine.compute([(self._tokens[i], i, 0)], 1)
            found.append(referenced(self._engine.path))
        return sum(found[1:]) / n

    def cache_bytes(self, variant: str, n: int) -> float:
        """Bytes of a cache of ``n`` cells."""
        self._begin(n, 1, variant)
        return float(self._engine.cache_bytes())

    def _sampled(self, variant: str, n: int) -> tuple[float, float]:
        """Seconds of computing and of drawing ``n`` tokens."""
        self._begin(n, 1, variant)
        token, computing, drawing = 0, 0.0, 0.0
        for i in range(n):
            computing += self._timed([(token, i, 0)], 1)
            start = time.perf_counter()
            token = self._engine.draw()
            drawing += time.perf_counter() - start
        return computing, drawing

    def _one_by_one(self, n: int, depth: int) -> float:
        start = time.perf_counter()
        for i in range(n):
            self._engine.compute([(self._tokens[i], depth + i, 0)], 1)
        return time.perf_counter() - start

    def _timed(self, step: Step, n_logits: int) -> float:
        start = time.perf_counter()
        self._engine.compute(step, n_logits)
        return time.perf_counter() - start


def referenced(path: Path) -> int:
    """Bytes of the mapped file's pages that were read since the last reset of Linux's count."""
    found, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head = line.split(maxsplit=5)
        if "-" in head[0] and not head[0].endswith(":"):
            inside = len(head) == 6 and head[5] == str(path.resolve())
        elif inside and line.startswith("Referenced:"):
            found += int(line.split()[1]) * 1024
    return found


def main() -> None:
    kind, path, threads, *given = sys.argv[1:]
    engine = Measured(KINDS[kind](Path(path), int(threads)))
    print(json.dumps("ready"), flush=True)
    for line in given or sys.stdin:
        order, *words = json.loads(line)
        print(json.dumps(getattr(engine, order)(*words)), flush=True)


if __name__ == "__main__":
    main()
