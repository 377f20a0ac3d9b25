"""The trainer's side: prompt groups in, sealed groups out, policy versions, and its own state."""

from __future__ import annotations

import re
import secrets
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from . import _checks as checks
from . import codec, control, status
from .control import Engine, Resize, TrainerPhase
from .errors import (
    EbbtideError,
    InvalidInput,
    PolicyVersionRefused,
    ProtocolError,
    QueueBusy,
    ResizeRefused,
)
from .layout import Layout
from .link import CONTROL_HINT, Link
from .names import NUMBER_LIMIT, check_consumer, check_group_id, check_node, shard_of
from .samples import SealedGroup
from .status import Status
from .taking import Taker
from .work import PromptGroup

#: Ids that one call names, and groups that one call moves.
_CALL_LIMIT = 1000
#: Most bytes of a group on the wire.
_GROUP_BYTES_LIMIT = 4 << 20
#: Pages that a walk through one shard reads at most: 200,000 × 64 groups.
_PAGES_LIMIT = 200_000
_URI = re.compile(r"(s3|file|https?)://\S+")
#: Fields of the trainer's record: where a request's number stands, and that of the confirmed one.
_RESIZE = ("resize_generation", "confirmed_generation")
_CHECKPOINT = ("checkpoint_requested", "checkpoint_confirmed")


class Trainer:
    """What a trainer does with the queue; made by `Queue.trainer`. Threads may share it."""

    def __init__(self, link: Link, layout: Layout, consumer: str, groups_per_step: int) -> None:
        self._link = link
        self._layout = layout
        #: The name under which it takes groups.
        self.consumer = consumer
        self._lock = threading.Lock()
        self._taker = Taker(link, layout.shards, consumer)
        self._reported: dict[str, Any] = {
            "phase": TrainerPhase.WAIT.value,
            "step": control.number(self._record(), "step"),
            "groups_per_step": groups_per_step,
            # Each start has its own: a later one may work on nodes that this one has left.
            "incarnation": secrets.token_hex(8),
        }
        self._has_reported = False
        #: What it confirmed last, with the nodes that it had left.
        self._confirmed: tuple[Resize, list[str]] | None = None

    # Groups.

    def enqueue_group(self, group: PromptGroup) -> bool:
        """Enqueues a group, all its samples or none.

        Returns:
            `True` when it was added; `False` when a group of this id was there before or has ended
            within the dedup window: repeating the call is harmless.

        Raises:
            QueueBusy: memory of Redis is short; acknowledge groups, try again.
            QueueUnavailable: no answer; send the same group again.
            InvalidInput: it is larger than 4 MiB.
        """
        if not isinstance(group, PromptGroup):
            raise InvalidInput(f"enqueue_group takes a PromptGroup, got {group!r}")
        shard = shard_of(group.group_id, self._layout.shards)
        spec = codec.encode_group(group)
        if len(spec) > _GROUP_BYTES_LIMIT:
            raise InvalidInput(
                f"prompt group {group.group_id} must take at most {_GROUP_BYTES_LIMIT} bytes, "
                f"got {len(spec)}"
            )
        if self._link.is_memory_short(shard):
            raise QueueBusy(f"memory of {self._link.name} is above 85 %: nothing was added")
        window_s = self._layout.dedup_window_s or 0.0
        policies = ("continue_mixed", "restart_if_newer", "mask_old")
        fewest = group.group_size if group.min_samples is None else group.min_samples
        args = [
            group.group_id, group.group_size, fewest, len(self._layout.stages), group.max_lag,
            policies.index(group.resume_policy.value), group.min_policy_version, group.priority,
            group.max_attempts, group.max_infra_attempts, group.max_leased_ms,
            group.expires_at_ms or 0, group.sampling.max_tokens, round(window_s * 1000), spec, "",
        ]  # fmt: skip
        reply = self._link.on_shard(shard, "enqueue", args, must_last=True)
        self._link.wake()
        return self._word(reply, "OK", "ALREADY_DONE") == "OK"

    def next_batch(self, groups: int, *, wait_s: float = 0.0) -> list[SealedGroup]:
        """Takes up to `groups` sealed groups; this consumer's unacknowledged ones come first.

        A group that has become too old fails instead and is never given. What is given stays this
        consumer's until it is acknowledged, and comes again before others: a trainer that was
        restarted gets its batch back.

        Args:
            groups: how many make a batch, 1 to 10,000.
            wait_s: how long to wait for a full batch, in seconds; then what there is.

        Raises:
            InvalidInput: an argument is out of its range.
            QueueUnavailable: only when no shard answered.
            ProtocolError: stored tokens of a group are lost or damaged; `ebbtide queue check` mends
                that.
        """
        checks.whole("groups", groups, 1, 10_000)
        wait_ms = checks.seconds_as_ms("wait_s", wait_s)
        return self._taker.next_batch(groups, wait_ms / 1000)

    def acknowledge(self, groups: Iterable[SealedGroup | str]) -> int:
        """Deletes groups that the trainer has finished with; best after the new policy version.

        Returns:
            How many this call deleted: repeating it deletes nothing more.

        Raises:
            QueueUnavailable: no answer; those of other shards may be deleted.
        """
        by_shard: dict[int, list[str]] = {}
        for group in groups:
            id = group.group_id if isinstance(group, SealedGroup) else check_group_id(group)
            by_shard.setdefault(shard_of(id, self._layout.shards), []).append(id)
        acknowledged = 0
        for shard, ids in sorted(by_shard.items()):
            for start in range(0, len(ids), _CALL_LIMIT):
                args = [self.consumer, *ids[start : start + _CALL_LIMIT]]
                reply = self._link.on_shard(shard, "acknowledge", args, must_last=True)
                acknowledged += int(reply)
        return acknowledged

    def take_over(self, lost_consumer: str) -> int:
        """Makes the unacknowledged groups of a lost trainer this one's; gives how many.

        Only once that trainer is gone for good: while it lives, both train on the same groups.

        Raises:
            InvalidInput: it is this consumer, or no name.
            QueueUnavailable: no answer; repeating it goes on.
        """
        check_consumer(lost_consumer)
        if lost_consumer == self.consumer:
            raise InvalidInput(f"consumer {lost_consumer} cannot take over its own groups")
        moved = 0
        for shard in range(self._layout.shards):
            while True:
                args = [lost_consumer, self.consumer, _CALL_LIMIT]
                count = int(self._link.on_shard(shard, "take_over", args))
                moved += count
                if count < _CALL_LIMIT:
                    break
        return moved

    def remove_consumer(self, consumer: str) -> int:
        """Forgets a trainer that is gone for good.

        Returns:
            0, or how many groups it has not acknowledged: then it is not forgotten where it has
            them, and another one must take them over first.

        Raises:
            InvalidInput: it is no name.
            QueueUnavailable: no answer; repeating it is harmless.
        """
        check_consumer(consumer)
        shards = range(self._layout.shards)
        return sum(
            int(self._link.on_shard(shard, "remove_consumer", [consumer])) for shard in shards
        )

    def fail_group(self, group_id: str, reason: str) -> bool:
        """Ends a group as FAILED; its samples and partials are thrown away.

        Args:
            reason: for the record of the failure.

        Returns:
            `True` when this call ended it; `False` when it has ended or is sealed, or there is no
            such group.

        Raises:
            QueueUnavailable: no answer; repeating it is harmless.
        """
        shard = shard_of(check_group_id(group_id), self._layout.shards)
        args = [group_id, checks.text("reason", reason, 4096)]
        reply = self._link.on_shard(shard, "fail_group", args)
        self._link.wake()
        return self._word(reply, "OK", "ALREADY_DONE", "UNKNOWN") == "OK"

    def cancel_run(self, reason: str) -> int:
        """Ends every group that is not sealed as FAILED; gives how many this call ended.

        Groups that are enqueued meanwhile may be left.

        Raises:
            QueueUnavailable: no answer; repeating it goes on.
        """
        checks.text("reason", reason, 4096)
        ended = 0
        for shard in range(self._layout.shards):
            cursor = b"0"
            for _ in range(_PAGES_LIMIT):
                cursor, count = self._link.on_shard(shard, "cancel_run", [cursor, reason])
                ended += int(count)
                if cursor == b"0":
                    break
        self._link.wake()
        return ended

    def status(self) -> Status:
        """Counters and depths, summed over the shards that answer.

        Raises:
            QueueUnavailable: no shard answers.
        """
        return status.read_status(self._link, self._layout.shards)

    # Weights.

    def set_policy_version(self, version: int, uri: str = "", sha256: str = "") -> None:
        """Publishes a policy version; from then on tokens are that much older. It never falls.

        Repeating it is harmless.

        Args:
            version: 0 up to 2^53; the engines' weights label is this number in decimal.
            uri: where the weights are (`s3://`, `file://`, `http(s)://`); empty when the trainer
                pushes them to the `engines()` itself.
            sha256: SHA-256 of the weights as hex; needed with a `uri`.

        Raises:
            InvalidInput: an argument is out of its range.
            PolicyVersionRefused: a higher version holds, or this one with other weights; nothing
                has changed.
            QueueUnavailable: no answer; some shards may have it: call again.
        """
        checks.whole("policy version", version, 0, NUMBER_LIMIT - 1)
        if uri and not _URI.fullmatch(uri):
            raise InvalidInput(f"uri must begin with s3://, file:// or http(s)://, got {uri!r}")
        if bool(uri) != bool(sha256) or (sha256 and not re.fullmatch("[0-9a-f]{64}", sha256)):
            raise InvalidInput(
                f"sha256 must be 64 hex digits with a uri and empty without, got {sha256!r}"
            )
        for shard in range(self._layout.shards):
            holds = int(self._link.on_shard(shard, "set_version", [version], must_last=True))
            if holds > version:
                raise PolicyVersionRefused(
                    f"policy version {version} of run {self._link.run} was refused: {holds} holds "
                    "and it never falls; go on from there, or use a new run name",
                    asked=version,
                    holds=holds,
                )
        fields = {"version": version, "uri": uri, "sha256": sha256}
        if not control.put(self._link, "version", "raise", fields, stamp="published_at"):
            self._check_published(version, uri, sha256)
        self._link.wake(CONTROL_HINT)

    def _check_published(self, version: int, uri: str, sha256: str) -> None:
        """What holds is this very version: a repetition, or version 0, which nobody publishes."""
        holds = control.read_policy_version(self._link)
        is_same = (holds.version, holds.uri, holds.sha256) == (version, uri, sha256)
        if not is_same:
            raise PolicyVersionRefused(
                f"policy version {version} of run {self._link.run} was refused: version "
                f"{holds.version} is published with weights {holds.uri or 'pushed by the trainer'};"
                " publish other weights under a higher version",
                asked=version,
                holds=holds.version,
            )

    def engines(self) -> list[Engine]:
        """Whom to push weights to: every engine on record, by replica and number.

        One whose `weights_version` is `None` or lower than the policy version needs weights, also
        when it came late; one that reported long ago may be gone.

        Raises:
            QueueUnavailable: no answer.
        """
        return control.read_engines(self._link)

    # The trainer's own state.

    def heartbeat(self) -> None:
        """Says that the trainer lives. The controller counts what it said for 30 s.

        Only one object of a run reports: another one is taken for a trainer that has started again.

        Raises:
            QueueUnavailable: no answer.
        """
        # One after the other: a report that was overtaken must not take back what came after it.
        with self._lock:
            self._report()

    def _report(self) -> None:
        control.put(self._link, "trainer", "merge", self._reported)
        self._has_reported = True

    @contextmanager
    def kept_alive(self, every_s: float = 5.0) -> Iterator[None]:
        """Sends heartbeats from a thread for as long as the block runs, such as a long update.

        A heartbeat without an answer is tried again at the next turn.
        """
        interval_s = checks.seconds_as_ms("every_s", every_s, 0.01) / 1000
        over = threading.Event()

        def beat() -> None:
            while not over.wait(interval_s):
                try:
                    self.heartbeat()
                except EbbtideError:
                    continue

        thread = threading.Thread(target=beat, name="ebbtide-heartbeat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def report_phase(
        self, phase: TrainerPhase | str, *, step: int | None = None, size: int | None = None
    ) -> None:
        """Says what the trainer does; also a heartbeat.

        Args:
            phase: `train`, `sync`, `wait`, `checkpoint` or `done`.
            step: updates that it has finished; `None` leaves it as it was.
            size: nodes that it runs on, said at every start and once it has grown; `None` leaves
                it as it was.

        Raises:
            InvalidInput: an argument is out of its range.
            QueueUnavailable: no answer.
        """
        said: dict[str, Any] = {"phase": checks.word("phase", TrainerPhase, phase).value}
        if step is not None:
            said["step"] = checks.whole("step", step, 0, NUMBER_LIMIT - 1)
        if size is not None:
            said["size"] = checks.whole("size", size, 1, (1 << 32) - 1)
        with self._lock:
            self._reported.update(said)
        self.heartbeat()

    def pending_resize(self) -> Resize | None:
        """The size that the controller asks for and the trainer has not confirmed; else `None`.

        It may be the size that the trainer has, when its pool is larger: then it is asked for the
        names of the nodes that it does not run on.

        Raises:
            QueueUnavailable: no answer.
        """
        record = self._record()
        size, generation = control.number(record, "resize_size"), _pending(record, *_RESIZE)
        if not size or not generation:
            return None
        asked, said = Resize(size, generation), self._confirmed
        if said is None or said[0] != asked:
            return asked
        # Redis has lost its word, with the server that had it: the word still holds.
        with suppress(ResizeRefused):
            self._confirm_resize(*said)
            self._link.wake(CONTROL_HINT)
        return None

    def pending_checkpoint(self) -> int | None:
        """The request for a checkpoint that the trainer has not confirmed, by its moment in ms on
        the Redis server's clock; else `None`. A trainer node has a notice when one is there.

        Raises:
            QueueUnavailable: no answer.
        """
        return _pending(self._record(), *_CHECKPOINT)

    def confirm_safe_point(
        self,
        resize: Resize | None = None,
        *,
        released: Iterable[str] = (),
        checkpoint: int | None = None,
    ) -> None:
        """Says, between two updates, that what was asked for may happen now.

        Only then does the controller change the trainer's size. To grow, confirm, go on, and say
        `report_phase(..., size=...)` once you run on the new nodes; heartbeats must go on. To
        shrink, leave nodes first: those that are `released` are terminated, and no others, unless
        the trainer starts again before they are. Its launcher must start nothing on them.

        Args:
            resize: what `pending_resize` gave.
            released: to shrink, or when it is asked for the size that it has: names of the nodes
                of its pool that the trainer does not run on any more. From now on it runs on as
                many as it was asked to.
            checkpoint: what `pending_checkpoint` gave, once the checkpoint is safe.

        Raises:
            InvalidInput: nothing is confirmed, or what was never asked for, or a trainer that
                shrinks names no node.
            ResizeRefused: the controller has withdrawn the request, or asks for another size, or
                another trainer reports.
            QueueUnavailable: no answer; repeating it is harmless.
        """
        if resize is None and checkpoint is None:
            raise InvalidInput(
                "nothing to confirm: give what pending_resize or pending_checkpoint gave"
            )
        if checkpoint is not None:
            self._confirm_checkpoint(checkpoint)
        if resize is not None:
            self._confirm_resize(resize, [check_node(node) for node in released])
        self._link.wake(CONTROL_HINT)

    def _confirm_checkpoint(self, checkpoint: int) -> None:
        asked_in, confirmed_in = _CHECKPOINT
        record = self._record()
        newest = control.number(record, asked_in)
        if not 0 < checkpoint <= newest:
            raise InvalidInput(
                f"checkpoint {checkpoint} was never asked for, the newest is {newest}"
            )
        confirmed = max(checkpoint, control.number(record, confirmed_in))
        control.put(self._link, "trainer", "merge", {confirmed_in: confirmed})

    def _confirm_resize(self, resize: Resize, released: list[str]) -> None:
        with self._lock:
            size = self._reported.get("size") or control.number(self._record(), "size")
            if resize.size > size and released:
                raise InvalidInput(f"a trainer that grows leaves no node, got {released}")
            if resize.size < size and not released:
                raise InvalidInput(
                    f"a trainer that shrinks from {size} nodes to {resize.size} must name those "
                    "that it has left, got none"
                )
            # Nobody but the trainer that reports is believed: one that another has followed is not.
            if not self._has_reported:
                self._report()
            # Without an answer no later report may say a size: this one may have been taken.
            before = self._reported.pop("size", None)
            incarnation = self._reported["incarnation"]
            is_taken = control.confirm_resize(self._link, resize, released, incarnation)
            holds = resize.size if is_taken and released else before
            if holds is not None:
                self._reported["size"] = holds
            if not is_taken:
                raise ResizeRefused(
                    f"resize {resize.generation} of run {self._link.run} to {resize.size} nodes "
                    "was refused: another request holds, or none, or another trainer reports; go "
                    "on with the nodes that you had"
                )
            self._confirmed = (resize, released)

    def _record(self) -> dict[str, str]:
        return control.read(self._link, ["trainer"]).fields[0]

    def _word(self, reply: Any, *known: str) -> str:
        word = reply.decode() if isinstance(reply, bytes) else str(reply)
        if word not in known:
            raise ProtocolError(f"unknown reply {word!r} from {self._link.name}")
        return word


def _pending(record: Mapping[str, str], asked_in: str, confirmed_in: str) -> int | None:
    asked = control.number(record, asked_in)
    return asked if asked > control.number(record, confirmed_in) else None
