"""A worker of your own: leases units, generates on one engine, and gives tokens back as it goes.

Where an agent streams, this worker generates slice by slice, as a loop with tools would: after each
slice the tokens are in the queue, and whoever has the unit next goes on from there. It leases
straight from the queue, so it has to look by itself whether its node is drained: then it hands back
everything after the slice that is under way, and leases again once the drain is taken back.

    ebbtide engine-emulator --listen 127.0.0.1:8000 --weights-label 0
    python custom_worker.py --redis redis://127.0.0.1:6379 --run mine --node n1 \\
        --engine http://127.0.0.1:8000
"""

from __future__ import annotations

import argparse
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import engines

from ebbtide import Answer, Chunk, EbbtideError, Finish, FinishReason, Grant, Queue, Worker

#: Tokens of one slice: what is lost at most when this worker is killed.
SLICE_TOKENS = 64
#: How long a lease lasts without renewal, in seconds; renewed three times as often.
LEASE_S = 15.0
#: Time between two looks for a drain of the node, in seconds.
LOOK_S = 1.0


class UnitLost(Exception):
    """Another holder has the unit, or its group has ended."""


def main() -> None:
    arguments = parse_arguments()
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    queue = Queue.connect(arguments.redis, arguments.run)
    worker = queue.worker(arguments.node, lease_s=LEASE_S)
    print(f"working as {worker.holder}", flush=True)
    Work(queue, worker, arguments.engine, stop, arguments.streams).run()
    print("everything is handed back", flush=True)


class Work:
    """The units that are in hand, each in a thread of its own."""

    def __init__(
        self, queue: Queue, worker: Worker, engine: str, stop: threading.Event, streams: int
    ) -> None:
        self._queue = queue
        self._worker = worker
        self._engine = engine
        self._stop = stop
        self._streams = streams
        # Nothing is leased before the first look.
        self._drain: str | None = "not looked yet"
        self._held: dict[str, Grant] = {}
        self._changed = threading.Condition()

    def run(self) -> None:
        """Leases and generates until it is told to stop; then hands everything back."""
        for task in (self._renew, self._watch):
            threading.Thread(target=task, daemon=True).start()
        with ThreadPoolExecutor(self._streams) as threads:
            while not self._stop.is_set():
                for grant in self._lease():
                    threads.submit(self._carry_out, grant)

    def _lease(self) -> list[Grant]:
        with self._changed:
            has_room = self._changed.wait_for(lambda: len(self._held) < self._streams, 0.5)
            room = self._streams - len(self._held)
        if not has_room:
            return []
        if self._drain is not None:
            self._stop.wait(0.1)
            return []
        try:
            version = engines.weights_version(self._engine)
            if version is None:
                self._stop.wait(0.5)
                return []
            grants = self._worker.lease(room, weight_version=version, wait_s=0.5).grants
        except (EbbtideError, engines.EngineAway) as error:
            print(f"waiting: {error}", flush=True)
            self._stop.wait(0.5)
            return []
        with self._changed:
            self._held.update((grant.unit, grant) for grant in grants)
        return grants

    def _watch(self) -> None:
        """Looks whether the node is drained; what was seen last holds while Redis is away."""
        while True:
            try:
                drain = self._queue.drain_of(self._worker.holder.node)
                reason = drain.reason if drain else None
                if reason != self._drain:
                    print(f"drain of the node: {reason}", flush=True)
                self._drain = reason
            except EbbtideError as error:
                print(f"drain not read: {error}", flush=True)
            if self._stop.wait(LOOK_S):
                return

    def _renew(self) -> None:
        while not self._stop.wait(LEASE_S / 3):
            with self._changed:
                held = list(self._held.values())
            try:
                lost = self._worker.renew(held) if held else []
            except EbbtideError as error:
                print(f"not renewed: {error}", flush=True)
                continue
            with self._changed:
                for unit in lost:
                    self._held.pop(unit, None)

    def _carry_out(self, grant: Grant) -> None:
        try:
            self._generate(grant)
        except UnitLost as error:
            print(f"{grant.unit} is lost: {error}", flush=True)
        except engines.EngineAway as error:
            print(f"{grant.unit} goes back: {error}", flush=True)
            self._worker.hand_back(grant, "engine")
            self._stop.wait(0.5)
        finally:
            with self._changed:
                self._held.pop(grant.unit, None)
                self._changed.notify_all()

    def _generate(self, grant: Grant) -> None:
        token_ids = list(grant.response.token_ids)
        finish: Finish | None = None
        while finish is None:
            left = grant.group.sampling.max_tokens - len(token_ids)
            if left == 0:
                finish = Finish(FinishReason.LENGTH)
                self._write(grant, finish, [])
                break
            if self._stop.is_set() or self._drain is not None:
                self._worker.hand_back(grant, "notice" if self._drain == "notice" else "drain")
                return
            if grant.unit not in self._held:
                raise UnitLost("its lease has ended")
            started_at_ms = now_ms()
            made = engines.generate(
                self._engine,
                f"{grant.unit}.{grant.fencing_token}.{len(token_ids)}",
                [*grant.group.prompt_token_ids, *token_ids],
                sampling_words(grant, min(left, SLICE_TOKENS)),
            )
            if made.finish == "abort":
                raise engines.EngineAway("the engine aborted it")
            if made.finish == "stop":
                finish = Finish(FinishReason.STOP, made.stop_reason)
            self._write(grant, finish, chunks(made, len(token_ids), started_at_ms))
            token_ids += made.token_ids

    def _write(self, grant: Grant, finish: Finish | None, tail: list[Chunk]) -> None:
        """Stores a slice; an unanswered write is repeated for as long as the lease lasts."""
        while True:
            if finish is None:
                reply = self._worker.append(grant, tail)
            else:
                reply = self._worker.complete(grant, finish, tail)
            if reply.is_done:
                return
            if reply.answer is not Answer.UNANSWERED or grant.unit not in self._held:
                raise UnitLost(f"the queue says {reply.answer.value}")


def chunks(made: engines.Slice, offset: int, started_at_ms: int) -> list[Chunk]:
    """The tokens of a slice, one chunk for each weight version."""
    made_chunks, ended_at_ms, place = [], max(started_at_ms, now_ms()), 0
    for version, length in made.spans:
        part = slice(place, place + length)
        made_chunks.append(
            Chunk(
                offset=offset + place,
                weight_version=version,
                token_ids=made.token_ids[part],
                logprobs=made.logprobs[part],
                engine="vllm",
                started_at_ms=started_at_ms,
                ended_at_ms=ended_at_ms,
            )
        )
        place += length
    return made_chunks


def sampling_words(grant: Grant, max_tokens: int) -> dict[str, object]:
    """The group's sampling in the engine's words."""
    sampling = grant.group.sampling
    return {
        "max_tokens": max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "stop_token_ids": list(sampling.stop_token_ids),
        "seed": grant.seed,
        "ignore_eos": sampling.ignore_eos,
        "logprobs": 0,
    }


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--redis", required=True, metavar="URL")
    parser.add_argument("--run", required=True)
    parser.add_argument("--node", required=True, help="the node's name, as its agent reports it")
    parser.add_argument("--engine", required=True, metavar="URL")
    parser.add_argument("--streams", type=int, default=8, help="units at a time (8)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
