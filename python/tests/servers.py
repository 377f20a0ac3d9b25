"""Real Redis servers for tests: on free ports of 127.0.0.1, in folders of their own, ended by their
own process ids."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import pytest
import redis

#: Longest wait for anything in these tests, in seconds.
EVENT_LIMIT_S = 30.0

_T = TypeVar("_T")


def until(what: str, look: Callable[[], _T], limit_s: float = EVENT_LIMIT_S) -> _T:
    """The first true value that `look` gives; errors of Redis count as not yet."""
    ends_at, pause = time.monotonic() + limit_s, threading.Event()
    last: object = None
    while time.monotonic() < ends_at:
        try:
            value = look()
            if value:
                return value
            last = value
        except (redis.RedisError, OSError) as error:
            last = error
        pause.wait(0.02)
    raise AssertionError(f"waited {limit_s} s in vain for {what}, last was {last!r}")


def is_ci() -> bool:
    """Whether nothing may be left out."""
    return os.environ.get("CI") in ("true", "1")


def need(program: str) -> str:
    """The path of a program; without it the test is skipped, or fails with CI=true."""
    path = shutil.which(program)
    if path is None:
        leave_out(f"{program} is not on PATH: install it (tests/run does)")
    return path


def leave_out(why: str) -> NoReturn:
    """Skips the test; with CI=true, where nothing may be left out, it fails."""
    if is_ci():
        pytest.fail(why)
    pytest.skip(why)


def free_port() -> int:
    """A port that nobody listens on, and whose cluster port (10,000 more) nobody does either.

    Below the ports that the kernel gives to connections.
    """
    while True:
        port = random.randrange(12_000, 22_000)
        try:
            for number in (port, port + 10_000):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", number))
            return port
        except OSError:
            continue


class Server:
    """A running redis-server."""

    def __init__(self, folder: Path, *settings: str, program: str = "redis-server") -> None:
        self._program = need(program)
        self.port = free_port()
        self._folder = folder / f"redis-{self.port}"
        self._folder.mkdir(parents=True)
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Starts it, again with the same data."""
        port = ["--port", str(self.port)]
        words = [self._program, *port, "--bind", "127.0.0.1", "--dir", str(self._folder)]
        if "--sentinel" in self._settings:
            config = self._folder / "sentinel.conf"
            config.touch()
            words = [self._program, str(config), *port, "--dir", str(self._folder)]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*words, *self._settings], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        until(f"redis on {self.port}; {self._folder}/log", self._is_up)

    def _is_up(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._folder / "log").read_text()
        with socket.create_connection(("127.0.0.1", self.port), timeout=1):
            pass
        return bool(self.client().ping())

    @property
    def url(self) -> str:
        """Its address."""
        return f"redis://127.0.0.1:{self.port}"

    def client(self) -> redis.Redis:
        """A plain client, for what no trainer or worker would do."""
        return redis.Redis(port=self.port, socket_timeout=5)

    def command(self, *words: Any) -> Any:
        """One plain command."""
        with self.client() as client:
            return client.execute_command(*words)

    def kill(self) -> None:
        """Ends it without notice."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def pause(self) -> None:
        """Freezes it."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Ends a pause."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """Ends it for good."""
        if self._process is not None and self._process.poll() is None:
            self.kill()
