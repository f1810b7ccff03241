"""Everything on the CPU works without PyTorch, and asks for it nowhere."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from aleator.core.packages import required_torch

OPTIONAL = ("torch", "transformers", "triton", "safetensors", "gguf")

# In a process of its own: imports of these packages fail, and are written down.
HIDDEN = f"""
import sys

asked = []


class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {OPTIONAL}:
            asked.append(name)
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)


sys.meta_path.insert(0, Hidden())
"""


def run(script: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", HIDDEN + textwrap.dedent(script)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_the_command_line(tmp_path: Path) -> None:
    out = run(
        """
        import io
        from aleator.cli import main

        def command(*words, typed=""):
            sys.stdin = io.TextIOWrapper(io.BytesIO(typed.encode()))
            assert main(list(words)) == 0, words

        command("generate", "-p", "ROMEO:", "-n", "8", "--seed", "1", "-t", "2")
        command("generate", "-p", "ROMEO:", "-n", "8", "--seed", "1", "--session", "s.bin")
        command("generate", "-n", "8", "--session", "s.bin")
        command("generate", "-p", "A", "-n", "4", "-ctk", "q8_0", "-ctv", "q4_0", "-c", "64")
        command("chat", "--seed", "1", "-n", "8", typed="Good morrow!\\n")
        command("explain", "-p", "To be, or not to", "--seed", "1")
        command("bench", "-p", "8", "-n", "2", "-r", "1", "-t", "1")
        command("tokenize", "-p", "To be")
        command("model-info")
        command("doctor")
        assert not [name for name in asked if name != "torch"], asked
        """,
        tmp_path,
    )
    assert "tg2" in out
    assert "text can be generated" in out


def test_the_package(tmp_path: Path) -> None:
    run(
        """
        import numpy as np
        import aleator
        from aleator.generate import Batch, Context

        model = aleator.load()
        assert (str(model.decoder.device), model.decoder.dtype) == ("cpu", "float32")
        one = model.generate("ROMEO:", max_tokens=12, seed=3, logprobs=2)
        both = model.generate_batch(["ROMEO:", "A"], max_tokens=12, seed=3)
        assert both[0].text == one.text
        assert model.generate("ROMEO:", max_tokens=12, seed=3).text == one.text
        model.save_session("session", one)
        assert model.generate(model.load_session("session"), max_tokens=2).text is not None

        for options in (
            {"type_k": "f16", "type_v": "bf16"},
            {"type_k": "q8_0", "type_v": "q5_1"},
            {"type_k": "f32", "type_v": "f32", "flash_attn": False},
            {"k_storage": "raw"},
        ):
            context = Context(model, n_ctx=64, n_seq_max=3, n_threads=2, **options)
            rows = context.decode(Batch.one(list(range(20)), logits=True))
            assert isinstance(rows, np.ndarray) and rows.dtype == np.float32
            assert isinstance(context.logits(-1), np.ndarray)
            assert isinstance(context.rows, np.ndarray)
            cache = context.cache
            cache.seq_cp(0, 1)
            cache.seq_rm(0, 3, 6)
            cache.seq_add(0, 6, -1, -3)
            cache.seq_div(1, 2, 20, 2)
            context.decode(Batch.one([1, 2]))
            cache.seq_rm(1)
            cache.defrag()
            again = Context(model, n_ctx=64, n_seq_max=3, **options)
            again.state_read(context.state_write())
            assert again.cache.read_keys(0, range(4)).dtype == np.float32
            ours, theirs = (c.decode(Batch.one([5])) for c in (context, again))
            assert np.abs(ours - theirs).max() < 0.1 * np.ptp(ours)
        assert asked == [], asked
        """,
        tmp_path,
    )


def test_what_needs_it_says_what_to_install(tmp_path: Path) -> None:
    run(
        """
        import aleator

        def refused(call, what):
            try:
                call()
            except ImportError as error:
                assert what in str(error), error
                assert 'pip install "aleator[torch]"' in str(error), error
            else:
                raise AssertionError(what)

        model = aleator.load()
        refused(lambda: aleator.load(device="cuda"), "device='cuda' needs PyTorch")
        refused(lambda: aleator.load(dtype="bfloat16"), "dtype='bfloat16' needs PyTorch")
        refused(
            lambda: model.generate("A", max_tokens=2, sampling_device="device").text,
            "sampling_device='device' needs PyTorch",
        )
        refused(
            lambda: aleator.models.build_decoder(model.weights, form="torch"),
            "form='torch' needs PyTorch",
        )
        """,
        tmp_path,
    )


def test_a_package_that_is_hidden_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match=r'x needs PyTorch .* pip install "aleator\[torch\]"'):
        required_torch("x")
