"""A whole GRPO loop that trains nothing: prompt groups in, sealed groups out, rewards, advantages,
new policy versions, weights labels pushed to the engines.

With the demo's fleet, which loses nodes meanwhile:

    ebbtide demo --redis redis://127.0.0.1:6379 --run mine --trainer external &
    python grpo_loop.py --redis redis://127.0.0.1:6379 --run mine --steps 5

Or with an engine and `custom_worker.py`; then this program lays out the run: `--create`. Killed and
started again, it goes on where it was: groups have the same ids, what was taken comes again.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import engines

from ebbtide import (
    EbbtideError,
    Engine,
    Grant,
    Layout,
    PromptGroup,
    Queue,
    QueueUnavailable,
    Resize,
    ResizeRefused,
    Sample,
    Sampling,
    Score,
    SealedGroup,
    Write,
)

#: Under this name groups are taken, also after a restart.
CONSUMER = "grpo-example"
SCORER_VERSION = "share-of-threes/1"
#: Longest wait for the run, and for one batch, in seconds.
RUN_LIMIT_S, BATCH_LIMIT_S = 60.0, 300.0
#: How often engines are looked at while a batch is waited for, in seconds.
LOOK_INTERVAL_S = 0.5
#: An engine whose agent is silent for so long is taken for gone until it reports again, in seconds.
GONE_AFTER_S = 10.0
VOCABULARY, PROMPT_TOKENS = 32_000, 24


def reward_of(token_ids: list[int]) -> float:
    """The rule: the share of token ids that three divides."""
    return sum(token_id % 3 == 0 for token_id in token_ids) / max(1, len(token_ids))


def advantages_of(rewards: list[float]) -> list[float]:
    """How much better than its group each sample is, in standard deviations of the group."""
    mean, spread = statistics.fmean(rewards), statistics.pstdev(rewards)
    return [(reward - mean) / (spread + 1e-6) for reward in rewards]


def main() -> int:
    arguments = parse_arguments()
    stages = ("generate", "reward") if arguments.score else ("generate",)
    create = Layout(shards=arguments.shards, stages=stages) if arguments.create else None
    with connect(arguments.redis, arguments.run, create) as queue:
        is_scored = "reward" in queue.layout.stages
        over = threading.Event()
        with ThreadPoolExecutor() as threads:
            scoring = threads.submit(score_responses, queue, over) if is_scored else None
            try:
                loop = Loop(queue, arguments)
                loop.run()
            finally:
                over.set()
            if scoring is not None:
                print(f"{scoring.result()} responses scored by {SCORER_VERSION}")
    print(loop.account())
    return 0 if loop.books.is_balanced else 1


@dataclass
class Books:
    """What the loop has seen."""

    samples: int = 0
    tokens: int = 0
    rewards: list[float] = field(default_factory=list)
    #: Tokens by how far their weights were behind when they were taken.
    tokens_by_lag: Counter[int] = field(default_factory=Counter)
    holders: set[str] = field(default_factory=set)
    is_balanced: bool = True


class Loop:
    """One trainer's life: enqueue, wait, train, publish, acknowledge."""

    def __init__(self, queue: Queue, arguments: argparse.Namespace) -> None:
        self._queue = queue
        self._arguments = arguments
        self._per_step: int = arguments.groups_per_step
        self._trainer = queue.trainer(CONSUMER, groups_per_step=self._per_step)
        self._version = queue.policy_version().version
        self._enqueued = 0
        self._failures_read = [""] * queue.layout.shards
        self._failed = 0
        self._nodes = self._launcher_nodes()[: arguments.nodes]
        #: Nodes that it has left: they go, and nothing starts on them again.
        self._left: set[str] = set()
        #: On how many nodes it is to run, once they are there.
        self._grows_to = 0
        self.books = Books()

    def run(self) -> None:
        """Trains for the given number of steps."""
        last = self._version + self._arguments.steps
        self._trainer.report_phase("wait", step=self._version, size=len(self._nodes))
        while self._version < last:
            batch = self._collect()
            with self._trainer.kept_alive():
                self._trainer.report_phase("train", step=self._version)
                self._update(batch)
                self._trainer.report_phase("sync")
                self._version += 1
                self._trainer.set_policy_version(self._version)
                self._push_weights()
            # Only now: a trainer that is killed before gets the batch again.
            self._trainer.acknowledge(batch)
            self._resize_if_asked()
        self._trainer.report_phase("done", step=self._version)

    def _collect(self) -> list[SealedGroup]:
        """A full batch; meanwhile late engines get their weights, failed groups are replaced."""
        self._trainer.report_phase("wait", step=self._version)
        ends_at = time.monotonic() + BATCH_LIMIT_S
        while True:
            self._enqueue_what_is_useful()
            self._push_weights()
            batch = self._trainer.next_batch(self._per_step, wait_s=LOOK_INTERVAL_S)
            if len(batch) == self._per_step:
                return batch
            if time.monotonic() > ends_at:
                raise SystemExit(f"no batch in {BATCH_LIMIT_S:.0f} s: {self._trainer.status()}")
            self._trainer.heartbeat()

    def _enqueue_what_is_useful(self) -> None:
        """(L + v + 1) · b groups in all, and one for each that failed: the admission ceiling that
        keeps every sample within the lag bound L."""
        for shard, after in enumerate(self._failures_read):
            for failure in self._queue.failures(shard, after=after, limit=1000):
                self._failures_read[shard] = failure.record_id
                self._failed += failure.ends_group
        steps = self._arguments.max_lag + self._version + 1
        while self._enqueued < steps * self._per_step + self._failed:
            # Groups of an earlier life are answered `False`.
            self._trainer.enqueue_group(self._new_group(self._enqueued))
            self._enqueued += 1

    def _new_group(self, number: int) -> PromptGroup:
        chance = random.Random(f"{self._arguments.seed}/{number}")
        return PromptGroup(
            group_id=f"grpo-{number:06}",
            group_size=self._arguments.group_size,
            prompt_token_ids=[chance.randrange(10, VOCABULARY) for _ in range(PROMPT_TOKENS)],
            sampling=Sampling(
                max_tokens=self._arguments.max_tokens, seed=chance.randrange(1 << 31)
            ),
            enqueue_policy_version=self._version,
            max_lag=self._arguments.max_lag,
        )

    def _update(self, batch: list[SealedGroup]) -> None:
        """Where a trainer would compute its loss: advantage x ratio x mask, token by token."""
        rewards, tokens = [], 0
        for group in batch:
            of_group = [self._reward(sample) for sample in group.samples]
            advantages = advantages_of(of_group)
            self.books.is_balanced &= abs(sum(advantages)) < 1e-3
            rewards += of_group
            for sample in group.samples:
                tokens += sum(sample.loss_mask)
                self._note(sample, group)
        self.books.rewards.append(statistics.fmean(rewards))
        print(
            f"step {self._version + 1}: {len(batch)} groups, {tokens} tokens, mean reward "
            f"{self.books.rewards[-1]:.4f}",
            flush=True,
        )

    def _reward(self, sample: Sample) -> float:
        return reward_of(sample.token_ids) if sample.score is None else sample.score.value

    def _note(self, sample: Sample, group: SealedGroup) -> None:
        books = self.books
        books.samples += 1
        books.tokens += len(sample.token_ids)
        for segment in sample.segments:
            lag = max(0, group.taken_at_version - segment.weight_version)
            books.tokens_by_lag[lag] += segment.end - segment.start
            books.holders.add(segment.holder)
            books.is_balanced &= lag <= self._arguments.max_lag

    def _push_weights(self) -> None:
        """Brings every engine that is behind to the current version, late ones included."""

        def is_behind(engine: Engine) -> bool:
            is_old = engine.weights_version is None or engine.weights_version < self._version
            return is_old and engine.reported_s_ago < GONE_AFTER_S

        addresses = [engine.address for engine in self._trainer.engines() if is_behind(engine)]
        for address in [*addresses, *self._arguments.engine]:
            try:
                engines.set_weights_version(address, self._version)
            except engines.EngineAway:
                # It starts, or its node is gone; while it is on record it is tried again.
                continue

    def _resize_if_asked(self) -> None:
        """Between two updates nothing is in hand: a safe point."""
        resize = self._trainer.pending_resize()
        if resize is not None:
            self._resize(resize)
        self._take_new_nodes()
        checkpoint = self._trainer.pending_checkpoint()
        if checkpoint is not None:
            self._trainer.report_phase("checkpoint")
            self._trainer.confirm_safe_point(checkpoint=checkpoint)

    def _resize(self, resize: Resize) -> None:
        """Says which nodes go, or that more may come. At the size that it has it is asked for the
        nodes that it does not run on."""
        stays, leaves = self._nodes, []
        if resize.size <= len(self._nodes):
            # A trainer would lay itself out anew here, without the others.
            stays = self._nodes[: resize.size]
            leaves = [node for node in self._launcher_nodes() if node not in stays]
        try:
            self._trainer.confirm_safe_point(resize, released=leaves)
        except ResizeRefused as error:
            print(f"stays on {len(self._nodes)} nodes: {error}", flush=True)
            return
        self._nodes, self._grows_to = stays, resize.size
        self._left.update(leaves)

    def _take_new_nodes(self) -> None:
        """Runs on more nodes once they are there, and only then says so."""
        there = [node for node in self._launcher_nodes() if node not in self._left]
        if len(self._nodes) < self._grows_to <= len(there):
            new = [node for node in there if node not in self._nodes]
            self._nodes = (self._nodes + new)[: self._grows_to]
            self._trainer.report_phase("wait", size=len(self._nodes))
            print(f"runs on {', '.join(self._nodes)}", flush=True)

    def _launcher_nodes(self) -> list[str]:
        """The nodes of the trainer's pool, as its launcher has them."""
        if self._arguments.hostfile is None:
            return [f"trainer-{number}" for number in range(self._arguments.nodes)]
        lines = self._arguments.hostfile.read_text().splitlines()
        return [line.split()[0] for line in lines if line.strip()]

    def account(self) -> str:
        """What there was, for people."""
        books = self.books
        lags = ", ".join(f"{lag}: {count}" for lag, count in sorted(books.tokens_by_lag.items()))
        state = "within the lag bound" if books.is_balanced else "OUT OF BOUNDS"
        return (
            f"policy version {self._version}; {books.samples} samples, {books.tokens} tokens, "
            f"{state}\ntokens by lag  {lags}\nholders        {len(books.holders)}"
        )


def score_responses(queue: Queue, over: threading.Event) -> int:
    """The run's scorer, here in a thread; as well a fleet of its own. Gives how many it scored."""
    scorer, scored = queue.worker("scorer"), 0
    held: list[Grant] = []
    while held or not over.is_set():
        try:
            if held:
                writes = [
                    Write.score(grant, Score(reward_of(grant.response.token_ids), SCORER_VERSION))
                    for grant in held
                ]
                scored += sum(reply.is_done for reply in scorer.write(writes))
            held = scorer.lease_to_score(64, wait_s=LOOK_INTERVAL_S).grants
        except EbbtideError as error:
            print(f"scorer waits: {error}", file=sys.stderr)
            held = []
    return scored


def connect(url: str, run: str, create: Layout | None) -> Queue:
    """The run, once somebody has laid it out."""
    ends_at = time.monotonic() + RUN_LIMIT_S
    while True:
        try:
            return Queue.connect(url, run, create=create)
        except QueueUnavailable as error:
            if time.monotonic() > ends_at:
                raise SystemExit(f"{error}") from error
            time.sleep(LOOK_INTERVAL_S)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--redis", required=True, metavar="URL")
    parser.add_argument("--run", required=True)
    parser.add_argument("--steps", type=int, default=5, help="updates to make (5)")
    parser.add_argument("--groups-per-step", type=int, default=4, help="(4)")
    parser.add_argument("--group-size", type=int, default=8, help="samples of a prompt (8)")
    parser.add_argument("--max-tokens", type=int, default=200, help="of a response (200)")
    parser.add_argument("--max-lag", type=int, default=2, help="staleness bound (2)")
    parser.add_argument("--seed", type=int, default=7, help="chooses the prompts (7)")
    parser.add_argument("--nodes", type=int, default=1, help="that it runs on at first (1)")
    parser.add_argument("--hostfile", type=Path, metavar="FILE",
                        help="the nodes of its pool, one a line, read at every safe point; without "
                        "it no more come")  # fmt: skip
    parser.add_argument("--engine", action="append", default=[], metavar="URL",
                        help="an engine that no agent reports; may be repeated")  # fmt: skip
    parser.add_argument("--create", action="store_true", help="lay the run out if nobody has")
    parser.add_argument("--shards", type=int, default=1, help="with --create (1)")
    parser.add_argument("--score", action="store_true", help="with --create: a reward stage")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
