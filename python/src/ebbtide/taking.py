"""Taking sealed groups: a consumer's own unacknowledged ones first, over all shards."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import redis

from . import codec
from .errors import ProtocolError, QueueUnavailable
from .link import BRIEF_S, Link
from .names import unit_id
from .samples import Sample, SealedGroup
from .status import SLOT_STATES
from .stored import Stored, read_responses
from .wakes import Wakes

_COMPLETED = "completed"


class Taker:
    """Takes groups for one consumer."""

    def __init__(self, link: Link, shard_count: int, consumer: str) -> None:
        self._link = link
        self._shard_count = shard_count
        self._consumer = consumer
        #: Chooses the shard that comes first: another one at each call.
        self._turns = itertools.count(random.randrange(shard_count))

    def next_batch(self, limit: int, wait_s: float) -> list[SealedGroup]:
        """Up to `limit` groups, waiting for that many at most `wait_s` seconds.

        Raises:
            QueueUnavailable: only when no shard answered.
            ProtocolError: tokens of a group are lost or damaged.
        """
        batch = self._link.repeat(partial(self._take, limit, []))
        if len(batch) < limit and wait_s > 0:
            with Wakes(self._link, wait_s) as wakes:
                while len(batch) < limit and wakes.wait():
                    batch = self._link.repeat(partial(self._take, limit, batch))
        return batch

    def _take(self, limit: int, known: list[SealedGroup]) -> list[SealedGroup]:
        """One look at every shard that is needed; tokens of `known` groups are not read again."""
        have = {group.group_id: group for group in known}
        first = next(self._turns) % self._shard_count
        shards = [(first + turn) % self._shard_count for turn in range(self._shard_count)]
        taken: dict[int, list[SealedGroup]] = {shard: [] for shard in shards}
        failures: dict[int, QueueUnavailable] = {}
        # First what is this consumer's on any shard, then what is free.
        for takes_free in (False, True):
            for shard in shards:
                room = limit - sum(map(len, taken.values()))
                if room <= 0 or shard in failures:
                    continue
                try:
                    own = len(taken[shard]) if takes_free else self._count_own(shard, room)
                    wanted = own + room if takes_free else own
                    if wanted > 0:
                        taken[shard] = self._take_from(shard, wanted, have)
                except QueueUnavailable as error:
                    failures[shard] = error
        if len(failures) == len(shards):
            raise failures[first]
        batch = [group for groups in taken.values() for group in groups]
        return sorted(batch, key=lambda group: not group.is_redelivered)

    def _count_own(self, shard: int, limit: int) -> int:
        """How many unacknowledged groups this consumer has on a shard; more than `limit` do not
        count."""
        key = self._link.shard_key(shard, "out")
        try:
            args = (key, "trainers", "-", "+", limit, self._consumer)
            pending = self._link.command("XPENDING", *args, parse_detail=True, patience_s=BRIEF_S)
            return len(pending)
        except ProtocolError as error:
            # Nobody has ever taken anything.
            if isinstance(error.__cause__, redis.ResponseError) and "NOGROUP" in str(error):
                return 0
            raise

    def _take_from(self, shard: int, limit: int, have: dict[str, SealedGroup]) -> list[SealedGroup]:
        args = [self._consumer, limit]
        version, groups = self._link.on_shard(shard, "take", args, patience_s=BRIEF_S)
        return list(self._sealed(shard, int(version), groups, have))

    def _sealed(
        self, shard: int, version: int, groups: list[Any], have: dict[str, SealedGroup]
    ) -> Iterator[SealedGroup]:
        for is_redelivered, id, spec, slots in groups:
            group_id = id.decode()
            group = have.get(group_id)
            if group is None:
                group = self._read(shard, version, bool(is_redelivered), spec, slots)
            elif group.taken_at_version != version:
                group = _at_version(group, version)
            if group is not None:
                have[group_id] = group
                yield group

    def _read(
        self, shard: int, version: int, is_redelivered: bool, spec: bytes, slots: list[Any]
    ) -> SealedGroup | None:
        """The group with its tokens; `None` when it has ended since, in another process's hands."""
        group = codec.decode_group(spec)
        units = [unit_id(group.group_id, slot) for slot in range(len(slots))]
        complete = {
            unit: slot
            for unit, slot in zip(units, slots, strict=True)
            if SLOT_STATES[slot[0]] == _COMPLETED
        }
        stored = [Stored(unit, slot[1], slot[2]) for unit, slot in complete.items()]
        samples = []
        responses = read_responses(self._link, shard, stored)
        for (unit, slot), response in zip(complete.items(), responses, strict=True):
            if response is None:
                return None
            _, _, _, finish, score, attempts, infra_attempts, hand_backs = slot
            mask = response.loss_mask(group.resume_policy, version, group.max_lag)
            samples.append(
                Sample(
                    unit=unit,
                    response=response,
                    loss_mask=mask,
                    finish=codec.decode_finish(finish),
                    score=codec.decode_score(score) if score else None,
                    attempts=attempts,
                    infra_attempts=infra_attempts,
                    hand_backs=hand_backs,
                )
            )
        missing = [slot for slot, unit in enumerate(units) if unit not in complete]
        return SealedGroup(group, samples, missing, is_redelivered, version)


def _at_version(group: SealedGroup, version: int) -> SealedGroup:
    """The same group, as it is once the policy version has risen."""
    terms = group.group
    samples = [
        replace(
            sample,
            loss_mask=sample.response.loss_mask(terms.resume_policy, version, terms.max_lag),
        )
        for sample in group.samples
    ]
    return replace(group, samples=samples, taken_at_version=version)
