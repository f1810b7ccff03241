"""The lm-eval package: a task of several choices on its models ``local-completions`` and ``gguf``.

Log-likelihoods must be those of ``model.score``, to the bit, whatever the number of requests at once.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "OPENAI_API_KEY": "none"}

import lm_eval
from checks import Server, equal, main
from lm_eval.tasks import TaskManager

TASK = """\
task: several_choices
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{answer}}}}"
metric_list:
  - metric: acc
  - metric: acc_norm
"""


def evaluated(server: Server, kind: str, **arguments: Any) -> list[list[tuple[float, bool]]]:
    """What the harness thinks of each choice of each question."""
    folder = Path(server.folder) / "lm-eval"
    folder.mkdir(exist_ok=True)
    data = folder / "questions.jsonl"
    data.write_text("".join(json.dumps(each) + "\n" for each in server.questions))
    (folder / "several_choices.yaml").write_text(TASK.format(data=data))
    os.environ["HF_HOME"] = str(folder / "cache")
    found = lm_eval.simple_evaluate(
        model=kind,
        model_args=arguments,
        tasks=["several_choices"],
        task_manager=TaskManager(include_path=str(folder), include_defaults=False),
        bootstrap_iters=0,
        log_samples=True,
    )
    assert found is not None
    samples = sorted(found["samples"]["several_choices"], key=lambda sample: sample["doc_id"])
    return [
        [(float(likelihood), bool(greedy)) for ((likelihood, greedy),) in sample["resps"]]
        for sample in samples
    ]


def wanted(scores: list[list[tuple[list[float], bool]]]) -> list[list[tuple[float, bool]]]:
    """Sums as the harness makes them."""
    return [[(sum(logprobs), greedy) for logprobs, greedy in question] for question in scores]


def completions(server: Server, at_once: int) -> str:
    found = evaluated(
        server,
        "local-completions",
        model=server.model,
        base_url=f"{server.url}/v1/completions",
        tokenizer_backend="remote",
        num_concurrent=at_once,
        max_retries=1,
    )
    equal(found, wanted(server.scores_of_ids))
    return f"{sum(map(len, found))} log-likelihoods equal"


def local_completions_one_at_a_time(server: Server) -> str:
    return completions(server, 1)


def local_completions_eight_at_once(server: Server) -> str:
    return completions(server, 8)


def gguf(server: Server) -> str:
    found = evaluated(server, "gguf", base_url=server.url)
    equal(found, wanted(server.scores_of_texts))
    return f"{sum(map(len, found))} log-likelihoods equal"


if __name__ == "__main__":
    main("lm-eval", local_completions_one_at_a_time, local_completions_eight_at_once, gguf)
