"""What tests share: one Redis for all, and a run of its own for each."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from programs import Programs
from servers import Server, free_port, leave_out, until

from ebbtide import Layout, Queue

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One Redis without persistence."""
    server = Server(tmp_path_factory.mktemp("shared"), "--save", "")
    yield server
    server.stop()


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Starts servers that this test may hurt."""
    servers: list[Server] = []

    def start(*settings: str, **options: str) -> Server:
        servers.append(Server(tmp_path, *settings, **options))
        return servers[-1]

    yield start
    for server in servers:
        server.resume()
        server.stop()


@pytest.fixture
def run() -> str:
    """The name of a run that is nobody else's."""
    return f"run-{next(_numbers)}"


@pytest.fixture
def queue(redis_server: Server, run: str) -> Iterator[Queue]:
    """A run with two shards that is generated only."""
    with Queue.connect(redis_server.url, run, create=Layout(shards=2)) as queue:
        yield queue


@pytest.fixture
def scored_queue(redis_server: Server, run: str) -> Iterator[Queue]:
    """A run with two shards and a reward stage."""
    layout = Layout(shards=2, stages=("generate", "reward"))
    with Queue.connect(redis_server.url, run, create=layout) as queue:
        yield queue


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


@pytest.fixture
def metadata_mock() -> str:
    path = os.environ.get("EBBTIDE_METADATA_MOCK")
    if not path:
        leave_out("EBBTIDE_METADATA_MOCK is not set to AWS's metadata mock; tests/run sets it")
    return path
