"""The one Redis that all contestants use in turn: on a core of its own, emptied between them."""

import os
import shutil
import socket
import subprocess
import sys
import time

import install

START_SECONDS = 10
REWRITE_SECONDS = 120


class Redis:
    """A server for the length of a `with` block; `aof` is `off` or `everysec`."""

    def __init__(self, core, aof):
        self.core = core
        self.aof = aof

    def __enter__(self):
        self.folder = install.BENCH / "redis"
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.port = free_port()
        settings = {
            "bind": "127.0.0.1",
            "port": self.port,
            "dir": self.folder,
            "save": "",
            "appendonly": "no" if self.aof == "off" else "yes",
            "appendfsync": "everysec",
            # A rewrite in the middle of a measurement would hit one contestant only.
            "auto-aof-rewrite-percentage": 0,
            "io-threads": 1,
            "maxmemory-policy": "noeviction",
        }
        options = [part for name, value in settings.items() for part in (f"--{name}", str(value))]
        self.process = subprocess.Popen(
            ["redis-server", *options],
            stdout=open(self.folder / "log", "w"),
            stderr=subprocess.STDOUT,
            preexec_fn=lambda: os.sched_setaffinity(0, {self.core}),
        )
        self.connection = self.connect()
        return self

    def __exit__(self, *_):
        self.connection.close()
        self.process.terminate()
        self.process.wait()
        shutil.rmtree(self.folder)

    def connect(self):
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                return socket.create_connection(("127.0.0.1", self.port), START_SECONDS)
            except ConnectionRefusedError:
                time.sleep(0.05)
        sys.exit(f"redis-server did not start:\n{(self.folder / 'log').read_text()}")

    def empty(self):
        """Removes every key; with AOF also what was written before, so that the disk is calm."""
        self.command("FLUSHALL", "SYNC")
        if self.aof == "off":
            return
        self.command("BGREWRITEAOF")
        deadline = time.monotonic() + REWRITE_SECONDS
        while "aof_rewrite_in_progress:1" in self.command("INFO", "persistence"):
            if time.monotonic() > deadline:
                sys.exit(f"Redis has not rewritten its AOF within {REWRITE_SECONDS} s")
            time.sleep(0.05)

    def command(self, *words):
        """Sends one command, returns its answer: a status or a bulk string."""
        self.connection.settimeout(REWRITE_SECONDS)
        self.connection.sendall(" ".join(words).encode() + b"\r\n")
        answer = self.connection.recv(65536)
        if answer.startswith(b"-"):
            sys.exit(f"{words[0]}: {answer.decode().strip()}")
        if answer.startswith(b"$"):
            head = answer.index(b"\r\n")
            expected = head + 2 + int(answer[1:head]) + 2
            while len(answer) < expected:
                answer += self.connection.recv(65536)
        return answer.decode()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
