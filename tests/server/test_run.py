from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import ssl
import stat
import subprocess
import threading
import time
from pathlib import Path

import pytest

from aleator.core.errors import ParameterError
from aleator.engine.engine import Engine
from aleator.language_model import LanguageModel
from aleator.server import run
from aleator.server.app import create_guarded
from aleator.server.options import ServerOptions
from aleator.server.run import Server, bound
from aleator.server.service import Service
from tests.server.live import PATIENCE, Process, in_thread, request_of, rest, until

LONG = {
    "prompt": "ROMEO:", "max_tokens": 1000, "n": 8, "seed": 1, "ignore_eos": True, "stream": True,
}  # fmt: skip
"""Takes seconds."""


def refusal(**options: object) -> str:
    with pytest.raises(ParameterError) as caught:
        bound(ServerOptions.of(options))
    return str(caught.value)


def test_a_port_in_use_is_told_in_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert refusal(port=port) == (
            f"--host 127.0.0.1 --port {port}: another program listens there: give another port, or 0 for any "
            "that is free"
        )
        process = Process("--port", str(port))
        with process:
            assert process.end() == 2
        lines = process.err.strip().splitlines()
        assert len(lines) == 1
        assert "another program listens there" in lines[0]


def test_addresses_of_others_are_refused() -> None:
    assert "nothing can listen there" in refusal(host="192.0.2.1", port=0)
    assert "nothing can listen there" in refusal(host="no.such.name.invalid", port=0)


def test_a_unix_socket_is_this_users_alone(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    made = bound(ServerOptions(uds=str(path)))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "another program listens there" in refusal(uds=str(path))
    made.close()
    bound(ServerOptions(uds=str(path))).close()  # nobody listens on it any more
    file = tmp_path / "file"
    file.write_text("mine")
    assert "a file is there already" in refusal(uds=str(file))
    assert file.read_text() == "mine"
    assert "nothing can listen there" in refusal(uds=str(tmp_path / "none" / "socket"))


def test_certificates_are_looked_at_first(tmp_path: Path) -> None:
    none = tmp_path / "none.pem"
    none.write_text("nothing")
    assert "needs --ssl-certfile" in refusal(ssl_keyfile=str(none))
    assert "not a certificate" in refusal(ssl_certfile=str(none), port=0)
    assert "No such file" in refusal(ssl_certfile=str(tmp_path / "x"), port=0)


def test_over_tls(tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    words = f"req -x509 -newkey rsa:2048 -nodes -keyout {key} -out {certificate} -days 2"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    subprocess.run(["openssl", *words.split(), *subject], check=True, capture_output=True)
    with Process("--ssl-certfile", str(certificate), "--ssl-keyfile", str(key)) as server:
        assert "https://127.0.0.1:" in server.err
        context = ssl.create_default_context(cafile=str(certificate))
        connection = http.client.HTTPSConnection(
            "localhost", server.live.port, context=context, timeout=PATIENCE
        )
        connection.request("GET", "/health")
        assert connection.getresponse().read() == b'{"status":"ok"}'
        connection.close()


def test_over_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with Process("--uds", str(path)) as server:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(path))
            connection.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            assert rest(connection).endswith(b'{"status":"ok"}')
        server.signal()
        assert server.end() == 0
        assert not path.exists()


def test_the_loop_sleeps_between_requests_and_ends_at_once(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []
    on_tick = Server.on_tick

    async def noted(self: Server, counter: int) -> bool:
        looks.append(counter)
        return await on_tick(self, counter)

    monkeypatch.setattr(Server, "on_tick", noted)
    monkeypatch.setattr(run, "TICK_SECONDS", 10 * PATIENCE)
    with in_thread(model, engine={"n_seq_max": 1}) as live:  # waits for its end
        came = live.answer(request_of({"prompt": "ROMEO:", "max_tokens": 1}))
        assert b"\r\ndate: " in came
    assert looks == [0, 0]  # when it began and when it ended


@pytest.mark.parametrize("listens", [False, True])
@pytest.mark.parametrize("uvicorns", [False, True])
def test_it_ends_whenever_it_is_told_to(
    model: LanguageModel, listens: bool, uvicorns: bool
) -> None:
    def end() -> None:
        if uvicorns:
            server.should_exit = True
        else:
            server.end()

    options, listening = ServerOptions(port=0), threading.Event()
    with bound(options) as made, Engine(model, n_seq_max=1) as engine:
        service = Service(model, engine, options)
        server = Server(create_guarded(service), options, listening.set, service.cut)
        thread = threading.Thread(target=lambda: server.run(sockets=[made]), daemon=True)
        if not listens:
            end()
        thread.start()
        assert listening.wait(PATIENCE)
        if listens:
            end()
        thread.join(PATIENCE)
        assert not thread.is_alive()
        end()  # a second time does nothing


def test_the_first_signal_lets_requests_end_and_the_log_says_nothing_of_them() -> None:
    with Process("--log-format", "json") as server:
        with server.live.send(request_of(LONG)) as connection:
            came = connection.recv(2**16)
            while b"data: " not in came:
                came += connection.recv(2**16)
            server.signal()
            until(lambda: '"draining"' in server.err)
            status, headers, body = server.live.post("/v1/completions", {"prompt": "x"})
            assert (status, "retry-after" in headers) == (503, True)
            assert b"shutting down" in body
            came += rest(connection)
        assert server.end() == 0
    assert came.count(b'"text":') >= 2000
    assert b"data: [DONE]" in came
    log = [json.loads(line) for line in server.err.splitlines() if line.startswith("{")]
    assert [each["event"] for each in log].count("request") == 2
    assert all("ROMEO" not in json.dumps(each) for each in log)


def test_an_open_server_without_keys_is_warned_of() -> None:
    with Process("--host", "0.0.0.0") as server:
        until(lambda: "open to the network without a key" in server.err)
    file = Path(os.devnull)
    with Process("--api-key-file", str(file)) as server:
        assert server.end() == 2
    assert "has no key" in server.err


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts as Linux does")
def test_an_idle_server_sleeps() -> None:
    def wakes(process: int) -> int:
        status = Path(f"/proc/{process}/status").read_text()
        return int(status.split("voluntary_ctxt_switches:")[1].split()[0])

    with Process() as server:
        assert server.live.post("/v1/completions", {"prompt": "x", "max_tokens": 1})[0] == 200
        time.sleep(0.5)
        before, began = wakes(server.process.pid), time.monotonic()
        time.sleep(2)
        seconds = time.monotonic() - began
        assert (wakes(server.process.pid) - before) / seconds < 5  # uvicorn's loop: ten a second
