"""Checks at start: is this Redis fit for a queue, and how is the run laid out.

The Rust client makes the same checks (`queue/src/redis/setup.rs`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, cast

from . import _checks as checks
from .errors import InvalidInput, ProtocolError, QueueUnavailable, QueueUnsuitable
from .link import Link

#: Version of the key layout and functions.
LAYOUT_SCHEMA = "3"
#: How long an ended group is remembered unless somebody says otherwise: 24 h.
DEDUP_WINDOW_DEFAULT_MS = 24 * 3600 * 1000
#: Oldest server: function libraries came with 7.0.
_OLDEST_MAJOR_VERSION = 7
_STAGES = (("generate",), ("generate", "reward"))


class Durability(str, Enum):
    """What an acknowledged write must survive."""

    #: What Redis does by itself.
    FAST = "fast"
    #: The loss of the server: a replica has the write, or the disk where there is no replica.
    SAFE = "safe"


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How a run is laid out; all its clients must agree.

    Raises:
        InvalidInput: a field is out of its range.
    """

    #: Number of shards, 1 to 65535; a run keeps it.
    shards: int = 1
    #: `("generate",)`, or `("generate", "reward")` when every sample is scored.
    stages: Sequence[str] = ("generate",)
    #: How long an ended group is remembered, in seconds; the last client that says so is followed.
    #: `None` (default) says nothing: what stands, or 24 h.
    dedup_window_s: float | None = None

    def __post_init__(self) -> None:
        checks.whole("layout.shards", self.shards, 1, (1 << 16) - 1)
        if tuple(self.stages) not in _STAGES:
            raise InvalidInput(
                "layout.stages must be ('generate',) or ('generate', 'reward'), got "
                f"{self.stages!r}"
            )
        object.__setattr__(self, "stages", tuple(self.stages))
        if self.dedup_window_s is not None:
            checks.seconds_as_ms("layout.dedup_window_s", self.dedup_window_s)


def check_servers(link: Link, durability: Durability) -> None:
    """Checks every server that holds a part of the run, and says whether writes wait for replicas.

    Raises:
        QueueUnsuitable: it must be set up differently; the message says how.
        QueueUnavailable: no answer, or it is loading its data.
    """
    servers = list(_servers(link))
    has_replica = []
    for name, options in servers:
        info = cast(dict[str, Any], link.command("INFO", **options))
        _check_server(name, info, link)
        has_replica.append(int(info.get("connected_slaves", 0)) > 0)
    if durability is Durability.SAFE:
        link.waits_for_replica = all(has_replica)
        if not link.waits_for_replica:
            for name, options in servers:
                _check_disk(name, link, options)


def _servers(link: Link) -> Iterator[tuple[str, dict[str, Any]]]:
    if not link.connection.is_cluster:
        yield link.name, {}
        return
    for node in cast(Any, link.connection.client).get_primaries():
        yield f"redis {node.name}", {"target_nodes": node}


def _check_server(name: str, info: dict[str, Any], link: Link) -> None:
    version = str(info.get("redis_version", ""))
    major = version.split(".")[0]
    if not major.isdecimal() or int(major) < _OLDEST_MAJOR_VERSION:
        raise QueueUnsuitable(f"{name} must be Redis 7.0 or newer, got {version!r}")
    if int(info.get("loading", 0)) == 1:
        raise QueueUnavailable(f"{name} is loading its data; retrying helps once it is done")
    eviction = info.get("maxmemory_policy", "")
    if eviction != "noeviction" and int(info.get("maxmemory", 0)) > 0:
        raise QueueUnsuitable(
            f"{name} must not evict keys, or work is lost in silence: maxmemory-policy must be "
            f"noeviction, got {eviction}; change it with CONFIG SET or in the parameter group"
        )
    if info.get("role", "master") != "master":
        raise QueueUnsuitable(f"{name} is a replica: give the address of its master")
    if int(info.get("cluster_enabled", 0)) == 1 and not link.connection.is_cluster:
        raise QueueUnsuitable(f"{name} runs in cluster mode: begin its address with redis+cluster")


def _check_disk(name: str, link: Link, options: dict[str, Any]) -> None:
    """Safe mode without replicas needs every write on disk before it is acknowledged."""
    for setting, wanted in (("appendonly", "yes"), ("appendfsync", "always")):
        answer = link.command("CONFIG GET", setting, **options)
        got = _text(answer.get(setting, answer.get(setting.encode(), "")))
        if got != wanted:
            raise QueueUnsuitable(
                f"durability safe without a replica needs {setting} {wanted} on {name}, got "
                f"{got}; set it, add a replica, or use durability fast"
            )


def agree_on_layout(link: Link, create: Layout | None) -> Layout:
    """Writes the run's layout when this is its first client, else checks it; gives what holds.

    Raises:
        QueueUnavailable: nobody has started the run, and `create` is `None`; or no answer.
        QueueUnsuitable: the run is laid out differently.
    """
    meta = link.control_key("meta")
    if create is not None:
        link.command("HSETNX", meta, "schema", LAYOUT_SCHEMA)
        link.command("HSETNX", meta, "shards", create.shards)
        link.command("HSETNX", meta, "stages", len(create.stages))
        if create.dedup_window_s is None:
            link.command("HSETNX", meta, "dedup_window_ms", DEDUP_WINDOW_DEFAULT_MS)
        else:
            window_ms = checks.seconds_as_ms("layout.dedup_window_s", create.dedup_window_s)
            link.command("HSET", meta, "dedup_window_ms", window_ms)
    fields = ("schema", "shards", "stages", "dedup_window_ms")
    schema, shards, stages, window = link.command("HMGET", meta, *fields)
    if schema is None or shards is None:
        raise QueueUnavailable(
            f"run {link.run} on {link.name} was not started by anybody yet; start its controller, "
            "an agent or the demo first, or connect with create=Layout(...)"
        )
    if _text(schema) != LAYOUT_SCHEMA:
        raise QueueUnsuitable(
            f"run {link.run} on {link.name} has layout {_text(schema)}, this version speaks "
            f"{LAYOUT_SCHEMA}; use the version that began the run, or a new run name"
        )
    try:
        stands = Layout(
            shards=int(shards),
            stages=_STAGES[{1: 0, 2: 1}[int(stages or 1)]],
            dedup_window_s=int(window or DEDUP_WINDOW_DEFAULT_MS) / 1000,
        )
    except (ValueError, KeyError) as error:
        raise ProtocolError(f"layout of run {link.run} in {meta}: {error}") from error
    if create is not None:
        _check_layout(stands, create, f"run {link.run} on {link.name}")
    return stands


def _check_layout(stands: Layout, wanted: Layout, run: str) -> None:
    for what, keeps, got in (
        ("shards", stands.shards, wanted.shards),
        ("stages", list(stands.stages), list(wanted.stages)),
    ):
        if keeps != got:
            raise QueueUnsuitable(
                f"{run} has {what} {keeps}, Layout says {got}; a run keeps its {what}: connect "
                f"with {keeps}, with create=None, or use a new run name"
            )


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
