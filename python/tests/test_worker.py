"""The side of workers and scorers, on a real Redis."""

from __future__ import annotations

import threading

import pytest
from servers import Server
from worlds import STOP, chunk, complete, group, units

from ebbtide import (
    Answer,
    Finish,
    Holder,
    InvalidInput,
    Layout,
    ProgressLimits,
    Queue,
    Score,
    Stage,
    Waiting,
    Write,
)


def test_handed_back_unit_keeps_its_tokens_and_comes_first(queue: Queue) -> None:
    trainer, lost, heir = queue.trainer("t", groups_per_step=1), *map(queue.worker, ("a", "b"))
    trainer.enqueue_group(group("g", 3))
    grants = lost.lease(3, weight_version=0).grants
    replies = lost.write(
        [
            Write.hand_back(grants[0], "notice", [chunk(0, 4)]),
            Write.hand_back(grants[1], "notice"),
            Write.append(grants[2], [chunk(0, 1)]),
        ]
    )
    assert [reply.answer for reply in replies] == [Answer.OK] * 3
    assert lost.hand_back(grants[0], "notice", [chunk(0, 4)]).is_done, "a repetition does no harm"
    first, second = heir.lease(2, weight_version=0).grants
    assert (first.unit, first.response.token_ids) == (grants[0].unit, [0, 1, 2, 3])
    assert (first.tokens_left, first.attempts) == (1020, 0)
    assert len(second.response) == 0
    assert heir.complete(first, STOP, [chunk(4, 2)]).answer is Answer.OK
    complete(heir, [second])
    assert lost.complete(grants[2], STOP, [chunk(1, 1)]).answer is Answer.OK
    (taken,) = trainer.next_batch(1)
    sample = next(sample for sample in taken.samples if sample.unit == first.unit)
    assert sample.token_ids == [0, 1, 2, 3, 4, 5]
    makers = [(segment.holder, segment.start, segment.end) for segment in sample.segments]
    assert makers == [(str(lost.holder), 0, 4), (str(heir.holder), 4, 6)]
    assert (sample.hand_backs, sample.attempts) == (1, 0)
    assert trainer.status().hand_backs == {"notice": 2}


def test_given_up_worker_is_fenced_and_changes_nothing(queue: Queue) -> None:
    trainer = queue.trainer("t", groups_per_step=1)
    zombie, heir = queue.worker("a", lease_s=0.001), queue.worker("b")
    trainer.enqueue_group(group("g"))
    (grant,) = zombie.lease(1, weight_version=0).grants
    (new,) = heir.lease(1, weight_version=0, wait_s=30).grants
    assert new.unit == grant.unit and new.fencing_token > grant.fencing_token
    for reply in zombie.write(
        [
            Write.append(grant, [chunk(0, 1)]),
            Write.complete(grant, STOP, [chunk(0, 1)]),
            Write.hand_back(grant),
            Write.fault(grant, "late"),
        ]
    ):
        assert reply.answer is Answer.FENCED and not reply.is_done
    assert zombie.renew([grant]) == [grant.unit]
    assert heir.renew([new]) == []
    complete(heir, [new])
    (taken,) = trainer.next_batch(1)
    assert [s.holder for s in taken.samples[0].segments] == [str(heir.holder)]
    assert taken.samples[0].infra_attempts == 1


def test_append_at_a_wrong_place_says_what_is_stored(queue: Queue) -> None:
    queue.trainer("t", groups_per_step=1).enqueue_group(group("g"))
    worker = queue.worker("a")
    (grant,) = worker.lease(1, weight_version=0).grants
    assert worker.append(grant, [chunk(0, 3)]).answer is Answer.OK
    assert worker.append(grant, [chunk(0, 3)]).answer is Answer.OK, "a repetition is known"
    refused = worker.append(grant, [chunk(5, 1)])
    assert (refused.answer, refused.stored_tokens) == (Answer.OFFSET, 3)
    assert worker.append(grant, [chunk(3, 1, 2)]).answer is Answer.OK
    assert worker.append(grant, [chunk(4, 1, 1)]).answer is Answer.BAD_VERSION
    assert worker.score(grant, Score(1.0, "s")).answer is Answer.WRONG_STAGE


def test_worker_with_other_weights_leaves_units_to_others(queue: Queue) -> None:
    trainer = queue.trainer("t", groups_per_step=1)
    trainer.set_policy_version(5)
    trainer.enqueue_group(group("g", max_lag=1))
    worker = queue.worker("a")
    leased = worker.lease(1, weight_version=3)
    assert (leased.grants, leased.policy_version) == ([], 5)
    assert len(worker.lease(1, weight_version=4).grants) == 1


def test_faults_use_up_attempts_and_leave_their_history(queue: Queue) -> None:
    trainer, worker = queue.trainer("t", groups_per_step=1), queue.worker("a")
    trainer.enqueue_group(group("g", max_attempts=2))
    for attempt in range(2):
        (grant,) = worker.lease(1, weight_version=0).grants
        assert grant.attempts == attempt
        assert worker.fault(grant, f"fault {attempt} " + "x" * 5000).answer is Answer.OK
    assert worker.lease(1, weight_version=0).grants == []
    (failure,) = queue.failures(queue.shard_of("g"))
    assert (failure.reason, failure.unit) == ("dead", "g.0000")
    assert [event.what for event in failure.history] == ["fault", "fault", "dead"]
    assert failure.history[1].detail.startswith("fault 1 x")
    assert failure.slots[0].attempts == 2


def test_leases_are_renewed_and_those_without_progress_are_lost(queue: Queue) -> None:
    trainer = queue.trainer("t", groups_per_step=1)
    trainer.enqueue_group(group("g", 2))
    limits = ProgressLimits(idle_s=0, environment_s=60, engine_pause_s=60)
    worker = queue.worker("a", limits=limits)
    grants = worker.lease(2, weight_version=0).grants
    threading.Event().wait(0.01)  # Longer than the limit of 0 ms.
    assert worker.renew(grants[:1], waiting=Waiting.ENVIRONMENT) == []
    assert worker.renew(grants[1:]) == [grants[1].unit]
    (again,) = queue.worker("b").lease(2, weight_version=0).grants
    assert (again.unit, again.attempts) == (grants[1].unit, 1)


def test_exchange_completes_and_leases_in_one_round(queue: Queue) -> None:
    trainer, worker = queue.trainer("t", groups_per_step=1), queue.worker("a")
    for number in range(20):
        trainer.enqueue_group(group(f"g{number}"))
    held, rounds = worker.lease(4, weight_version=0).grants, 0
    while held:
        writes = [Write.complete(grant, STOP, [chunk(0, 2)]) for grant in held]
        replies, leased = worker.exchange(writes, 4, weight_version=0)
        assert all(reply.answer is Answer.OK for reply in replies)
        held, rounds = leased.grants, rounds + 1
        assert len(held) <= 4
    assert rounds == 5
    assert len(trainer.next_batch(20)) == 20


def test_sample_is_scored_before_its_group_is_sealed(scored_queue: Queue) -> None:
    queue = scored_queue
    trainer, worker, scorer = (
        queue.trainer("t", groups_per_step=1), queue.worker("a"), queue.worker("s")
    )  # fmt: skip
    trainer.enqueue_group(group("g", 3))
    complete(worker, worker.lease(3, weight_version=0).grants)
    assert trainer.next_batch(1) == [], "nothing is sealed before it is scored"
    assert worker.lease(3, weight_version=0).grants == []
    to_score = scorer.lease_to_score(3).grants
    assert units(to_score) == ["g.0000", "g.0001", "g.0002"]
    for grant in to_score:
        assert (grant.stage, grant.finish, grant.response.token_ids) == (
            Stage.REWARD, STOP, [0, 1],
        )  # fmt: skip
    assert scorer.append(to_score[0], [chunk(2, 1)]).answer is Answer.WRONG_STAGE
    assert scorer.fault(to_score[0], "the judge was away").answer is Answer.OK
    assert scorer.hand_back(to_score[1]).answer is Answer.OK
    again = scorer.lease_to_score(3).grants
    assert {grant.unit: grant.attempts for grant in again} == {"g.0000": 1, "g.0001": 0}
    held = [to_score[2], *again]
    writes = [
        Write.score(grant, Score(grant.slot + 0.5, "rule/1", bytes([grant.slot]))) for grant in held
    ]
    replies, leased = scorer.exchange(writes, 3, stage=Stage.REWARD)
    assert [reply.answer for reply in replies] == [Answer.OK] * 3
    assert leased.grants == []
    assert scorer.score(held[0], Score(9.0, "rule/2")).answer is Answer.ALREADY_DONE
    (taken,) = trainer.next_batch(1)
    scores = [(s.score.value, s.score.metadata) for s in taken.samples if s.score]
    assert scores == [(0.5, b"\0"), (1.5, b"\1"), (2.5, b"\2")]
    assert trainer.status().completed == 3


def test_many_units_and_large_tails_take_several_calls(redis_server: Server, run: str) -> None:
    queue = Queue.connect(redis_server.url, run, create=Layout(shards=1))
    trainer, worker = queue.trainer("t", groups_per_step=1), queue.worker("a")
    for number in range(2):
        sampling = {"sampling": group("x").sampling}
        trainer.enqueue_group(group(f"g{number}", 600, **sampling))
    grants = worker.lease(1000, weight_version=0).grants
    grants += worker.lease(1000, weight_version=0).grants
    assert len(grants) == 1200
    replies = worker.write(
        [Write.complete(grant, STOP, [chunk(0, 1000)]) for grant in grants]
    )  # More than 1,000 units and 4 MiB.
    assert all(reply.answer is Answer.OK for reply in replies)
    assert worker.renew(grants) == [grant.unit for grant in grants], "nothing is held any more"
    taken = trainer.next_batch(2)
    assert sum(len(sample.token_ids) for each in taken for sample in each.samples) == 1_200_000
    queue.close()


def test_restarted_agent_leaves_workers_alone(queue: Queue) -> None:
    with pytest.raises(InvalidInput, match="must not begin with agent-"):
        queue.worker(Holder("n", "boot", "agent-1"))
    assert queue.worker("n.internal").holder.node == "n.internal"


def test_finish_is_never_an_abort() -> None:
    with pytest.raises(InvalidInput, match=r"stop, length, repetition, got 'abort'"):
        Finish("abort")  # type: ignore[arg-type]


def test_worker_learns_of_the_drain_of_the_replica_that_its_node_is_part_of(
    queue: Queue, redis_server: Server
) -> None:
    control = f"{{{queue.run}:c}}"
    assert queue.drain_of("n1") is None
    redis_server.command("HSET", f"{control}:node:n1", "replica", "ep-0")
    drain = f"{control}:drain:ep-0"
    now_s, _ = redis_server.command("TIME")
    seconds = int(now_s)
    terms = ("request_id", "r1", "reason", "scale_in", "state", "draining")
    redis_server.command("HSET", drain, *terms, "deadline", str((seconds + 60) * 1000))
    found = queue.drain_of("n1")
    assert found is not None and (found.request_id, found.reason) == ("r1", "scale_in")
    assert 50 < found.remaining_s <= 60
    assert queue.drain_of("n2") is None, "a node of its own"
    redis_server.command("HSET", drain, "deadline", str((seconds - 60) * 1000))
    over = queue.drain_of("n1")
    assert over is not None and over.remaining_s == 0
    redis_server.command("HSET", drain, "state", "cancelled")
    assert queue.drain_of("n1") is None
    with pytest.raises(InvalidInput, match="node name must match"):
        queue.drain_of("n 1")
