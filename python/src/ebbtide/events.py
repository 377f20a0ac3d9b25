"""What the node's agent tells a worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .errors import ProtocolError

#: Unit and fencing token.
Key = tuple[str, int]


@dataclass(frozen=True)
class NodeNotice:
    """Something happens to the node."""

    #: `spot_terminate`, `spot_stop`, `spot_hibernate`, `asg_termination`, `rebalance`, or `None`
    #: when no notice of this node is behind it.
    kind: str | None
    #: Why the node is drained, in a word; `rebalance` or `shutdown` when it is not.
    reason: str
    #: When it must be empty, Unix ms on the node's clock, if that is known.
    deadline_ms: int | None
    #: Time left until then, in seconds.
    remaining_s: float | None


@dataclass(frozen=True)
class Release:
    """These units must be handed back in time; then the agent does it, as they are stored."""

    units: frozenset[Key]
    reason: str
    remaining_s: float


@dataclass(frozen=True)
class Keep:
    """These units are expected to finish in time, and may go on. A `Release` may still follow."""

    units: frozenset[Key]
    remaining_s: float


@dataclass(frozen=True)
class Reopened:
    """Work is leased again."""


@dataclass(frozen=True)
class NodeState:
    """Everything that stands, when a stream begins; the events that say it follow."""

    #: Whether work is leased.
    is_open: bool
    #: Why not: `starting`, `drain`, `rebalance`, `shutdown`.
    closed_for: tuple[str, ...]
    notice: NodeNotice | None
    #: The units that this worker may still write to: any other is lost.
    units: frozenset[Key]


NodeEvent = NodeState | NodeNotice | Release | Keep | Reopened


def read_event(name: str, data: Any) -> NodeEvent:
    """The event, from its name and its data."""
    if name == "state":
        notice = data["notice"]
        return NodeState(
            is_open=data["gate"] == "open",
            closed_for=tuple(data["closed_for"]),
            notice=None if notice is None else _notice(notice),
            units=_keys(data["units"]),
        )
    if name == "notice":
        return _notice(data)
    if name == "release":
        return Release(_keys(data["units"]), data["reason"], data["remaining_ms"] / 1000)
    if name == "keep":
        return Keep(_keys(data["units"]), data["remaining_ms"] / 1000)
    if name == "reopened":
        return Reopened()
    raise ProtocolError(f"the agent told {name!r}, which this version does not know")


def _notice(data: Any) -> NodeNotice:
    remaining_ms = data["remaining_ms"]
    remaining_s = None if remaining_ms is None else remaining_ms / 1000
    return NodeNotice(data["kind"], data["reason"], data["deadline_ms"], remaining_s)


def _keys(units: Any) -> frozenset[Key]:
    return frozenset((unit["unit"], unit["fencing_token"]) for unit in units)
