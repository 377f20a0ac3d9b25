"""The examples as programs of their own, with engines of the `ebbtide` binary.

`EBBTIDE_BINARY` says where that is; `tests/run` sets it.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from servers import Server, free_port, leave_out, until

from ebbtide import Queue, QueueUnavailable, Status
from ebbtide.library import library

EXAMPLES = Path(__file__).parents[1] / "examples"
#: Longest life of one program, in seconds.
PROGRAM_LIMIT_S = 120.0


class Programs:
    """Starts programs with their logs in a folder; kills what is left."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, *words: str | Path) -> subprocess.Popen[bytes]:
        with self.log(name).open("wb") as log:
            process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._running.append(process)
        return process

    def example(self, name: str, script: str, *words: str) -> subprocess.Popen[bytes]:
        return self.start(name, sys.executable, "-W", "error", EXAMPLES / script, *words)

    def log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def text(self, name: str) -> str:
        return self.log(name).read_text()

    def finish(self, name: str, process: subprocess.Popen[bytes]) -> str:
        """Waits for its good end; gives what it wrote."""
        code = process.wait(PROGRAM_LIMIT_S)
        assert code == 0, f"{name} ended with {code}:\n{self.text(name)}"
        return self.text(name)

    def kill_all(self) -> None:
        for process in self._running:
            process.kill()
            process.wait()


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Programs]:
    programs = Programs(tmp_path)
    yield programs
    programs.kill_all()


@pytest.fixture
def binary() -> str:
    path = os.environ.get("EBBTIDE_BINARY")
    if not path:
        leave_out("EBBTIDE_BINARY is not set to the ebbtide binary; tests/run sets it")
    return path


@pytest.fixture
def engine(binary: str, programs: Programs) -> str:
    """The address of an engine that serves policy version 0."""
    address = f"127.0.0.1:{free_port()}"
    programs.start(
        "engine", binary, "engine-emulator", "--listen", address, "--tokens-per-second", "300",
        "--max-running", "32", "--mean-length", "80", "--weights-label", "0",
    )  # fmt: skip
    until("the engine to serve", lambda: "serving on" in programs.text("engine"))
    return f"http://{address}"


def queue_of(server: Server, run: str) -> Queue:
    def connect() -> Queue | None:
        try:
            return Queue.connect(server.url, run)
        except QueueUnavailable:
            return None

    queue = until("the run to be laid out", connect)
    assert queue is not None
    return queue


def until_status(queue: Queue, what: str, look: Callable[[Status], bool]) -> None:
    until(what, lambda: look(queue.status()))


def test_loop_with_scores_and_a_worker_that_is_killed(
    programs: Programs, engine: str, redis_server: Server, run: str
) -> None:
    where = ("--redis", redis_server.url, "--run", run)
    loop = programs.example(
        "loop", "grpo_loop.py", *where, "--steps", "3", "--create", "--score", "--shards", "2",
        "--groups-per-step", "2", "--group-size", "4", "--max-tokens", "150", "--engine", engine,
    )  # fmt: skip
    worker = ("custom_worker.py", *where, "--engine", engine, "--node")
    with queue_of(redis_server, run) as queue:
        victim = programs.example("victim", *worker, "n1")
        until_status(queue, "tokens in the queue", lambda s: s.tokens_generated > 0)
        victim.kill()
        victim.wait()
        heir = programs.example("heir", *worker, "n2")
        said = programs.finish("loop", loop)
        heir.send_signal(signal.SIGTERM)
        assert "everything is handed back" in programs.finish("heir", heir)
        status = queue.status()
    assert "step 3: 2 groups" in said and "within the lag bound" in said
    assert re.search(r"\d+ responses scored by share-of-threes/1", said)
    assert "n2" not in status.leased_by_node, "everything is handed back"
    assert (status.reward_leased, status.dead) == (0, 0)
    assert status.policy_version == 3
    assert status.groups_sealed >= 6


def test_killed_loop_goes_on_where_it_was(
    programs: Programs, engine: str, redis_server: Server, run: str
) -> None:
    words = (
        "grpo_loop.py", "--redis", redis_server.url, "--run", run, "--create", "--engine", engine,
        "--groups-per-step", "2", "--group-size", "2", "--max-tokens", "60", "--steps",
    )  # fmt: skip
    first = programs.example("first", *words, "1000")
    with queue_of(redis_server, run) as queue:
        programs.example(
            "worker", "custom_worker.py", "--redis", redis_server.url, "--run", run,
            "--node", "n1", "--engine", engine,
        )  # fmt: skip
        until_status(queue, "two updates", lambda s: s.policy_version >= 2)
        first.kill()
        first.wait()
        before = queue.policy_version().version
        said = programs.finish("second", programs.example("second", *words, "2"))
        assert f"policy version {before + 2};" in said
        status = queue.status()
    assert status.versions_refused == 0
    # Killed between the new version and its acknowledgement, it leaves a batch that is too old now.
    assert status.groups_failed in (0, 2)


def test_loop_with_the_demos_fleet_that_loses_nodes(
    binary: str, programs: Programs, redis_server: Server, run: str
) -> None:
    demo = programs.start(
        "demo", binary, "demo", "--redis", redis_server.url, "--run", run, "--trainer", "external",
        "--for", "12s", "--nodes", "4", "--notices", "2", "--kills", "1",
    )  # fmt: skip
    loop = programs.example(
        "loop", "grpo_loop.py", "--redis", redis_server.url, "--run", run, "--steps", "2",
        "--groups-per-step", "2", "--group-size", "4",
    )  # fmt: skip
    said = programs.finish("loop", loop)
    assert "step 2: 2 groups" in said and "within the lag bound" in said
    programs.finish("demo", demo)


def test_both_clients_load_the_same_library(
    binary: str, redis_server: Server, queue: Queue, run: str
) -> None:
    queue.status()
    words = ("queue", "status", "--redis", redis_server.url, "--run", run)
    subprocess.run([binary, *words], check=True, stdout=subprocess.DEVNULL)
    libraries = redis_server.client().function_list()
    names = [loaded[1].decode() for loaded in libraries]
    assert names == [library().prefix.removesuffix("_")]
