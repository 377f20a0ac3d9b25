"""Programs that tests start: the `ebbtide` binary, the examples, the metadata mock."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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
