"""What tests share: one Redis for all, and a run of its own for each."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from servers import Server

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
