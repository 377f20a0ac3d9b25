"""Custom workers at a real agent's socket, and a notice from AWS's own metadata mock."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from programs import Programs
from servers import EVENT_LIMIT_S, Server, free_port, until

from ebbtide import (
    AgentGrant,
    AgentUnavailable,
    Answer,
    Finish,
    FinishReason,
    InvalidInput,
    Keep,
    LeaseGateClosed,
    NodeAgent,
    NodeEvent,
    NodeNotice,
    NodeState,
    PromptGroup,
    Queue,
    Release,
    Sampling,
    Score,
    Stage,
    Tokens,
    Waiting,
)

POLICY = """
apiVersion: ebbtide.dev/v1alpha1
kind: FleetPolicy
metadata: {{name: {run}}}
spec:
  queue: {{shards: 2, lease: 5s, renewEvery: 1s, stages: {stages}}}
  staleness: {{maxLag: 4}}
  trainer: {{groupsPerStep: 2, groupSize: 4}}
  rollout: {{maxReplicas: 4, pools: [local], concurrencyPerReplica: 16}}
  pools:
    - {{name: local, provider: local, market: spot, maxNodes: 4}}
"""

SCORED = """
    - {name: scorers, provider: local, market: spot, maxNodes: 2}
  reward: {maxReplicas: 2, pools: [scorers], itemsPerReplica: 8}
"""


@dataclass
class Node:
    """A node with an agent for custom workers; its metadata service is not there yet."""

    programs: Programs
    binary: str
    redis: str
    run: str
    folder: Path
    name: str = "n1"
    imds_port: int = field(default_factory=free_port)

    @property
    def socket(self) -> str:
        return str(self.folder / f"{self.name}.sock")

    def start(self, *, is_scored: bool = False) -> None:
        policy = self.folder / f"{self.name}.yaml"
        stages = "[generate, reward]" if is_scored else "[generate]"
        text = POLICY.format(run=self.run, stages=stages)
        policy.write_text(text.rstrip() + SCORED if is_scored else text)
        self.programs.start(
            f"agent-{self.name}", self.binary, "agent", "--policy", policy, "--redis", self.redis,
            "--node", self.name, "--no-kubernetes", "--listen", f"127.0.0.1:{free_port()}",
            "--imds", f"http://127.0.0.1:{self.imds_port}", "--socket", self.socket,
        )  # fmt: skip
        until("the agent to lease", lambda: self.agent("probe").status()["gate"] == "open")

    def agent(self, worker: str) -> NodeAgent:
        return NodeAgent(worker, self.socket, retry_for_s=EVENT_LIMIT_S)

    def announce(self, mock: str, lead_s: float) -> None:
        """The metadata service comes up and says that the instance is interrupted."""
        at = datetime.now(timezone.utc) + timedelta(seconds=lead_s)
        self.programs.start(
            f"imds-{self.name}", mock, "spot", "--imdsv2", "--time",
            at.strftime("%Y-%m-%dT%H:%M:%SZ"), "--hostname", "127.0.0.1", "--port",
            str(self.imds_port), "--mock-ip-count", "-1",
        )  # fmt: skip


@pytest.fixture
def node(
    programs: Programs, binary: str, redis_server: Server, run: str, tmp_path: Path
) -> Node:
    return Node(programs, binary, redis_server.url, run, tmp_path)


def group(name: str, size: int, max_tokens: int) -> PromptGroup:
    sampling = Sampling(max_tokens=max_tokens, seed=3)
    return PromptGroup(
        group_id=name, group_size=size, prompt_token_ids=[5, 6, 7], sampling=sampling, max_lag=4
    )


def lease(agent: NodeAgent, count: int) -> list[AgentGrant]:
    grants = agent.lease(count, weights_version=0, wait_s=10).grants
    assert len(grants) == count
    return grants


def tokens(offset: int, count: int) -> Tokens:
    return Tokens(offset, list(range(offset, offset + count)), [-0.5] * count)


def heard(events: Iterator[NodeEvent], what: Callable[[NodeEvent], bool]) -> NodeEvent:
    """The next event that is wanted; the stream itself is bounded by its signs of life."""
    ends_at = time.monotonic() + EVENT_LIMIT_S
    for event in events:
        if what(event):
            return event
        assert time.monotonic() < ends_at, f"last was {event}"
    raise AssertionError("the stream has ended")


def test_worker_streams_completes_and_scores(node: Node, run: str, redis_server: Server) -> None:
    node.start(is_scored=True)
    agent = node.agent("env")
    with Queue.connect(redis_server.url, run) as queue:
        trainer = queue.trainer("t", groups_per_step=2)
        trainer.enqueue_group(group("g", 2, 8))
        first, second = lease(agent, 2)
        assert (first.unit, second.slot, second.seed) == ("g.0000", 1, 4)
        assert first.group.prompt_token_ids == [5, 6, 7] and first.tokens_left == 8
        assert agent.append(first, tokens(0, 3)).is_done
        assert agent.append(first, tokens(0, 3)).answer is Answer.OK, "it may be sent again"
        refused = agent.append(first, tokens(5, 1))
        assert (refused.answer, refused.stored_tokens) == (Answer.OFFSET, 3)
        assert [r.answer for r in agent.renew([first, second], waiting=Waiting.ENVIRONMENT)] == [
            Answer.OK, Answer.OK,
        ]  # fmt: skip
        assert node.agent("other").hand_back(first).answer is Answer.FENCED
        assert agent.hand_back(second, tokens(0, 2)).is_done
        assert agent.complete(first, Finish(FinishReason.STOP, 2), tokens(3, 1)).is_done
        (again,) = lease(agent, 1)
        assert (again.unit, again.token_ids, again.logprobs) == ("g.0001", [0, 1], [-0.5] * 2)
        assert again.fencing_token != second.fencing_token
        assert agent.fail(again, "the browser crashed").is_done
        (again,) = lease(agent, 1)
        assert again.attempts == 1
        assert agent.complete(again, Finish(FinishReason.LENGTH), tokens(2, 6)).is_done
        judge = node.agent("judge")
        grants = judge.lease(8, stage=Stage.REWARD, wait_s=10).grants
        while len(grants) < 2:
            grants += judge.lease(8, stage=Stage.REWARD, wait_s=10).grants
        assert {grant.finish.reason for grant in grants if grant.finish} == {
            FinishReason.STOP, FinishReason.LENGTH,
        }  # fmt: skip
        for grant in grants:
            assert judge.score(grant, Score(len(grant.token_ids) / 8, "rule/1", b"why")).is_done
        (sealed,) = trainer.next_batch(1, wait_s=10)
        assert [sample.token_ids for sample in sealed.samples] == [[0, 1, 2, 3], list(range(8))]
        scores = [sample.score for sample in sealed.samples]
        assert scores == [Score(0.5, "rule/1", b"why"), Score(1.0, "rule/1", b"why")]
        assert sealed.samples[0].segments[0].engine == "worker/env"
    assert agent.status()["held"] == 0


class Pace:
    """Appends a hundred tokens to each of these units, every quarter of a second."""

    def __init__(self, agent: NodeAgent, grants: Iterable[AgentGrant]) -> None:
        self._agent = agent
        self._grants = list(grants)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.made = 0
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.25):
            for grant in self._grants:
                self._agent.append(grant, tokens(self.made, 100))
            self.made += 100

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def test_notice_keeps_what_finishes_and_releases_the_rest(
    node: Node, run: str, redis_server: Server, metadata_mock: str
) -> None:
    node.start()
    agent = node.agent("env")
    with Queue.connect(redis_server.url, run) as queue:
        trainer = queue.trainer("t", groups_per_step=2)
        # At 400 tokens a second: some ten seconds, and far more than the notice leaves.
        trainer.enqueue_group(group("short", 1, 5_000))
        trainer.enqueue_group(group("long", 1, 2_000_000))
        grants = {grant.group.group_id: grant for grant in lease(agent, 2)}
        events = agent.notices()
        assert isinstance(next(events), NodeState)
        pace = Pace(agent, grants.values())
        until("speeds to be known", lambda: pace.made > 600)
        node.announce(metadata_mock, 110)
        notice = heard(events, lambda event: isinstance(event, NodeNotice))
        if isinstance(notice, NodeNotice) and notice.kind == "rebalance":
            # The mock shows it together with the other.
            notice = heard(events, lambda event: isinstance(event, NodeNotice))
        assert isinstance(notice, NodeNotice) and notice.kind == "spot_terminate"
        assert notice.remaining_s is not None and 60 < notice.remaining_s <= 110
        release = heard(events, lambda event: isinstance(event, Release))
        assert isinstance(release, Release) and release.units == {grants["long"].key}
        pace.stop()
        made = pace.made
        assert agent.hand_back(grants["long"], tokens(made, 2)).is_done
        keep = heard(events, lambda event: isinstance(event, Keep))
        assert isinstance(keep, Keep) and keep.units == {grants["short"].key}
        with pytest.raises(LeaseGateClosed, match="drain"):
            agent.lease(1, weights_version=0)
        finish = Finish(FinishReason.STOP)
        assert agent.complete(grants["short"], finish, tokens(made, 5)).is_done
        until("the drain to end", lambda: agent.status()["node_state"] == "drained")
        (sealed,) = trainer.next_batch(1, wait_s=10)
        assert sealed.samples[0].token_ids == list(range(made + 5))
        status = queue.status()
        assert (status.leased, status.ready) == (0, 1)
        assert status.tokens_generated == 2 * made + 7


def test_example_hands_back_on_a_notice_and_the_next_node_finishes(
    node: Node, run: str, programs: Programs, redis_server: Server, engine: str, metadata_mock: str
) -> None:
    node.start()
    worker = ("socket_worker.py", "--engine", engine, "--socket")
    programs.example("first", *worker, node.socket)
    with Queue.connect(redis_server.url, run) as queue:
        trainer = queue.trainer("t", groups_per_step=2)
        for number in range(12):
            trainer.enqueue_group(group(f"g{number}", 4, 20_000))
        until("tokens of its units", lambda: queue.status().tokens_generated > 100)
        node.announce(metadata_mock, 20)
        until("the units to go back", lambda: "units go back: notice" in programs.text("first"))
        until("nothing to be held", lambda: node.agent("probe").status()["held"] == 0)
        handed_back = queue.status()
        assert (handed_back.leased, handed_back.dead) == (0, 0)
        heir = Node(programs, node.binary, node.redis, run, node.folder, "n2")
        heir.start()
        second = programs.example("second", *worker, heir.socket)
        sealed = 0
        while sealed < 12:
            batch = trainer.next_batch(4, wait_s=30)
            assert batch, programs.text("second")
            for taken in batch:
                sealed += 1
                for sample in taken.samples:
                    assert sample.attempts == sample.infra_attempts == 0
            trainer.acknowledge(batch)
        second.send_signal(signal.SIGTERM)
        assert "everything is handed back" in programs.finish("second", second)
        status = queue.status()
    assert not status.tokens_wasted and status.tokens_preserved > 0
    assert status.hand_backs.total() > 0, status
    said = programs.text("first")
    assert re.search(r"told: NodeNotice\(kind='spot_terminate'", said), said


def test_mistakes_are_named_and_nothing_is_sent(node: Node, tmp_path: Path) -> None:
    node.start()
    agent = node.agent("env")
    mistakes: list[tuple[Callable[[], object], str]] = [
        (lambda: NodeAgent("a b"), "worker must match"),
        (lambda: agent.lease(0, weights_version=0), "limit must be 1 to 128"),
        (lambda: agent.lease(1), "weights_version must be given"),
        (lambda: Tokens(0, [1, 2], [-1.0]), "one number for each token"),
        (lambda: agent.renew([], waiting=Waiting.ENGINE_PAUSE), "ENVIRONMENT"),
    ]
    for mistake, word in mistakes:
        with pytest.raises(InvalidInput, match=word):
            mistake()
    nowhere = NodeAgent("env", str(tmp_path / "nobody.sock"), retry_for_s=0)
    with pytest.raises(AgentUnavailable, match="--socket"):
        nowhere.status()


def test_calls_without_an_answer_are_sent_again(tmp_path: Path) -> None:
    """An agent that is replaced: the first connection breaks, the second one is served."""
    path = str(tmp_path / "agent.sock")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen()
    seen: list[bytes] = []

    def serve() -> None:
        for number in range(2):
            connection, _ = listener.accept()
            with connection:
                seen.append(connection.recv(65536))
                if number == 1:
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    serving = threading.Thread(target=serve)
    serving.start()
    assert NodeAgent("env", path).status() == {}
    serving.join(EVENT_LIMIT_S)
    listener.close()
    assert len(seen) == 2 and all(b"GET /v1/status?worker=env" in request for request in seen)


def test_drain_waits_for_a_worker_that_leases_from_the_queue(
    node: Node, binary: str, run: str, redis_server: Server
) -> None:
    def field(record: str, name: str) -> object:
        return redis_server.command("HGET", f"{{{run}:c}}:{record}:n1", name)

    node.start()
    operator = ("--redis", redis_server.url, "--run", run)
    with Queue.connect(redis_server.url, run) as queue:
        queue.trainer("t", groups_per_step=2).enqueue_group(group("g", 2, 64))
        worker = queue.worker("n1")
        first, second = worker.lease(2, weight_version=0).grants
        assert queue.drain_of("n1") is None
        subprocess.run([binary, "drain", "n1", *operator], check=True)
        drain = queue.drain_of("n1")
        assert drain is not None and drain.reason == "operator"
        assert 0 < drain.remaining_s <= 600
        worker.hand_back(first)
        until("one unit left", lambda: field("node", "in_flight") == b"1")
        until("the agent to say so", lambda: field("drain", "state") == b"draining")
        worker.hand_back(second)
        until("the node to be drained", lambda: field("drain", "state") == b"drained")
        subprocess.run([binary, "drain", "n1", "--cancel", *operator], check=True)
        assert queue.drain_of("n1") is None
        assert queue.status().lease_expiries == 0


def test_example_that_leases_from_the_queue_hands_back_when_its_node_is_drained(
    node: Node, engine: str, binary: str, programs: Programs, run: str, redis_server: Server
) -> None:
    node.start()
    where = ("--redis", redis_server.url, "--run", run)
    with Queue.connect(redis_server.url, run) as queue:
        trainer = queue.trainer("t", groups_per_step=2)
        for number in range(200):
            trainer.enqueue_group(group(f"g{number}", 1, 500))
        worker = ("custom_worker.py", *where, "--engine", engine, "--node", "n1")
        process = programs.example("worker", *worker)
        until("work", lambda: queue.status().leased_by_node.get("n1", 0) > 0)
        subprocess.run([binary, "drain", "n1", "--wait", *where], check=True, timeout=60)
        drained = queue.status()
        assert drained.leased_by_node.get("n1", 0) == 0 and drained.ready > 0
        assert (drained.lease_expiries, drained.dead) == (0, 0)
        subprocess.run([binary, "drain", "n1", "--cancel", *where], check=True)
        until("more work", lambda: queue.status().leased_by_node.get("n1", 0) > 0)
        process.send_signal(signal.SIGTERM)
        programs.finish("worker", process)
