"""What stands in the queue, and what has failed, for those who watch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from . import codec
from .errors import EbbtideError, ProtocolError
from .link import BRIEF_S, Link
from .work import PromptGroup

#: States of a slot, by their number on the wire.
SLOT_STATES = ("enqueued", "leased", "streaming", "completed", "dead", "expired", "cancelled")


@dataclass
class Status:
    """Counters and depths, summed over the shards that answered."""

    #: Slots ever enqueued, and how they ended.
    enqueued: int = 0
    completed: int = 0
    dead: int = 0
    expired: int = 0
    cancelled: int = 0
    groups_sealed: int = 0
    #: Groups failed, stale ones included.
    groups_failed: int = 0
    #: Units ready to be generated, and being generated.
    ready: int = 0
    leased: int = 0
    #: Responses that wait for their score, and that are being scored.
    reward_ready: int = 0
    reward_leased: int = 0
    #: Sealed groups that no trainer has taken, and that one has and did not acknowledge.
    sealed_waiting: int = 0
    sealed_taken: int = 0
    #: Records of failures that stand.
    failure_records: int = 0
    #: Leases that ran out.
    lease_expiries: int = 0
    #: Times that somebody tried to lower the policy version.
    versions_refused: int = 0
    #: Records that were out of place and have been mended.
    repaired: int = 0
    #: Stored tokens, each counted once: all; in sealed groups; continued by a later holder.
    tokens_generated: int = 0
    tokens_accepted: int = 0
    tokens_preserved: int = 0
    #: Tokens thrown away, by cause.
    tokens_wasted: Counter[str] = field(default_factory=Counter)
    #: Hand-backs by cause.
    hand_backs: Counter[str] = field(default_factory=Counter)
    #: Leased units per node.
    leased_by_node: Counter[str] = field(default_factory=Counter)
    #: The newest policy version of a shard.
    policy_version: int = 0
    #: Seconds since the oldest ready unit was enqueued; `None` when none is ready.
    oldest_ready_s: float | None = None
    #: Shards that gave no answer, with the reason; the counts are without them.
    missing_shards: dict[int, EbbtideError] = field(default_factory=dict)

    @property
    def in_system(self) -> int:
        """Slots that have not ended: enqueued = completed + dead + expired + cancelled + these."""
        return self.ready + self.leased + self.reward_ready + self.reward_leased

    @property
    def tokens_in_system(self) -> int:
        """Tokens stored, not yet sealed or thrown away."""
        return self.tokens_generated - self.tokens_accepted - self.tokens_wasted.total()


@dataclass(frozen=True)
class UnitEvent:
    """One event in the life of a unit."""

    #: When, ms on the Redis server's clock.
    at_ms: int
    #: `handed_back`, `fault`, `lease_expired`, `restarted`, `generated`, `dead`, `expired`, `stale`
    #: or `damaged`.
    what: str
    #: The cause of a hand-back, the text of a fault.
    detail: str
    #: Who held it then, or had held it last; empty before the first lease.
    holder: str
    fencing_token: int
    #: Tokens that it had.
    tokens: int


@dataclass(frozen=True)
class SlotSummary:
    """A slot at the end of its group."""

    #: One of `SLOT_STATES`.
    state: str
    tokens: int
    attempts: int
    infra_attempts: int
    hand_backs: int
    #: Who held it last; empty when nobody did.
    holder: str


@dataclass(frozen=True)
class Failure:
    """Why a group failed, or a unit died in a group that goes on without it."""

    #: Place of the record, for `failures(after=...)`.
    record_id: str
    shard: int
    group_id: str
    #: Whether the group has ended with this; otherwise only the unit is dead.
    ends_group: bool
    #: `dead`, `expired`, `stale`, `too_few_samples`, `damaged`, or the text given to `fail_group`.
    reason: str
    #: The unit that brought it about; empty when none did.
    unit: str
    #: What its last holder said of the fault.
    detail: str
    #: The life of that unit.
    history: list[UnitEvent]
    #: Every slot as it was at the end.
    slots: list[SlotSummary]
    #: The group as it was enqueued, to enqueue it under a new id; `None` when it was lost.
    group: PromptGroup | None
    #: Stored tokens that went to waste.
    tokens_wasted: int


def read_status(link: Link, shard_count: int) -> Status:
    """The sum over all shards that answer.

    Raises:
        QueueUnavailable: only when no shard answered.
    """
    return link.repeat(lambda: _read_once(link, shard_count))


def _read_once(link: Link, shard_count: int) -> Status:
    status = Status()
    for shard in range(shard_count):
        try:
            _add(status, link.on_shard(shard, "status", patience_s=BRIEF_S))
        except EbbtideError as error:
            status.missing_shards[shard] = error
    if len(status.missing_shards) == shard_count:
        raise status.missing_shards[0]
    return status


def _add(status: Status, answer: list[Any]) -> None:
    now_ms, version, ready, leased, reward_ready, reward_leased = map(int, answer[:6])
    sealed_waiting, sealed_taken, oldest_ms, failure_records = map(int, answer[6:10])
    status.policy_version = max(status.policy_version, version)
    status.ready += ready
    status.leased += leased
    status.reward_ready += reward_ready
    status.reward_leased += reward_leased
    status.sealed_waiting += sealed_waiting
    status.sealed_taken += sealed_taken
    status.failure_records += failure_records
    if oldest_ms > 0:
        age = max(0, now_ms - oldest_ms) / 1000
        status.oldest_ready_s = max(status.oldest_ready_s or 0.0, age)
    families = {
        "wasted": status.tokens_wasted,
        "hand_backs": status.hand_backs,
        "held": status.leased_by_node,
    }
    counters = answer[10]
    for name, value in zip(counters[::2], counters[1::2], strict=True):
        family, _, member = name.decode().partition(":")
        if member and family in families:
            families[family][member] += int(value)
        elif name.decode() in _COUNTERS:
            setattr(status, family, getattr(status, family) + int(value))


#: Counters of a shard that are fields of a status.
_COUNTERS = frozenset(
    (
        "enqueued", "completed", "dead", "expired", "cancelled", "groups_sealed", "groups_failed",
        "lease_expiries", "versions_refused", "repaired", "tokens_generated", "tokens_accepted",
        "tokens_preserved",
    )
)  # fmt: skip


def read_failures(link: Link, shard: int, after: str, limit: int) -> list[Failure]:
    """The records of failures on one shard after the record `after` ('' begins), oldest first.

    Raises:
        QueueUnavailable: no answer.
        ProtocolError: a record makes no sense.
    """
    entries: Iterable[Any] = link.on_shard(shard, "failures", [after, limit])
    return [_failure(shard, entry) for entry in entries]


def _failure(shard: int, entry: Any) -> Failure:
    record_id, flat = entry
    fields: Mapping[bytes, bytes] = dict(zip(flat[::2], flat[1::2], strict=True))

    def text(name: str) -> str:
        return fields.get(name.encode(), b"").decode(errors="replace")

    history, spec = fields.get(b"history", b""), fields.get(b"spec", b"")
    try:
        slots = codec.decode_array("slots of a failure", fields[b"slots"])
        return Failure(
            record_id=record_id.decode(),
            shard=shard,
            group_id=text("group"),
            ends_group=text("ends_group") == "1",
            reason=text("reason"),
            unit=text("unit"),
            detail=text("detail"),
            history=[UnitEvent(*event) for event in codec.decode_array("history", history)]
            if history
            else [],
            slots=[SlotSummary(SLOT_STATES[slot[0]], *slot[1:]) for slot in slots],
            group=_group(spec),
            tokens_wasted=int(text("wasted") or 0),
        )
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ProtocolError(f"record {record_id!r} of a failure: {error}") from error


def _group(spec: bytes) -> PromptGroup | None:
    try:
        return codec.decode_group(spec)
    except ProtocolError:
        return None
