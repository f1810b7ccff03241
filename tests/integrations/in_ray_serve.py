"""Ray Serve: the server on two nodes, with conversations and with a replica killed in mid-stream.

Run by tools/integrations.py in an environment with ray[data,serve].  Texts must be those of the model
by itself.
"""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.request
from importlib.metadata import version
from typing import Any

os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}

import ray
from ray import serve
from ray.cluster_utils import Cluster

import aleator
from aleator.integrations.ray_serve import application, replica_of
from aleator.integrations.streams import RequestRefused, TextStream

STORE = 100 * 2**20
PORT = 18412
URL = f"http://127.0.0.1:{PORT}/v1"
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


def refused() -> None:
    """An unknown field is told, and not asked for again."""
    try:
        next(TextStream(f"{URL}/completions", {"prompt": "x", "top_kk": 1}))
    except RequestRefused as error:
        told = error
    assert told.status == 400
    assert "top_kk" in str(told)
    print("  an unknown field is refused, once")


def main() -> None:
    model = aleator.load(n_threads=1)
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 1, "object_store_memory": STORE, "include_dashboard": False},
    )
    try:
        cluster.add_node(num_cpus=1, object_store_memory=STORE)
        cluster.wait_for_nodes()
        ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
        serve.start(http_options={"host": "127.0.0.1", "port": PORT})
        serve.run(
            application(
                min_replicas=2, max_replicas=2, engine={"n_seq_max": 2, "n_ctx": 8192}, num_cpus=1
            ),
            route_prefix="/",
        )
        answer, _ = asked(
            "completions", {"prompt": "ROMEO:", "max_tokens": 12, "seed": 1, "temperature": 0.8}
        )
        assert (
            answer["choices"][0]["text"]
            == model.generate("ROMEO:", max_tokens=12, seed=1, temperature=0.8).text
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
    finally:
        serve.shutdown()
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    print(f"ray {version('ray')}")
    main()
