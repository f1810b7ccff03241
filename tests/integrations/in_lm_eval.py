"""lm-eval: its model ``aleator`` against its model ``hf`` (transformers) on three local tasks.

Run by tools/integrations.py in an environment with lm-eval and transformers.  Both read the same files: the
bundled model in float32, written by transformers.  Theirs has batches of one: in larger ones it gave a window
of a rolling text another score than alone (lm-eval 0.4.13).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
os.environ["HF_HOME"] = tempfile.mkdtemp()

import lm_eval
from lm_eval.api.registry import get_model
from lm_eval.tasks import TaskManager
from transformers import AutoModelForCausalLM, AutoTokenizer

from aleator.integrations.lm_eval import AleatorLM
from aleator.models.hub.bundled import bundled_model

FOLDER = Path(os.environ["HF_HOME"])
NEAR = 1e-3

QUESTIONS = [
    ("O, she doth teach the", "torches/xylophone/pint/of", 0),
    ("But soft, what light through yonder", "window breaks/breaks window/ale/the the", 0),
    ("Good night, good night! Parting is such", "sweet sorrow/sorrow sweet/a pint/bread", 0),
    ("A horse, a horse, my kingdom for a", "pint/horse/the/crown of gold", 1),
    ("To be, or not to be: that is the", "answer/answers/question/questions", 2),
    ("My lord, the king", "is come/are come/xylophone/to to", 0),
    ("Romeo, Romeo, wherefore art thou", "Juliet/the/of/Romeo", 3),
    ("Now is the winter of our", "pints/discontent/window/sorrows", 1),
]
TASKS = {
    "choices": """\
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{answer}}"
metric_list:
  - metric: acc
  - metric: acc_norm
""",
    "rolling": """\
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list:
  - metric: word_perplexity
  - metric: bits_per_byte
""",
    "writing": """\
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: ""
generation_kwargs:
  until: ["\\n\\n"]
  max_gen_toks: 24
  do_sample: false
metric_list:
  - metric: exact_match
""",
}


def write_tasks() -> None:
    """Three tasks over one file of questions."""
    rows = [
        {
            "question": question,
            "choices": choices.split("/"),
            "answer": answer,
            "text": f"{question} {choices.split('/')[answer]}. " * 30,
        }
        for question, choices, answer in QUESTIONS
    ]
    data = FOLDER / "questions.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, task in TASKS.items():
        where = f"dataset_path: json\ndataset_kwargs:\n  data_files:\n    test: {data}\ntest_split: test\n"
        (FOLDER / f"{name}.yaml").write_text(f"task: {name}\n{where}{task}")


def write_model() -> None:
    """The bundled model in float32, as transformers writes it."""
    where = bundled_model()
    read = AutoModelForCausalLM.from_pretrained(where.parent, gguf_file=where.name)
    weights, config = read.state_dict(), read.config
    del config.quantization_config  # its weights are numbers now
    model = AutoModelForCausalLM.from_config(config)
    model.load_state_dict(weights)
    model.save_pretrained(FOLDER / "model")
    tokenizer = AutoTokenizer.from_pretrained(where.parent, gguf_file=where.name)
    tokenizer.save_pretrained(FOLDER / "model")


def evaluated(kind: str, batch_size: int, **arguments: Any) -> dict[str, Any]:
    """What the harness finds."""
    found = lm_eval.simple_evaluate(
        model=kind,
        model_args={"pretrained": str(FOLDER / "model"), "max_length": 128, **arguments},
        tasks=list(TASKS),
        task_manager=TaskManager(include_path=str(FOLDER), include_defaults=False),
        bootstrap_iters=0,
        log_samples=True,
        batch_size=batch_size,
    )
    assert found is not None
    return found


def responses(found: dict[str, Any], task: str) -> list[Any]:
    """What the model answered, a list a document."""
    samples = sorted(found["samples"][task], key=lambda sample: sample["doc_id"])
    return [[each[0] for each in sample["resps"]] for sample in samples]


def main() -> None:
    assert get_model("aleator") is AleatorLM
    write_tasks()
    write_model()
    theirs, ours = (
        evaluated("hf", 1, device="cpu", dtype="float32"),
        evaluated("aleator", 4, n_threads=1),
    )
    pairs = [
        (a, b)
        for first, second in zip(
            responses(theirs, "choices"), responses(ours, "choices"), strict=True
        )
        for a, b in zip(first, second, strict=True)
    ]
    furthest = max(abs(float(a[0]) - float(b[0])) for a, b in pairs)
    assert furthest < NEAR, furthest
    assert all(bool(a[1]) == bool(b[1]) for a, b in pairs)
    print(f"  {len(pairs)} log-likelihoods of choices, furthest apart {furthest:.1e}")
    whole = [
        abs(float(a[0]) - float(b[0]))
        for a, b in zip(responses(theirs, "rolling"), responses(ours, "rolling"), strict=True)
    ]
    assert max(whole) < NEAR, whole
    print(
        f"  {len(whole)} rolling log-likelihoods over several windows, furthest apart {max(whole):.1e}"
    )
    assert responses(theirs, "writing") == responses(ours, "writing")
    print(f"  {len(whole)} greedy texts equal")
    for task in TASKS:
        for name, value in ours["results"][task].items():
            if isinstance(value, float):
                assert abs(value - theirs["results"][task][name]) < NEAR, (task, name)
    run = subprocess.run(
        [
            sys.executable, "-m", "aleator.integrations.lm_eval", "run", "--model", "aleator",
            "--model_args", f"pretrained={FOLDER / 'model'},n_threads=1,max_length=128",
            "--tasks", "choices", "--include_path", str(FOLDER),
        ],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-2000:]
    assert "choices" in run.stdout
    print("  python -m aleator.integrations.lm_eval run: the same task on the command line")


if __name__ == "__main__":
    print(f"lm-eval {version('lm-eval')}, transformers {version('transformers')}")
    main()
