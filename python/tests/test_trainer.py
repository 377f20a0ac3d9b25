"""The trainer's side, on a real Redis."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from servers import Server
from worlds import STOP, chunk, complete, group

from ebbtide import (
    Answer,
    Failure,
    InvalidInput,
    PolicyVersionRefused,
    Queue,
    QueueUnavailable,
    Resize,
    ResizeRefused,
    SealedGroup,
    TrainerPhase,
    control,
)


def ids(batch: list[SealedGroup]) -> list[str]:
    return [group.group_id for group in batch]


def seal(queue: Queue, *group_ids: str, size: int = 1, version: int = 0, **terms: object) -> None:
    """Enqueues groups and completes every sample."""
    trainer, worker = queue.trainer("other", groups_per_step=1), queue.worker("n")
    for group_id in group_ids:
        assert trainer.enqueue_group(group(group_id, size, **terms))
    grants = worker.lease(1000, weight_version=version).grants
    assert len(grants) == size * len(group_ids)
    assert all(reply.answer is Answer.OK for reply in complete(worker, grants, version))


def failures(queue: Queue) -> list[Failure]:
    return [failure for shard in range(2) for failure in queue.failures(shard)]


def test_group_comes_back_whole_with_everything_that_made_it(queue: Queue) -> None:
    trainer, worker = queue.trainer("t", groups_per_step=1), queue.worker("n")
    sent = group("g", 2, meta=b"\x00label", priority=-3)
    assert trainer.enqueue_group(sent)
    first, second = worker.lease(2, weight_version=0).grants
    assert worker.append(first, [chunk(0, 3)]).answer is Answer.OK
    trainer.set_policy_version(1)
    tail = [chunk(3, 1), chunk(4, 2, version=1)]
    assert worker.complete(first, STOP, tail).answer is Answer.OK
    assert worker.complete(second, STOP, [chunk(0, 1)]).answer is Answer.OK

    (taken,) = trainer.next_batch(5)
    assert taken.group == sent
    assert (taken.taken_at_version, taken.is_redelivered, taken.missing_slots) == (1, False, [])
    sample = taken.samples[0]
    assert (sample.slot, sample.token_ids) == (0, [0, 1, 2, 3, 4, 5])
    assert sample.logprobs == [-1.5] * 6
    assert sample.loss_mask == [1] * 6
    assert (sample.finish, sample.score) == (STOP, None)
    spans = [(s.start, s.end, s.weight_version, s.holder, s.engine) for s in sample.segments]
    holder = str(worker.holder)
    assert spans == [(0, 4, 0, holder, "vllm/0.32.0"), (4, 6, 1, holder, "vllm/0.32.0")]
    assert sample.response.policy_versions == (0, 1)
    assert all(segment.fencing_token == first.fencing_token for segment in sample.segments)
    assert trainer.acknowledge([taken]) == 1
    assert trainer.next_batch(5) == []


def test_enqueue_is_idempotent_by_id(queue: Queue) -> None:
    trainer = queue.trainer("t", groups_per_step=1)
    assert trainer.enqueue_group(group("g"))
    assert not trainer.enqueue_group(group("g"))
    complete(worker := queue.worker("n"), worker.lease(1, weight_version=0).grants)
    assert trainer.acknowledge(trainer.next_batch(1)) == 1
    assert not trainer.enqueue_group(group("g")), "it has ended within the dedup window"
    assert trainer.status().enqueued == 1


def test_own_unacknowledged_groups_come_first_whatever_their_shard(queue: Queue) -> None:
    names = [f"g{number}" for number in range(12)]
    assert {queue.shard_of(name) for name in names} == {0, 1}
    seal(queue, *names)
    trainer = queue.trainer("t", groups_per_step=4)
    first = trainer.next_batch(4)
    assert len(first) == 4
    for _ in range(3):
        again = trainer.next_batch(4)
        assert sorted(ids(again)) == sorted(ids(first))
        assert all(taken.is_redelivered for taken in again)
    more = trainer.next_batch(6)
    assert sorted(ids(more[:4])) == sorted(ids(first))
    assert [taken.is_redelivered for taken in more] == [True] * 4 + [False] * 2
    assert trainer.acknowledge(first) == 4
    assert trainer.acknowledge(ids(first)) == 0, "a repetition deletes nothing more"
    assert not set(ids(trainer.next_batch(12))) & set(ids(first))


def test_other_consumer_never_gets_what_one_has(queue: Queue) -> None:
    seal(queue, "g0", "g1", "g2")
    one, other = (queue.trainer(name, groups_per_step=1) for name in ("one", "another"))
    assert len(one.next_batch(3)) == 3
    assert other.next_batch(3) == []
    assert other.acknowledge(["g0", "g1"]) == 0


def test_batch_is_waited_for(queue: Queue) -> None:
    seal(queue, "g0")
    trainer = queue.trainer("t", groups_per_step=2)
    assert ids(trainer.next_batch(2, wait_s=0.1)) == ["g0"], "what there is when the time is over"

    import threading

    sealing = threading.Thread(target=seal, args=(queue, "g1"))
    sealing.start()
    assert sorted(ids(trainer.next_batch(2, wait_s=30))) == ["g0", "g1"]
    sealing.join()


def test_stale_group_never_reaches_the_trainer(queue: Queue) -> None:
    seal(queue, "old", "held", max_lag=1)
    trainer = queue.trainer("t", groups_per_step=1)
    (held,) = trainer.next_batch(1)
    trainer.set_policy_version(2)
    assert trainer.next_batch(2) == [], "neither the waiting one nor the one that was taken"
    assert trainer.acknowledge([held]) == 0
    assert sorted(failure.group_id for failure in failures(queue)) == ["held", "old"]
    for failure in failures(queue):
        assert (failure.reason, failure.tokens_wasted, failure.ends_group) == ("stale", 2, True)
        assert failure.group is not None and failure.group.group_id == failure.group_id
        assert [slot.state for slot in failure.slots] == ["completed"]


def test_old_spans_are_masked_and_do_not_make_a_group_stale(queue: Queue) -> None:
    trainer, worker = queue.trainer("t", groups_per_step=1), queue.worker("n")
    trainer.enqueue_group(group("g", max_lag=1, resume_policy="mask_old"))
    (grant,) = worker.lease(1, weight_version=0).grants
    trainer.set_policy_version(3)
    assert worker.complete(grant, STOP, [chunk(0, 2), chunk(2, 3, 3)]).answer is Answer.OK
    (taken,) = trainer.next_batch(1)
    assert taken.samples[0].loss_mask == [0, 0, 1, 1, 1]


def test_policy_version_never_falls(queue: Queue, redis_server: Server) -> None:
    trainer = queue.trainer("t", groups_per_step=1)
    trainer.set_policy_version(0)
    trainer.set_policy_version(7, "s3://bucket/7", "ab" * 32)
    trainer.set_policy_version(7, "s3://bucket/7", "ab" * 32)
    with pytest.raises(PolicyVersionRefused, match=r"version 6 .* 7 holds .*never falls") as caught:
        trainer.set_policy_version(6)
    assert (caught.value.asked, caught.value.holds) == (6, 7)
    with pytest.raises(PolicyVersionRefused, match="version 7 is published with weights s3://"):
        trainer.set_policy_version(7, "s3://bucket/other", "cd" * 32)
    published = queue.policy_version()
    assert (published.version, published.uri, published.sha256) == (7, "s3://bucket/7", "ab" * 32)
    status = queue.status()
    assert (status.policy_version, status.versions_refused) == (7, 1)
    for shard in range(2):
        assert redis_server.command("GET", f"{{{queue.run}:{shard}}}:version") == b"7"


def test_lost_trainers_groups_are_taken_over_before_it_is_forgotten(queue: Queue) -> None:
    seal(queue, "g0", "g1", "g2", "g3")
    lost, heir = (queue.trainer(name, groups_per_step=1) for name in ("lost", "heir"))
    taken = lost.next_batch(3)
    assert heir.remove_consumer("lost") == 3
    assert heir.take_over("lost") == 3
    assert heir.take_over("lost") == 0
    assert heir.remove_consumer("lost") == 0
    again = heir.next_batch(3)
    assert sorted(ids(again)) == sorted(ids(taken))
    with pytest.raises(InvalidInput, match="its own"):
        heir.take_over("heir")


def test_failed_group_and_cancelled_run_end_with_a_record(queue: Queue) -> None:
    trainer, worker = queue.trainer("t", groups_per_step=1), queue.worker("n")
    for number in range(5):
        trainer.enqueue_group(group(f"g{number}", 2))
    (grant,) = worker.lease(1, weight_version=0).grants
    worker.append(grant, [chunk(0, 4)])
    assert trainer.fail_group(grant.group.group_id, "no such label")
    assert not trainer.fail_group(grant.group.group_id, "again")
    assert worker.append(grant, [chunk(4, 1)]).answer is Answer.ALREADY_DONE
    assert trainer.cancel_run("wrong data set") == 4
    assert trainer.cancel_run("wrong data set") == 0
    reasons = sorted(failure.reason for failure in failures(queue))
    assert reasons == ["no such label"] + ["wrong data set"] * 4
    status = trainer.status()
    assert (status.enqueued, status.cancelled, status.in_system) == (10, 10, 0)
    assert (status.tokens_generated, status.tokens_in_system) == (4, 0)


def test_group_that_may_shrink_names_its_missing_slots(queue: Queue) -> None:
    trainer, worker = queue.trainer("t", groups_per_step=1), queue.worker("n")
    trainer.enqueue_group(group("g", 3, min_samples=2, max_attempts=1))
    grants = sorted(worker.lease(3, weight_version=0).grants, key=lambda grant: grant.slot)
    assert worker.fault(grants[1], "the engine said no").answer is Answer.OK
    complete(worker, [grants[0], grants[2]])
    (taken,) = trainer.next_batch(1)
    assert taken.missing_slots == [1]
    assert [sample.slot for sample in taken.samples] == [0, 2]
    (failure,) = failures(queue)
    assert (failure.unit, failure.detail) == ("g.0001", "the engine said no")
    assert not failure.ends_group
    assert [event.what for event in failure.history] == ["fault", "dead"]


def test_phase_and_heartbeat_are_on_record(queue: Queue, redis_server: Server) -> None:
    trainer = queue.trainer("t", groups_per_step=4)
    key = f"{{{queue.run}:c}}:trainer"
    trainer.heartbeat()
    record = redis_server.command("HGETALL", key)
    fields = {name.decode(): value.decode() for name, value in record.items()}
    heartbeat = int(fields.pop("heartbeat"))
    assert len(fields.pop("incarnation")) == 16
    assert fields == {"phase": "wait", "step": "0", "groups_per_step": "4"}
    now_s, _ = redis_server.command("TIME")
    assert abs(heartbeat / 1000 - int(now_s)) < 60

    trainer.report_phase("train", step=3)
    trainer.report_phase(TrainerPhase.SYNC, size=2)
    words = [redis_server.command("HGET", key, name) for name in ("phase", "step", "size")]
    assert words == [b"sync", b"3", b"2"]
    restarted = queue.trainer("t", groups_per_step=4)
    restarted.heartbeat()
    assert redis_server.command("HGET", key, "step") == b"3", "a restart forgets no step"
    with pytest.raises(InvalidInput, match="phase must be one of train, sync"):
        trainer.report_phase("sleep")


def test_heartbeats_go_on_during_a_long_update(queue: Queue, redis_server: Server) -> None:
    from servers import until

    trainer = queue.trainer("t", groups_per_step=4)
    key = f"{{{queue.run}:c}}:trainer"
    with trainer.kept_alive(every_s=0.02):
        first = until("a heartbeat", lambda: redis_server.command("HGET", key, "heartbeat"))
        until("another", lambda: redis_server.command("HGET", key, "heartbeat") != first)


def test_engines_tell_whom_to_push_weights_to(queue: Queue, redis_server: Server) -> None:
    assert queue.engines() == []
    control = f"{{{queue.run}:c}}"
    now_s, _ = redis_server.command("TIME")
    records: dict[str, dict[str, object]] = {
        "n2:0": {"replica": "n2", "index": 0, "address": "http://n2:8000", "kind": "vllm",
                 "weights_version": 12, "state": "ready", "heartbeat": int(now_s) * 1000},
        "n1:1": {"replica": "n1", "index": 1, "address": "http://n1:8001", "kind": "sglang",
                 "state": "wrong weights", "heartbeat": int(now_s) * 1000 - 60_000},
        "n3:0": {"replica": "n3", "note": "written by somebody else"},
    }  # fmt: skip
    for member, fields in records.items():
        flat = [word for pair in fields.items() for word in pair]
        redis_server.command("HSET", f"{control}:engine:{member}", *flat)
        redis_server.command("SADD", f"{control}:engines", member)
    redis_server.command("SADD", f"{control}:engines", "gone:0")
    late, fresh = queue.trainer("t", groups_per_step=1).engines()
    assert (late.replica, late.index, late.kind, late.weights_version) == ("n1", 1, "sglang", None)
    assert late.reported_s_ago >= 60
    assert (fresh.address, fresh.weights_version, fresh.state) == ("http://n2:8000", 12, "ready")
    assert fresh.reported_s_ago < 60


def test_controller_asks_and_the_trainer_confirms_at_a_safe_point(
    queue: Queue, redis_server: Server
) -> None:
    trainer = queue.trainer("t", groups_per_step=4)
    trainer.report_phase("train", step=1)
    key = f"{{{queue.run}:c}}:trainer"
    assert trainer.pending_resize() is None
    assert trainer.pending_checkpoint() is None
    redis_server.command("HSET", key, "resize_size", 3, "resize_generation", 12)
    asked = trainer.pending_resize()
    assert asked is not None and (asked.size, asked.generation) == (3, 12)
    redis_server.command("HSET", key, "resize_size", 5, "resize_generation", 13)
    with pytest.raises(ResizeRefused, match="go on with the nodes that you had"):
        trainer.confirm_safe_point(asked)
    newer = trainer.pending_resize()
    assert newer is not None and newer.size == 5, "a newer request stays pending"
    trainer.confirm_safe_point(newer)
    trainer.confirm_safe_point(newer)
    assert trainer.pending_resize() is None
    assert redis_server.command("HGET", key, "size") is None, "it says so once it has grown"
    assert redis_server.command("HGET", key, "confirmed_generation") == b"13"
    redis_server.command("HSET", key, "checkpoint_requested", 1764000000123)
    assert trainer.pending_checkpoint() == 1764000000123
    trainer.confirm_safe_point(checkpoint=1764000000123)
    assert trainer.pending_checkpoint() is None
    assert redis_server.command("HGET", key, "step") == b"1", "the report is left alone"
    with pytest.raises(InvalidInput, match="never asked for"):
        trainer.confirm_safe_point(checkpoint=1764000000124)
    with pytest.raises(InvalidInput, match="nothing to confirm"):
        trainer.confirm_safe_point()


def test_trainer_that_shrinks_names_the_nodes_that_it_has_left(
    queue: Queue, redis_server: Server
) -> None:
    trainer = queue.trainer("t", groups_per_step=4)
    trainer.report_phase("wait", step=1, size=4)
    key = f"{{{queue.run}:c}}:trainer"
    redis_server.command("HSET", key, "resize_size", 2, "resize_generation", 1)
    asked = trainer.pending_resize()
    assert asked is not None
    with pytest.raises(InvalidInput, match="must name those that it has left"):
        trainer.confirm_safe_point(asked)
    trainer.confirm_safe_point(asked, released=["n3", "n4"])
    assert redis_server.command("HGET", key, "resize_released") == b"n3,n4"
    assert redis_server.command("HGET", key, "size") == b"2"
    trainer.heartbeat()
    assert redis_server.command("HGET", key, "size") == b"2", "later reports take nothing back"
    redis_server.command("HDEL", key, "resize_size", "resize_released")
    redis_server.command("HSET", key, "resize_generation", 2)
    assert trainer.pending_resize() is None, "it was withdrawn"


def test_trainer_is_asked_for_what_it_does_not_run_on(queue: Queue, redis_server: Server) -> None:
    trainer = queue.trainer("t", groups_per_step=4)
    trainer.report_phase("wait", step=1, size=2)
    key = f"{{{queue.run}:c}}:trainer"
    redis_server.command("HSET", key, "resize_size", 2, "resize_generation", 1)
    asked = trainer.pending_resize()
    assert asked is not None and asked.size == 2
    trainer.confirm_safe_point(asked, released=["n3"])
    assert redis_server.command("HGET", key, "resize_released") == b"n3"
    assert redis_server.command("HGET", key, "size") == b"2"


def test_only_the_trainer_that_reports_is_believed(queue: Queue, redis_server: Server) -> None:
    first, second = (queue.trainer("t", groups_per_step=4) for _ in range(2))
    key = f"{{{queue.run}:c}}:trainer"
    first.report_phase("wait", step=1, size=4)
    one = redis_server.command("HGET", key, "incarnation")
    redis_server.command("HSET", key, "resize_size", 2, "resize_generation", 1)
    asked = first.pending_resize()
    assert asked is not None
    first.confirm_safe_point(asked, released=["n3", "n4"])
    assert redis_server.command("HGET", key, "resize_confirmed_by") == one
    second.heartbeat()
    assert redis_server.command("HGET", key, "incarnation") not in (None, one)
    with pytest.raises(ResizeRefused, match="another trainer reports"):
        second.confirm_safe_point(asked, released=["n1", "n2"])
    assert redis_server.command("HGET", key, "resize_released") == b"n3,n4"
    redis_server.command("HSET", key, "resize_size", 1, "resize_generation", 2)
    newer = first.pending_resize()
    assert newer is not None
    with pytest.raises(ResizeRefused, match="another trainer reports"):
        first.confirm_safe_point(newer, released=["n2"])
    third = queue.trainer("t", groups_per_step=4)
    third.confirm_safe_point(newer, released=["n2"])
    assert redis_server.command("HGET", key, "incarnation") not in (None, one), "it reported first"


def test_word_whose_answer_was_lost_is_not_taken_back(
    queue: Queue, redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = queue.trainer("t", groups_per_step=4)
    trainer.report_phase("wait", step=1, size=4)
    key = f"{{{queue.run}:c}}:trainer"
    redis_server.command("HSET", key, "resize_size", 2, "resize_generation", 1)
    asked = trainer.pending_resize()
    assert asked is not None

    def lose_the_answer(*args: object) -> bool:
        confirm(*args)
        raise QueueUnavailable("the answer was lost")

    confirm: Callable[..., bool] = control.confirm_resize
    monkeypatch.setattr(control, "confirm_resize", lose_the_answer)
    with pytest.raises(QueueUnavailable):
        trainer.confirm_safe_point(asked, released=["n3", "n4"])
    trainer.heartbeat()
    assert redis_server.command("HGET", key, "size") == b"2"
    monkeypatch.undo()
    trainer.confirm_safe_point(asked, released=["n3", "n4"])
    trainer.heartbeat()
    assert redis_server.command("HGET", key, "size") == b"2"


def test_refused_word_leaves_the_size_as_it_was(queue: Queue, redis_server: Server) -> None:
    trainer = queue.trainer("t", groups_per_step=4)
    trainer.report_phase("wait", step=1, size=4)
    key = f"{{{queue.run}:c}}:trainer"
    with pytest.raises(ResizeRefused):
        trainer.confirm_safe_point(Resize(2, 9), released=["n3", "n4"])
    redis_server.command("HDEL", key, "size")
    trainer.heartbeat()
    assert redis_server.command("HGET", key, "size") == b"4"


def test_word_that_redis_has_lost_is_said_again(queue: Queue, redis_server: Server) -> None:
    trainer = queue.trainer("t", groups_per_step=4)
    trainer.report_phase("wait", step=1, size=4)
    key = f"{{{queue.run}:c}}:trainer"
    redis_server.command("HSET", key, "resize_size", 2, "resize_generation", 1)
    asked = trainer.pending_resize()
    assert asked is not None
    trainer.confirm_safe_point(asked, released=["n3", "n4"])
    # What a replica holds that took over too early.
    redis_server.command("HDEL", key, "resize_released", "confirmed_generation")
    redis_server.command("HSET", key, "size", 4)
    assert trainer.pending_resize() is None
    assert redis_server.command("HGET", key, "resize_released") == b"n3,n4"
    assert redis_server.command("HGET", key, "size") == b"2"
