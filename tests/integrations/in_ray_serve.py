"""Ray Serve: the server on two nodes, with conversations, a replica killed in mid-stream, and autoscaling.

Run by tools/integrations.py in an environment with ray[data,serve].  Texts must be those of the model
by itself.  ``--starts N`` starts Serve so often instead, and says what its proxies answer at first: both are
on one address here, and the system chooses between them for each connection.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}

import ray
from ray import serve
from ray.cluster_utils import Cluster

import aleator
from aleator.integrations.ray_serve import application, replica_of
from aleator.integrations.streams import RequestRefused, TextStream
from tests.integrations.patience import PATIENCE, wait_for_nodes_longer

STORE = 100 * 2**20
PORT = 18412
ROOT = f"http://127.0.0.1:{PORT}"
URL = f"{ROOT}/v1"
IN_A_ROW = 40
"""New connections that must find a proxy that is ready: with two proxies none is missed but once in 2^40."""
LONG = {"prompt": "ROMEO:\n", "max_tokens": 1500, "temperature": 0.8, "seed": 9, "ignore_eos": True}


def asked(path: str, body: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """The response to a body, and which replica answered."""
    request = urllib.request.Request(
        f"{URL}/{path}", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as response:
        return json.load(response), replica_of(dict(response.getheaders()))


def conversations(model: aleator.LanguageModel) -> None:
    """Turns of a conversation go to one replica; different ones to both."""
    used = set()
    for i in range(8):
        messages = [{"role": "user", "content": f"Who goes there, number {i}?"}]
        replicas = []
        for _ in range(3):
            body = {"messages": messages, "max_tokens": 8, "seed": 4, "temperature": 0.8}
            answer, replica = asked("chat/completions", body)
            replicas.append(replica)
            said = answer["choices"][0]["message"]["content"]
            if i == 0:
                wanted = model.chat(messages, max_tokens=8, seed=4, temperature=0.8)
                assert said == wanted.message.content
            messages = [
                *messages,
                {"role": "assistant", "content": said},
                {"role": "user", "content": "And?"},
            ]
        assert len(set(replicas)) == 1, replicas
        used |= set(replicas)
    assert len(used) == 2, used
    print("  8 conversations of three turns: each on one replica, both replicas used, texts equal")


def killed(model: aleator.LanguageModel) -> None:
    """The replica that writes a stream is killed; the stream goes on with the same text."""
    wanted = model.generate(
        "ROMEO:\n", max_tokens=1500, temperature=0.8, seed=9, ignore_eos=True
    ).text
    stream = TextStream(f"{URL}/completions", LONG, pause=1, attempts=12)
    text, first = next(stream), replica_of(stream.headers)
    os.kill(int(first.rpartition("/")[2]), signal.SIGKILL)
    begun = time.perf_counter()
    text += "".join(stream)
    assert text == wanted
    assert stream.repeated >= 1, "the stream was over before the replica was killed"
    assert replica_of(stream.headers) != first
    print(
        f"  a replica killed in mid-stream: asked again {stream.repeated} times, whole text of {len(text)} "
        f"characters equal after {time.perf_counter() - begun:.1f} s"
    )
    again = TextStream(f"{URL}/completions", LONG, attempts=12)
    assert "".join(again) == wanted
    print("  a stream after that: equal")


QUICKLY = {
    "upscale_delay_s": 1, "downscale_delay_s": 2, "metrics_interval_s": 1, "look_back_period_s": 2,
}  # fmt: skip


def replicas() -> int:
    """How many are running."""
    states = serve.status().applications["default"].deployments["Replica"].replica_states
    return int(states.get("RUNNING", 0))


def until(n: int, deadline: float = 300) -> float:
    """Wait until so many replicas are running; the seconds that it took."""
    begun = time.perf_counter()
    while replicas() != n:
        assert time.perf_counter() - begun < deadline, f"{replicas()} replicas, not {n}"
        time.sleep(0.5)
    return time.perf_counter() - begun


def autoscaled(model: aleator.LanguageModel) -> None:
    """Requests bring a second replica, which goes when they are over; texts are equal."""
    serve.run(
        application(max_replicas=2, engine={"n_seq_max": 2, "n_ctx": 8192}, autoscaling=QUICKLY),
        route_prefix="/",
    )
    until(1)
    wanted = model.generate(
        "ROMEO:\n", max_tokens=1500, temperature=0.8, seed=9, ignore_eos=True
    ).text
    with ThreadPoolExecutor(8) as pool:
        made = [
            pool.submit(lambda: "".join(TextStream(f"{URL}/completions", LONG, attempts=12)))
            for _ in range(16)
        ]
        up = until(2)
        assert all(each.result() == wanted for each in made)
    down = until(1)
    print(
        f"  autoscaling: 8 streams at once brought a second replica after {up:.0f} s, which went {down:.0f} s "
        "after the last; 16 texts equal"
    )


def refused() -> None:
    """An unknown field is told, and not asked for again."""
    try:
        next(TextStream(f"{URL}/completions", {"prompt": "x", "top_kk": 1}))
    except RequestRefused as error:
        told = error
    assert told.status == 400
    assert "top_kk" in str(told)
    print("  an unknown field is refused, once")


def told(path: str) -> str:
    """The status of a new connection, and what a proxy says that is not ready; or how the connection broke."""
    try:
        with urllib.request.urlopen(f"{ROOT}{path}", timeout=60) as response:
            return str(response.status)
    except urllib.error.HTTPError as error:
        return f"{error.code} {error.read().decode(errors='replace').strip()}"
    except (OSError, http.client.HTTPException) as error:
        return type(error).__name__


def proxies() -> int:
    """How many Serve has found healthy; that they know of the application is another thing."""
    return sum(state == "HEALTHY" for state in serve.status().proxies.values())


def routed(path: str = "/-/healthz", deadline: float = 300) -> tuple[float, Counter[str]]:
    """Wait until the proxies of both nodes have heard of the application, and of a replica.

    ``serve.run`` waits for replicas.  The proxy of the second node is made after that: it listens at once, and
    answers 404 until the controller has told it of the application.

    Args:
        path: What is asked for meanwhile.
        deadline: Seconds.

    Returns:
        Seconds that it took, and what new connections were told on the way.
    """
    begun, ready, answers = time.perf_counter(), 0, Counter[str]()
    while ready < IN_A_ROW:
        assert time.perf_counter() - begun < deadline, f"{proxies()} proxies, {answers}"
        answer = told(path)
        answers[answer] += 1
        ready = ready + 1 if answer == "200" and (ready or proxies() == 2) else 0
    return time.perf_counter() - begun, answers


@contextmanager
def cluster_of_two() -> Iterator[None]:
    """Two nodes with a core each."""
    wait_for_nodes_longer()
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 1, "object_store_memory": STORE, "include_dashboard": False},
    )
    try:
        cluster.add_node(num_cpus=1, object_store_memory=STORE)
        cluster.wait_for_nodes(PATIENCE)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
        yield
    finally:
        ray.shutdown()
        cluster.shutdown()


@contextmanager
def served() -> Iterator[None]:
    """Serve on the cluster, with two replicas."""
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": PORT})
        serve.run(
            application(
                min_replicas=2, max_replicas=2, engine={"n_seq_max": 2, "n_ctx": 8192}, num_cpus=1
            ),
            route_prefix="/",
        )
        yield
    finally:
        serve.shutdown()


def starts(n: int) -> None:
    """Start again and again."""
    with cluster_of_two():
        for i in range(n):
            with served():
                waited, first = routed("/health")
                then = Counter(told("/health") for _ in range(5 * IN_A_ROW))
            print(
                f"  start {i + 1}: ready {waited:.1f} s after serve.run, until then /health answered "
                f"{dict(first)}, after that {dict(then)}",
                flush=True,
            )
            assert set(then) == {"200"}


def main() -> None:
    model = aleator.load(n_threads=1)
    with cluster_of_two(), served():
        waited, first = routed()
        answer, _ = asked(
            "completions", {"prompt": "ROMEO:", "max_tokens": 12, "seed": 1, "temperature": 0.8}
        )
        assert (
            answer["choices"][0]["text"]
            == model.generate("ROMEO:", max_tokens=12, seed=1, temperature=0.8).text
        )
        print(
            f"  both proxies knew it {waited:.1f} s after serve.run; until then they said {dict(first)}"
        )
        print("  a completion: equal")
        handle = serve.get_deployment_handle("Replica", app_name="default")
        found = handle.memory.remote().result()
        print(
            f"  memory of a replica: resident {found['rss']} MiB, shared {found['shared']}, "
            f"own {found['private']}"
        )
        refused()
        conversations(model)
        killed(model)
        autoscaled(model)


if __name__ == "__main__":
    print(f"ray {version('ray')}")
    if sys.argv[1:2] == ["--starts"]:
        starts(int(sys.argv[2]))
    else:
        main()
