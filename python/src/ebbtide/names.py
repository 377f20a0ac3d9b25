"""Names that identify things: runs, groups, units, holders; and the shard of a group.

Every name is checked once, where it enters.
"""

from __future__ import annotations

import re
import uuid
import zlib
from dataclasses import dataclass
from pathlib import Path

from .errors import InvalidInput

#: Versions and fencing tokens are below this: Lua counts in doubles.
NUMBER_LIMIT = 1 << 53

#: Processes of node agents begin with this; a worker's must not, or a restarted agent would take
#: back what the worker holds.
AGENT_PROCESS_PREFIX = "agent-"

_PLAIN = "[A-Za-z0-9_-]{1,64}"
_NODE = "[A-Za-z0-9._-]{1,253}"
_UNIT = re.compile(rf"({_PLAIN})\.([0-9a-f]{{4}})")
_BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")


def _check(what: str, pattern: str, text: object) -> str:
    if isinstance(text, str) and re.fullmatch(pattern, text):
        return text
    raise InvalidInput(f"{what} must match {pattern}, got {text!r}")


def check_run(run: str) -> str:
    """The run id; raises `InvalidInput` unless it is a plain name."""
    return _check("run id", _PLAIN, run)


def check_group_id(group_id: str) -> str:
    """The group id; raises `InvalidInput` unless it is a plain name."""
    return _check("group id", _PLAIN, group_id)


def check_consumer(consumer: str) -> str:
    """The name of a trainer process; raises `InvalidInput` unless it may be one."""
    return _check("consumer", _NODE, consumer)


def check_worker(worker: str) -> str:
    """The name of a worker process; raises `InvalidInput` unless it is a plain name."""
    return _check("worker", _PLAIN, worker)


def check_node(node: str) -> str:
    """The name of a node; raises `InvalidInput` unless it may be one."""
    return _check("node name", _NODE, node)


def unit_id(group_id: str, slot: int) -> str:
    """The unit of a slot: the group id, a dot, the slot as four hex digits."""
    return f"{group_id}.{slot:04x}"


def split_unit_id(unit: str) -> tuple[str, int]:
    """Group id and slot of a unit; raises `InvalidInput` when it is no unit id."""
    match = _UNIT.fullmatch(unit)
    if match is None:
        raise InvalidInput(f"unit id must be <group id>.<slot as four hex digits>, got {unit!r}")
    return match[1], int(match[2], 16)


def shard_of(group_id: str, shard_count: int) -> int:
    """The shard of a group: CRC-32 (IEEE) of its id modulo the number of shards."""
    return zlib.crc32(group_id.encode()) % shard_count


@dataclass(frozen=True)
class Holder:
    """Who holds work leases: a process on a boot of a node, written `node/boot id/process`.

    The node is what brings a worker's units under that node's drain: it must be the name that the
    node's agent reports.
    """

    node: str
    boot_id: str
    process: str

    def __post_init__(self) -> None:
        check_node(self.node)
        _check("boot id", _PLAIN, self.boot_id)
        _check("process", _PLAIN, self.process)

    def __str__(self) -> str:
        return f"{self.node}/{self.boot_id}/{self.process}"

    @classmethod
    def parse(cls, text: str) -> Holder:
        """Reads `node/boot id/process`; raises `InvalidInput` when it is none."""
        parts = text.split("/")
        if len(parts) != 3:
            raise InvalidInput(f"holder must be <node>/<boot id>/<process>, got {text!r}")
        return cls(*parts)

    @classmethod
    def of_worker(cls, node: str) -> Holder:
        """A new worker process on this boot of `node`.

        Raises:
            InvalidInput: no node name, or this machine does not tell its boot id (then make a
                `Holder` with a name of your own for the boot).
        """
        try:
            boot_id = _BOOT_ID_FILE.read_text().strip()
        except OSError as error:
            raise InvalidInput(
                f"boot id is not known ({error}): give Holder(node, boot_id, process)"
            ) from error
        return cls(node, boot_id, f"worker-{uuid.uuid4()}")
