"""Ray Data: texts of rows on a cluster of two nodes, with a worker killed and a node removed.

Run by tools/integrations.py in an environment with ray[data,serve].  Every row must come once, with the text,
the tokens and the log-probabilities that it has alone.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0", "OMP_NUM_THREADS": "1"}

import ray
from ray.cluster_utils import Cluster

import aleator
from aleator.integrations.ray import generate, seed_of, write
from tests.integrations.patience import PATIENCE, wait_for_nodes_longer

STORE = 100 * 2**20
N_ROWS, N_TOKENS = 24, 120
COMMAND = "from aleator.cli import main; raise SystemExit(main())"
FOLDER = Path(tempfile.mkdtemp())
OPTIONS: dict[str, Any] = {
    "seed": 5,
    "max_tokens": N_TOKENS,
    "ignore_eos": True,
    "batch_size": 2,
    "engine": {"n_seq_max": 2, "n_ctx": 1024},
}


def rows() -> Any:
    """The data set."""
    names = ("ROMEO", "JULIET", "NURSE", "FRIAR")
    return ray.data.from_items(
        [{"id": f"row-{i}", "prompt": f"{names[i % 4]}:\n"} for i in range(N_ROWS)],
        override_num_blocks=N_ROWS // 2,
    )


def alone() -> dict[str, tuple[str, list[int], list[float]]]:
    """What each row is without Ray."""
    model = aleator.load(n_threads=1)
    names = ("ROMEO", "JULIET", "NURSE", "FRIAR")
    made = {}
    for i in range(N_ROWS):
        key = f"row-{i}"
        one = model.generate(
            f"{names[i % 4]}:\n",
            max_tokens=N_TOKENS,
            ignore_eos=True,
            seed=seed_of(5, key),
            logprobs=0,
        )
        made[key] = (one.text, one.tokens, [each.chosen.logprob for each in one.logprobs or []])
    return made


def found(path: Path) -> dict[str, tuple[str, list[int], list[float]]]:
    """What a file of results holds; a key twice is an error."""
    made: dict[str, tuple[str, list[int], list[float]]] = {}
    for line in path.read_text().splitlines():
        row = json.loads(line)
        assert row["id"] not in made, row["id"]
        assert row["error"] == "", row["error"]
        made[row["id"]] = (row["text"], row["tokens"], row["logprobs"])
    return made


def workers() -> list[int]:
    """Processes of our actors."""
    listed = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True)
    lines = [line.split(None, 1) for line in listed.stdout.splitlines()[1:]]
    return [int(pid) for pid, what in lines if what.startswith("ray::") and "MapWorker" in what]


def disturbed(path: Path, harm: Callable[[], None], at: int) -> Any:
    """Write the results, and do harm once so many are there."""
    harmed = threading.Event()

    def progress(done: int, total: int) -> None:
        if done >= at and not harmed.is_set():
            harmed.set()
            harm()

    result = write(rows(), path, workers=2, progress=progress, **OPTIONS)
    assert harmed.is_set()
    return result


def kill_a_worker() -> None:
    there = workers()
    assert there, "no worker was found"
    os.kill(there[0], signal.SIGKILL)


def main() -> None:
    wanted = alone()
    wait_for_nodes_longer()
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 1, "object_store_memory": STORE, "include_dashboard": False},
    )
    try:
        second = cluster.add_node(num_cpus=1, object_store_memory=STORE)
        cluster.wait_for_nodes(PATIENCE)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
        ray.data.DataContext.get_current().enable_progress_bars = False
        ray.data.DataContext.get_current().max_errored_blocks = 0
        clock = time.perf_counter()
        result = write(rows(), FOLDER / "plain.jsonl", workers=2, **OPTIONS)
        assert found(FOLDER / "plain.jsonl") == wanted
        print(
            f"  {N_ROWS} rows on two nodes in {time.perf_counter() - clock:.1f} s: equal to each alone"
        )
        for each in result.workers:
            print(
                f"  memory of a worker: resident {each.rss} MiB, shared {each.shared}, own {each.private}"
            )
        again = write(rows(), FOLDER / "plain.jsonl", workers=2, **OPTIONS)
        assert (again.rows, again.before) == (0, N_ROWS)
        lines = (FOLDER / "plain.jsonl").read_text().splitlines(keepends=True)
        (FOLDER / "plain.jsonl").write_text("".join(lines[:7]) + lines[7][:20])
        again = write(rows(), FOLDER / "plain.jsonl", workers=1, **{**OPTIONS, "batch_size": 5})
        assert (again.rows, again.before) == (N_ROWS - 7, 7)
        assert found(FOLDER / "plain.jsonl") == wanted
        print("  gone on with after a torn line, with one worker and batches of 5: equal")
        texts = {
            row["id"]: row["text"]
            for row in generate(rows(), workers=(1, 2), **OPTIONS).iter_rows()
        }
        assert texts == {key: text for key, (text, _, _) in wanted.items()}
        print("  generate: a data set with the same texts")
        clock = time.perf_counter()
        disturbed(FOLDER / "killed.jsonl", kill_a_worker, 2)
        assert found(FOLDER / "killed.jsonl") == wanted
        print(f"  a worker killed: every row once, equal ({time.perf_counter() - clock:.1f} s)")
        command_line()
        clock = time.perf_counter()
        disturbed(
            FOLDER / "removed.jsonl", lambda: cluster.remove_node(second, allow_graceful=False), 2
        )
        assert found(FOLDER / "removed.jsonl") == wanted
        print(f"  a node removed: every row once, equal ({time.perf_counter() - clock:.1f} s)")
    finally:
        ray.shutdown()
        cluster.shutdown()


def command_line() -> None:
    """``aleator batch --ray`` against ``aleator batch``."""
    requests = FOLDER / "requests.jsonl"
    lines = [
        {"custom_id": f"r{i}", "body": {"prompt": "ROMEO:", "max_tokens": 9, "seed": i}}
        for i in range(6)
    ]
    lines[3]["body"]["max_tokens"] = -9
    for line in lines:
        line["url"] = "/v1/completions"
    requests.write_text("".join(json.dumps(line) + "\n" for line in lines))
    outputs = []
    for more in ([], ["--ray", ray.get_runtime_context().gcs_address, "--ray-workers", "2"]):
        output = FOLDER / f"batch{len(more)}.jsonl"
        made = subprocess.run(
            [sys.executable, "-c", COMMAND, "batch", requests, output, "-t", "1", *more],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert made.returncode == 1, made.stderr[-3000:]  # one line is wrong
        results = sorted(
            map(json.loads, output.read_text().splitlines()), key=lambda r: r["custom_id"]
        )
        for result in results:
            result["response"]["body"].pop("created", None)
        outputs.append(results)
    assert outputs[0] == outputs[1]
    assert [each["response"]["status_code"] for each in outputs[0]] == [200] * 3 + [400] + [200] * 2
    print("  aleator batch --ray: the results of aleator batch")
    made = subprocess.run(
        [sys.executable, "-c", COMMAND, "batch", requests, FOLDER / "none.jsonl", "--ray", "127.0.0.1:1"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert made.returncode == 2, made.stderr[
        -3000:
    ]  # nothing is wrong with the lines: a wrong argument
    assert "ray='127.0.0.1:1'" in made.stderr.splitlines()[-1]
    print("  an address where no cluster is: one line")


if __name__ == "__main__":
    print(f"ray {version('ray')}")
    main()
