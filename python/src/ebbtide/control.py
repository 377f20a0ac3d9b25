"""Where trainer, agents and controller meet: flat hashes under the control keys of a run.

Moments are the Redis server's. A record whose heartbeat is old is *unknown*, not gone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from .link import Link


class TrainerPhase(str, Enum):
    """What the trainer does."""

    #: It updates the policy.
    TRAIN = "train"
    #: It spreads new weights.
    SYNC = "sync"
    #: It waits for sealed groups.
    WAIT = "wait"
    #: It writes a checkpoint.
    CHECKPOINT = "checkpoint"
    #: The run has ended.
    DONE = "done"


@dataclass(frozen=True)
class Engine:
    """An engine that the trainer may push weights to."""

    #: The replica that it serves, and its number there, from 0.
    replica: str
    index: int
    #: Base URL.
    address: str
    #: `vllm` or `sglang`.
    kind: str
    #: Its weights; `None` when its label is no policy version.
    weights_version: int | None
    #: `ready`, or why not.
    state: str
    #: Seconds since its agent reported, by the Redis server's clock.
    reported_s_ago: float


@dataclass(frozen=True)
class PolicyVersion:
    """The policy version that is published; 0 before the first."""

    version: int
    #: Where the weights are; empty when the trainer pushes them.
    uri: str
    #: SHA-256 of the weights as hex; empty without a `uri`.
    sha256: str


@dataclass(frozen=True)
class Drain:
    """A node is to be emptied: its workers lease nothing, and give back what they hold."""

    #: Names the request; another one is another drain.
    request_id: str
    #: Why, in a word: `notice`, `scale_in`, `operator`, …
    reason: str
    #: Seconds until the node must be empty, by the Redis server's clock; 0 when that has passed.
    remaining_s: float


@dataclass(frozen=True)
class Resize:
    """The controller asks the trainer to change its size at a safe point; at the size that it has,
    to name the nodes of its pool that it does not run on."""

    #: Nodes that the trainer shall run on.
    size: int
    #: Names the request; a newer one is larger.
    generation: int


@dataclass(frozen=True)
class Records:
    """Control records, all read at one moment."""

    #: The server's clock, in ms.
    now_ms: int
    #: The fields of each record; empty for one that does not exist.
    fields: list[dict[str, str]]


def read(link: Link, names: Sequence[str]) -> Records:
    """Reads records by their names, such as `trainer`.

    Raises:
        QueueUnavailable: no answer.
    """
    keys = [link.control_key(name) for name in names]
    now_ms, records = link.call("control_read", keys, [])
    return Records(int(now_ms), [_fields(record) for record in records])


def put(
    link: Link,
    name: str,
    mode: str,
    fields: Mapping[str, Any],
    *,
    stamp: str = "heartbeat",
    index: str = "",
) -> bool:
    """Writes a record of which there is one; `stamp` is the field that gets the server's time.

    Mode `merge` keeps other fields; `raise` changes nothing unless the field `version` rises, and
    answers whether it did.

    Raises:
        QueueUnavailable: no answer.
    """
    keys = [link.control_key(name), link.control_key(index or f"{name}s")]
    args: list[Any] = ["", mode, stamp]
    for field, value in fields.items():
        args += [field, str(value)]
    return bool(link.call("control_put", keys, args) != 0)


def confirm_resize(
    link: Link, resize: Resize, released: Sequence[str], incarnation: str
) -> bool:
    """Says that a request for another size may be carried out, by a trainer that has left these
    nodes; `False` when it is not the one that holds, or another trainer reports.

    Raises:
        QueueUnavailable: no answer.
    """
    keys = [link.control_key("trainer"), link.control_key("generation")]
    args = ["CONFIRM", resize.size, resize.generation, ",".join(released), incarnation]
    fields = _fields(link.call("control_resize", keys, args))
    holds = (number(fields, "resize_generation"), number(fields, "confirmed_generation"))
    is_taken = holds == (resize.generation, resize.generation)
    return is_taken and fields.get("resize_confirmed_by") == incarnation


def read_engines(link: Link) -> list[Engine]:
    """Every engine on record, by replica and number; records that make no sense are left out.

    Raises:
        QueueUnavailable: no answer.
    """
    members = link.command("SMEMBERS", link.control_key("engines"))
    names = sorted(f"engine:{_text(member)}" for member in members)
    if not names:
        return []
    records = read(link, names)
    return [
        engine
        for fields in records.fields
        if (engine := _engine(fields, records.now_ms)) is not None
    ]


def _engine(fields: Mapping[str, str], now_ms: int) -> Engine | None:
    try:
        version = fields.get("weights_version", "")
        return Engine(
            replica=fields["replica"],
            index=int(fields["index"]),
            address=fields["address"],
            kind=fields["kind"],
            weights_version=int(version) if version else None,
            state=fields["state"],
            reported_s_ago=max(0, now_ms - int(fields["heartbeat"])) / 1000,
        )
    except (KeyError, ValueError):
        return None


def read_drain(link: Link, node: str) -> Drain | None:
    """The drain that a node is under, if it is: that of the replica it is part of.

    Raises:
        QueueUnavailable: no answer.
    """
    records = read(link, [f"node:{node}", f"drain:{node}"])
    of_node, fields = records.fields
    replica = of_node.get("replica", node)
    if replica != node:
        records = read(link, [f"drain:{replica}"])
        fields = records.fields[0]
    if not fields or fields.get("state") == "cancelled":
        return None
    return Drain(
        request_id=fields.get("request_id", ""),
        reason=fields.get("reason", ""),
        remaining_s=max(0, number(fields, "deadline") - records.now_ms) / 1000,
    )


def read_policy_version(link: Link) -> PolicyVersion:
    """The published policy version.

    Raises:
        QueueUnavailable: no answer.
    """
    fields = read(link, ["version"]).fields[0]
    version = number(fields, "version")
    return PolicyVersion(version, fields.get("uri", ""), fields.get("sha256", ""))


def number(fields: Mapping[str, str], name: str) -> int:
    """A number of a record; 0 where there is none."""
    text = fields.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() else 0


def _fields(flat: Sequence[Any]) -> dict[str, str]:
    texts = [_text(value) for value in flat]
    return dict(zip(texts[::2], texts[1::2], strict=True))


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
