"""The examples as programs of their own, with engines of the `ebbtide` binary.

`EBBTIDE_BINARY` says where that is; `tests/run` sets it.
"""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

from programs import Programs
from servers import Server, until

from ebbtide import Queue, QueueUnavailable, Status
from ebbtide.library import library

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


def test_loop_takes_new_nodes_once_they_are_there_and_names_those_that_it_leaves(
    programs: Programs, engine: str, redis_server: Server, run: str, tmp_path: Path
) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("n1 slots=8\n")
    where = ("--redis", redis_server.url, "--run", run, "--engine", engine)
    programs.example(
        "loop", "grpo_loop.py", *where, "--create", "--groups-per-step", "2", "--group-size", "2",
        "--max-tokens", "60", "--steps", "1000", "--hostfile", str(hosts),
    )  # fmt: skip
    key = f"{{{run}:c}}:trainer"

    def field(name: str) -> bytes | None:
        answer: bytes | None = redis_server.command("HGET", key, name)
        return answer

    with queue_of(redis_server, run) as queue:
        programs.example("worker", "custom_worker.py", *where, "--node", "w")
        until("its size", lambda: field("size") == b"1")
        redis_server.command("HSET", key, "resize_size", 2, "resize_generation", 1)
        until("its word", lambda: field("confirmed_generation") == b"1")
        version = queue.policy_version().version
        until_status(queue, "more updates", lambda s: s.policy_version > version + 1)
        assert field("size") == b"1", "its node is not there yet"
        hosts.write_text("n1\nn2\n")
        until("its new size", lambda: field("size") == b"2")
        # Another node comes that it does not run on, and it is to give up one of its own.
        hosts.write_text("n1\nn2\nn3\n")
        redis_server.command("HSET", key, "resize_size", 1, "resize_generation", 2)
        until("its word", lambda: field("confirmed_generation") == b"2")
        assert (field("resize_released"), field("size")) == (b"n2,n3", b"1")


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
