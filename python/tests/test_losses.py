"""Replies that are lost, servers that go away, clients that are killed: no unit is lost, none is
published twice."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from proxy import LossyProxy
from servers import Server
from worlds import STOP, chunk, complete, group, units

from ebbtide import (
    Answer,
    InvalidInput,
    Layout,
    ProtocolError,
    Queue,
    QueueBusy,
    QueueUnavailable,
    Write,
)


@pytest.fixture
def proxy(redis_server: Server) -> Iterator[LossyProxy]:
    proxy = LossyProxy(redis_server.port)
    yield proxy
    proxy.close()


def connect(proxy: LossyProxy, run: str, retry_for_s: float) -> Queue:
    return Queue.connect(proxy.url, run, create=Layout(shards=2), retry_for_s=retry_for_s)


def test_lease_whose_reply_was_lost_is_repeated_with_the_same_id(
    proxy: LossyProxy, run: str
) -> None:
    queue = connect(proxy, run, retry_for_s=30)
    trainer, worker = queue.trainer("t", groups_per_step=1), queue.worker("a")
    for number in range(6):
        trainer.enqueue_group(group(f"g{number}"))
    proxy.lose("_exchange")
    grants = worker.lease(4, weight_version=0).grants
    assert proxy.lost == 1
    assert len(grants) == 4
    assert trainer.status().leased == 4, "what the lost reply granted is what the repetition gave"
    assert all(reply.answer is Answer.OK for reply in complete(worker, grants))


def test_lease_that_nobody_answered_is_learnt_by_the_next_call(proxy: LossyProxy, run: str) -> None:
    queue = connect(proxy, run, retry_for_s=0)
    trainer, worker = queue.trainer("t", groups_per_step=1), queue.worker("a")
    names = [name for name in map("g{}".format, range(20)) if queue.shard_of(name) == 0]
    for name in names:
        trainer.enqueue_group(group(name))
    proxy.lose("_exchange", times=2)
    with pytest.raises(QueueUnavailable, match="not reachable"):
        worker.lease(1, weight_version=0)
    assert trainer.status().leased == 1
    grants = worker.lease(1, weight_version=0).grants
    assert len(grants) == 1 and trainer.status().leased == 1
    assert worker.renew(grants) == []
    assert len(worker.lease(10, weight_version=0).grants) == len(names) - 1


@pytest.mark.parametrize("write", ["append", "complete", "hand_back", "fault"])
def test_write_whose_reply_was_lost_is_done_once(proxy: LossyProxy, run: str, write: str) -> None:
    queue = connect(proxy, run, retry_for_s=30)
    trainer, worker = queue.trainer("t", groups_per_step=1), queue.worker("a")
    trainer.enqueue_group(group("g"))
    (grant,) = worker.lease(1, weight_version=0).grants
    tail = [chunk(0, 5)]
    proxy.lose("_exchange")
    reply = {
        "append": lambda: worker.append(grant, tail),
        "complete": lambda: worker.complete(grant, STOP, tail),
        "hand_back": lambda: worker.hand_back(grant, "drain", tail),
        "fault": lambda: worker.fault(grant, "no", tail),
    }[write]()
    assert (proxy.lost, reply.is_done) == (1, True)
    status = trainer.status()
    assert status.tokens_generated == 5
    assert status.completed == (write == "complete")
    assert status.hand_backs.total() == (write == "hand_back")


def test_every_call_of_the_trainer_survives_a_lost_reply(proxy: LossyProxy, run: str) -> None:
    queue = connect(proxy, run, retry_for_s=30)
    trainer, worker = queue.trainer("t", groups_per_step=1), queue.worker("a")
    proxy.lose("_enqueue")
    assert not trainer.enqueue_group(group("g")), "the repetition finds it there"
    trainer.enqueue_group(group("other"))
    complete(worker, worker.lease(2, weight_version=0).grants)
    proxy.lose("_take")
    first = trainer.next_batch(1)
    proxy.lose("HMGET")
    assert {taken.group_id for taken in first} < {taken.group_id for taken in trainer.next_batch(2)}
    proxy.lose("_set_version")
    trainer.set_policy_version(1, "file:///w/1", "0" * 64)
    proxy.lose("_control_put")
    trainer.set_policy_version(2, "file:///w/2", "1" * 64)
    proxy.lose("_acknowledge")
    trainer.acknowledge(["g", "other"])
    assert trainer.next_batch(2) == []
    proxy.lose("_control_read")
    assert queue.policy_version().version == 2
    proxy.lose("_status")
    assert trainer.status().groups_sealed == 2
    assert proxy.lost == 8


def test_paused_redis_is_not_waited_for_without_bound(
    own_server: Callable[..., Server], run: str
) -> None:
    server = own_server("--save", "")
    queue = Queue.connect(server.url, run, create=Layout(), retry_for_s=0)
    trainer, worker = queue.trainer("t", groups_per_step=1), queue.worker("a")
    trainer.enqueue_group(group("g", 2))
    server.pause()
    with pytest.raises(QueueUnavailable, match="retrying helps"):
        worker.lease(2, weight_version=0)
    server.resume()
    # The paused server carries out what it was sent; the next call learns what that granted.
    grants = worker.lease(2, weight_version=0).grants
    assert units(grants) == ["g.0000", "g.0001"]
    assert trainer.status().leased == 2
    complete(worker, grants)
    assert len(trainer.next_batch(1)) == 1


def test_calls_wait_for_a_redis_that_is_restarted(
    own_server: Callable[..., Server], run: str
) -> None:
    import threading

    server = own_server("--appendonly", "yes", "--appendfsync", "always")
    queue = Queue.connect(server.url, run, create=Layout(shards=2), retry_for_s=30)
    trainer, worker = queue.trainer("t", groups_per_step=1), queue.worker("a")
    for number in range(4):
        trainer.enqueue_group(group(f"g{number}"))
    grants = worker.lease(4, weight_version=0).grants
    server.kill()
    starting = threading.Timer(0.3, server.start)
    starting.start()
    replies = worker.write([Write.complete(grant, STOP, [chunk(0, 2)]) for grant in grants])
    starting.join()
    assert all(reply.is_done for reply in replies)
    assert len(trainer.next_batch(4)) == 4


def test_redis_without_our_library_is_given_it(queue: Queue, redis_server: Server) -> None:
    trainer = queue.trainer("t", groups_per_step=1)
    redis_server.command("FUNCTION FLUSH", "SYNC")
    assert trainer.enqueue_group(group("g"))


def test_lost_tokens_are_reported_and_not_left_out(queue: Queue, redis_server: Server) -> None:
    trainer, worker = queue.trainer("t", groups_per_step=1), queue.worker("a")
    for number in range(4):
        trainer.enqueue_group(group(f"g{number}"))
    complete(worker, worker.lease(4, weight_version=0).grants)
    shard = queue.shard_of("g2")
    redis_server.command("HDEL", f"{{{queue.run}:{shard}}}:chunks", "g2.0000/0")
    with pytest.raises(ProtocolError, match=r"g2.0000 has lost stored tokens; `ebbtide queue che"):
        trainer.next_batch(4)


class Victim:
    """A client process, killed at a step."""

    def __init__(self, queue_url: str, run: str, side: str, step: str) -> None:
        script = Path(__file__).with_name("victim.py")
        self._process = subprocess.Popen(
            [sys.executable, script, queue_url, run, side, step], stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()
        assert line, f"the client ended before step {step!r}"
        self.got: dict[str, Any] = json.loads(line)


@pytest.mark.parametrize(
    "step", ["before the lease", "leased", "appended", "completed one", "exchanged"]
)
def test_killed_workers_units_are_all_done_by_another(
    redis_server: Server, run: str, step: str
) -> None:
    queue = Queue.connect(redis_server.url, run, create=Layout(shards=1))
    trainer, heir = queue.trainer("t", groups_per_step=1), queue.worker("heir")
    trainer.enqueue_group(group("g", 4))
    Victim(redis_server.url, run, "worker", step)
    done: list[str] = []
    while len(trainer.next_batch(1)) == 0:
        grants = heir.lease(4, weight_version=0, wait_s=30).grants
        assert grants, "the victim's leases never expired"
        assert all(reply.answer is Answer.OK for reply in complete(heir, grants))
        done += units(grants)
    (taken,) = trainer.next_batch(1)
    assert [sample.slot for sample in taken.samples] == [0, 1, 2, 3]
    for sample in taken.samples:
        assert sample.token_ids == list(range(len(sample.token_ids)))
    by_victim = {"before the lease": 0, "leased": 0, "appended": 0, "completed one": 1}
    assert len(done) == 4 - by_victim.get(step, 2)
    status = trainer.status()
    assert (status.completed, status.in_system, status.dead) == (4, 0, 0)
    if step == "appended":
        assert status.tokens_preserved == 6, "what was stored is continued"
    queue.close()


@pytest.mark.parametrize("step", ["taken", "published", "acknowledged one", "acknowledged"])
def test_killed_trainers_groups_come_again_to_its_successor(
    redis_server: Server, run: str, step: str
) -> None:
    queue = Queue.connect(redis_server.url, run, create=Layout(shards=2))
    trainer, worker = queue.trainer("other", groups_per_step=1), queue.worker("a")
    for number in range(5):
        trainer.enqueue_group(group(f"g{number}"))
    complete(worker, worker.lease(5, weight_version=0).grants)
    Victim(redis_server.url, run, "trainer", step)
    left = {"taken": 2, "published": 2, "acknowledged one": 1, "acknowledged": 0}[step]
    successor = queue.trainer("victim", groups_per_step=2)
    batch = successor.next_batch(5)
    assert [taken.is_redelivered for taken in batch] == [True] * left + [False] * 3
    assert successor.acknowledge(batch) == left + 3
    status = successor.status()
    assert (status.groups_sealed, status.sealed_waiting, status.sealed_taken) == (5, 0, 0)
    assert status.policy_version == (step != "taken")
    queue.close()


def test_memory_short_refuses_what_is_new_and_finishes_the_rest(
    own_server: Callable[..., Server], run: str
) -> None:
    server = own_server("--save", "")
    queue = Queue.connect(server.url, run, create=Layout(), retry_for_s=0)
    trainer, worker = queue.trainer("t", groups_per_step=1), queue.worker("a")
    trainer.enqueue_group(group("g", 2))
    (grant,) = worker.lease(1, weight_version=0).grants
    used = server.client().info("memory")["used_memory"]
    server.command("CONFIG SET", "maxmemory", used)
    # A client that looks at the server now; an older one does within a second.
    late = Queue.connect(server.url, run, retry_for_s=0)
    with pytest.raises(QueueBusy, match="above 85 %"):
        late.trainer("t", groups_per_step=1).enqueue_group(group("h"))
    assert late.worker("b").lease(1, weight_version=0).grants == []
    assert worker.complete(grant, STOP, [chunk(0, 2)]).answer is Answer.OK
    with pytest.raises(QueueBusy, match="full|85 %"):
        trainer.enqueue_group(group("h"))
    server.command("CONFIG SET", "maxmemory", 0)
    assert Queue.connect(server.url, run).trainer("t", groups_per_step=1).enqueue_group(group("h"))


def test_client_of_the_callers_own_is_taken_and_left_open(redis_server: Server, run: str) -> None:
    with redis_server.client() as client:
        with Queue.connect(client, run, create=Layout()) as queue:
            assert queue.trainer("t", groups_per_step=1).enqueue_group(group("g"))
        assert client.ping()
    with redis.Redis(port=redis_server.port, decode_responses=True) as decoding:
        with pytest.raises(InvalidInput, match="decode_responses=False"):
            Queue.connect(decoding, run)
