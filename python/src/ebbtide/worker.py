"""The side of those who work on units: lease, renew, write, give back."""

from __future__ import annotations

import itertools
import random
import threading
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from . import _checks as checks
from . import codec
from .errors import EbbtideError, InvalidInput, ProtocolError
from .layout import Layout
from .link import BRIEF_S, Link
from .names import NUMBER_LIMIT, Holder, shard_of, split_unit_id
from .samples import Chunk, Finish, Response, Score
from .stored import Stored, read_responses
from .wakes import Wakes
from .work import PromptGroup
from .writes import Answer, Write, WriteReply, batches, read_reply

#: Units that one call names.
_CALL_LIMIT = 1000
#: Pages of the ready queue that one call reads from a shard whose head it may not take.
_LEASE_PAGES_LIMIT = 10
#: Values that make a grant in the answer of EXCHANGE.
_GRANT_VALUES = 6


class Stage(str, Enum):
    """What is done with a unit."""

    GENERATE = "generate"
    REWARD = "reward"

    @property
    def number(self) -> int:
        """Its number on the wire."""
        return 0 if self is Stage.GENERATE else 1


class Waiting(Enum):
    """What suspends a unit's progress limit."""

    #: Tokens are expected.
    NOTHING = 0
    #: Its environment (a tool, a simulator) works.
    ENVIRONMENT = 1
    #: Its engine is paused while weights are loaded.
    ENGINE_PAUSE = 2


@dataclass(frozen=True, kw_only=True)
class ProgressLimits:
    """How long a leased unit may go without a token, in seconds; beyond, it goes to another holder
    and that counts as an attempt. Those of the fleet policy unless there is a reason."""

    #: Without a declared wait.
    idle_s: float = 60.0
    #: While its environment works; and always for scoring, which makes no tokens.
    environment_s: float = 600.0
    #: While its engine is paused.
    engine_pause_s: float = 300.0

    def __post_init__(self) -> None:
        for name in ("idle_s", "environment_s", "engine_pause_s"):
            checks.seconds_as_ms(f"limits.{name}", getattr(self, name))

    @property
    def in_ms(self) -> list[int]:
        """In the order of the wire."""
        all_s = (self.idle_s, self.environment_s, self.engine_pause_s)
        return [round(limit * 1000) for limit in all_s]


@dataclass(frozen=True)
class Grant:
    """One leased unit."""

    #: The unit, `group_id.slot`.
    unit: str
    #: The token to write with.
    fencing_token: int
    stage: Stage
    #: The group that it belongs to.
    group: PromptGroup
    #: Tokens that earlier holders stored, to go on from; the whole response to a scorer.
    response: Response
    #: How the response ended; only a scorer is told.
    finish: Finish | None
    #: Faults in this stage so far.
    attempts: int

    @property
    def slot(self) -> int:
        """Its place in the group."""
        return split_unit_id(self.unit)[1]

    @property
    def seed(self) -> int | None:
        """The seed of this sample; siblings differ."""
        return self.group.sampling.seed_of(self.slot)

    @property
    def tokens_left(self) -> int:
        """Response tokens that may still be made; with 0, complete it with finish `length`."""
        return self.group.sampling.max_tokens - len(self.response)


@dataclass
class Leased:
    """What one lease brought."""

    grants: list[Grant] = field(default_factory=list)
    #: The newest policy version that a shard answered with.
    policy_version: int = 0
    #: Shards that gave no answer, with the reason.
    missing_shards: dict[int, EbbtideError] = field(default_factory=dict)


@dataclass
class _Place:
    """How far leasing on one shard is."""

    #: The id of a LEASE that has not been answered. The next one bears it too, so that what it
    #: granted is learnt and does not lie idle until it expires.
    unanswered: str | None = None
    #: Where the next LEASE begins: behind units that this worker may not take.
    start_at: str = "0"


class Worker:
    """What a holder of leases does with the queue; made by `Queue.worker`.

    Threads may share it; their leases wait for one another.
    """

    def __init__(
        self, link: Link, layout: Layout, holder: Holder, lease_ms: int, limits: ProgressLimits
    ) -> None:
        self._link = link
        self._layout = layout
        #: Under which name it holds.
        self.holder = holder
        self._lease_ms = lease_ms
        self._limits = limits
        self._places: dict[tuple[int, Stage], _Place] = {}
        self._names = map(f"{uuid.uuid4().hex}-{{}}".format, itertools.count())
        self._turns = itertools.count(random.randrange(layout.shards))
        self._leasing = threading.Lock()

    def lease(self, limit: int, *, weight_version: int, wait_s: float = 0.0) -> Leased:
        """Leases up to `limit` units to generate: resumed before fresh, then priority, then age.

        Units come with the tokens that they have; tokens are appended behind those. What is leased
        must be renewed within the lease time.

        Args:
            limit: 1 to 1000. More may come when the reply to an earlier call was lost.
            weight_version: the policy version of the weights that this worker serves; units for
                which they are too old, or too new, are left to others.
            wait_s: how long to wait for a first unit, in seconds.

        Raises:
            InvalidInput: an argument is out of its range.
            QueueUnavailable: only when no shard answered; what was granted is learnt by the next
                call.
        """
        checks.whole("weight_version", weight_version, 0, NUMBER_LIMIT - 1)
        return self._lease(Stage.GENERATE, limit, weight_version, wait_s)

    def lease_to_score(self, limit: int, *, wait_s: float = 0.0) -> Leased:
        """Leases up to `limit` responses to score; as `lease` in all else."""
        return self._lease(Stage.REWARD, limit, 0, wait_s)

    def renew(
        self,
        grants: Iterable[Grant],
        *,
        waiting: Waiting = Waiting.NOTHING,
        lease_s: float | None = None,
    ) -> list[str]:
        """Moves the ends of leases to `lease_s` from now.

        Args:
            grants: what is still held.
            waiting: what these units wait for, if they make no tokens.
            lease_s: in seconds; `None` (default) is the worker's lease time. Never past the
                deadline of a drain.

        Returns:
            Units whose lease is lost, by another holder or for want of progress: break them off,
            their writes would be fenced.

        Raises:
            QueueUnavailable: a shard gave no answer; those of other shards are renewed.
        """
        lease_ms = self._lease_ms
        if lease_s is not None:
            lease_ms = checks.seconds_as_ms("lease_s", lease_s)
        by_shard: dict[int, list[Grant]] = {}
        for grant in grants:
            by_shard.setdefault(self._shard_of(grant.unit), []).append(grant)
        lost: list[str] = []
        failure: EbbtideError | None = None
        for shard, held in sorted(by_shard.items()):
            for start in range(0, len(held), _CALL_LIMIT):
                args: list[Any] = [str(self.holder), *self._limits.in_ms]
                for grant in held[start : start + _CALL_LIMIT]:
                    args += [grant.unit, grant.fencing_token, lease_ms, waiting.value]
                try:
                    answer = self._link.on_shard(shard, "renew", args)
                    lost += [unit.decode() for unit in answer]
                except EbbtideError as error:
                    failure = failure or error
        if failure is not None:
            raise failure
        return lost

    def append(self, grant: Grant, chunks: Sequence[Chunk]) -> WriteReply:
        """Stores tokens; the unit stays leased. One `Write.append` of `write`."""
        return self.write([Write.append(grant, chunks)])[0]

    def complete(self, grant: Grant, finish: Finish, tail: Sequence[Chunk] = ()) -> WriteReply:
        """Ends a generation, with its last tokens. One `Write.complete` of `write`."""
        return self.write([Write.complete(grant, finish, tail)])[0]

    def score(self, grant: Grant, score: Score) -> WriteReply:
        """Scores a response. One `Write.score` of `write`."""
        return self.write([Write.score(grant, score)])[0]

    def hand_back(
        self, grant: Grant, cause: str = "drain", tail: Sequence[Chunk] = ()
    ) -> WriteReply:
        """Gives a unit back with its tokens; never an attempt. One `Write.hand_back` of `write`."""
        return self.write([Write.hand_back(grant, cause, tail)])[0]

    def fault(self, grant: Grant, reason: str, tail: Sequence[Chunk] = ()) -> WriteReply:
        """Gives a unit back because of a fault, which counts as an attempt. One `Write.fault`."""
        return self.write([Write.fault(grant, reason, tail)])[0]

    def write(self, writes: Sequence[Write]) -> list[WriteReply]:
        """Writes to leased units, in as few calls as 1,000 units and 4 MiB a call allow.

        Nothing is raised for a single unit: each has its reply, in the order given, also when its
        shard gave no answer (`Answer.UNANSWERED`: send the same write again).
        """
        replies: dict[int, WriteReply] = {}
        for shard, of_shard in self._by_shard(writes).items():
            for batch in batches(of_shard):
                answers = self._write_batch(shard, [write for _, write in batch])
                replies.update(zip((place for place, _ in batch), answers, strict=True))
        if any(write.verb != "CONTINUE" for write in writes):
            self._link.wake()
        return [replies[place] for place in range(len(writes))]

    def exchange(
        self,
        writes: Sequence[Write],
        limit: int,
        *,
        weight_version: int = 0,
        stage: Stage = Stage.GENERATE,
    ) -> tuple[list[WriteReply], Leased]:
        """Writes, and leases up to `limit` units: in one round trip for each shard that is written
        to; if that brings fewer, the other shards are asked too.

        Args:
            writes: as for `write`.
            limit: 0 to 1000.
            weight_version: as for `lease`; of no account to a scorer.
            stage: what is leased.

        Raises:
            InvalidInput: an argument is out of its range; nothing was sent.
        """
        checks.whole("limit", limit, 0, _CALL_LIMIT)
        checks.whole("weight_version", weight_version, 0, NUMBER_LIMIT - 1)
        stage = checks.word("stage", Stage, stage)
        replies: dict[int, WriteReply] = {}
        leased = Leased()
        with self._leasing:
            for shard, of_shard in self._by_shard(writes).items():
                *first, last = batches(of_shard)
                for batch in first:
                    answers = self._write_batch(shard, [write for _, write in batch])
                    replies.update(zip((place for place, _ in batch), answers, strict=True))
                room = min(limit - len(leased.grants), len(last))
                answers, _ = self._exchange_batch(
                    shard, [write for _, write in last], stage, room, weight_version, leased
                )
                replies.update(zip((place for place, _ in last), answers, strict=True))
            if len(leased.grants) < limit:
                self._lease_in_turn(stage, limit, weight_version, leased)
        if any(write.verb != "CONTINUE" for write in writes):
            self._link.wake()
        return [replies[place] for place in range(len(writes))], leased

    # Leasing.

    def _lease(self, stage: Stage, limit: int, weight_version: int, wait_s: float) -> Leased:
        checks.whole("limit", limit, 1, _CALL_LIMIT)
        wait_ms = checks.seconds_as_ms("wait_s", wait_s)
        leased = self._lease_now(stage, limit, weight_version)
        if not leased.grants and wait_ms > 0:
            with Wakes(self._link, wait_ms / 1000) as wakes:
                while not leased.grants and wakes.wait():
                    leased = self._lease_now(stage, limit, weight_version)
        return leased

    def _lease_now(self, stage: Stage, limit: int, weight_version: int) -> Leased:
        def lease() -> Leased:
            leased = Leased()
            self._lease_in_turn(stage, limit, weight_version, leased)
            if not leased.grants and len(leased.missing_shards) == self._layout.shards:
                raise next(iter(leased.missing_shards.values()))
            return leased

        with self._leasing:
            return self._link.repeat(lease)

    def _lease_in_turn(self, stage: Stage, limit: int, weight_version: int, leased: Leased) -> None:
        """Asks shards, beginning with another one each time, until there are `limit` grants."""
        count = self._layout.shards
        first = next(self._turns) % count
        for shard in ((first + turn) % count for turn in range(count)):
            for _ in range(_LEASE_PAGES_LIMIT):
                room = limit - len(leased.grants)
                if room <= 0:
                    return
                _, has_more = self._exchange_batch(shard, [], stage, room, weight_version, leased)
                if not has_more:
                    break

    def _exchange_batch(
        self,
        shard: int,
        writes: Sequence[Write],
        stage: Stage,
        limit: int,
        weight_version: int,
        leased: Leased,
    ) -> tuple[list[WriteReply], bool]:
        """One EXCHANGE; adds what it grants to `leased`.

        Gives the replies to the writes, and whether more may be found further back in the queue.
        """
        place = self._place(shard, stage)
        if place.unanswered is None:
            place.unanswered = next(self._names)
        allow_fresh = not self._link.is_memory_short(shard)
        args: list[Any] = [
            str(self.holder), place.unanswered, stage.number, limit, self._lease_ms,
            weight_version, place.start_at, int(allow_fresh), len(writes),
        ]  # fmt: skip
        for write in writes:
            args += write.arguments
        must_last = any(write.verb != "CONTINUE" for write in writes)
        try:
            values = self._link.on_shard(
                shard, "exchange", args, must_last=must_last, patience_s=BRIEF_S
            )
            answers = self._answers(writes, values[: len(writes)])
        except EbbtideError as error:
            leased.missing_shards[shard] = error
            return [WriteReply(Answer.UNANSWERED, error=error) for _ in writes], False
        version, resume_at, count, *values = values[len(writes) :]
        starts = range(0, count * _GRANT_VALUES, _GRANT_VALUES)
        grants = [values[at : at + _GRANT_VALUES] for at in starts]
        specs = values[count * _GRANT_VALUES :]
        place.unanswered, place.start_at = None, resume_at.decode()
        leased.policy_version = max(leased.policy_version, int(version))
        try:
            leased.grants += self._grants(shard, stage, grants, specs)
        except EbbtideError as error:
            leased.missing_shards[shard] = error
        return answers, place.start_at != "0"

    def _grants(
        self, shard: int, stage: Stage, grants: list[Any], specs: list[bytes]
    ) -> Iterator[Grant]:
        groups = {
            id.decode(): codec.decode_group(spec)
            for id, spec in zip(specs[::2], specs[1::2], strict=True)
        }
        units = [Stored(grant[0].decode(), grant[2], grant[3]) for grant in grants]
        responses = read_responses(self._link, shard, units)
        for stored, response, grant in zip(units, responses, grants, strict=True):
            if response is None:
                continue
            group_id, _ = split_unit_id(stored.unit)
            if group_id not in groups:
                raise ProtocolError(f"no spec for the group of {stored.unit}")
            _, token, _, _, attempts, finish = grant
            yield Grant(
                unit=stored.unit,
                fencing_token=token,
                stage=stage,
                group=groups[group_id],
                response=response,
                finish=codec.decode_finish(finish) if finish else None,
                attempts=attempts,
            )

    def _place(self, shard: int, stage: Stage) -> _Place:
        return self._places.setdefault((shard, stage), _Place())

    # Writing.

    def _write_batch(self, shard: int, writes: Sequence[Write]) -> list[WriteReply]:
        args: list[Any] = [str(self.holder), "", 0, 0, 0, 0, 0, 0, len(writes)]
        for write in writes:
            args += write.arguments
        must_last = any(write.verb != "CONTINUE" for write in writes)
        try:
            replies = self._link.on_shard(shard, "exchange", args, must_last=must_last)
            return self._answers(writes, replies)
        except EbbtideError as error:
            return [WriteReply(Answer.UNANSWERED, error=error) for _ in writes]

    def _answers(self, writes: Sequence[Write], replies: list[Any]) -> list[WriteReply]:
        if len(replies) != len(writes):
            raise ProtocolError(f"{len(writes)} writes got {len(replies)} replies")
        return [read_reply(reply) for reply in replies]

    def _by_shard(self, writes: Sequence[Write]) -> dict[int, list[tuple[int, Write]]]:
        by_shard: dict[int, list[tuple[int, Write]]] = {}
        for place, write in enumerate(writes):
            if not isinstance(write, Write):
                raise InvalidInput(f"writes must be Write, got {write!r}")
            by_shard.setdefault(self._shard_of(write.unit), []).append((place, write))
        return dict(sorted(by_shard.items()))

    def _shard_of(self, unit: str) -> int:
        return shard_of(split_unit_id(unit)[0], self._layout.shards)
