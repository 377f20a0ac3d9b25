"""A multi-turn worker of your own at the node agent's socket, with an environment between turns.

Each unit is an episode: the engine writes a turn, the environment looks at it, and so on, until the
environment is satisfied. The agent tells when the node is about to go: what may finish goes on,
what must go is handed back with the tokens of the turn that was just made.

    ebbtide engine-emulator --listen 127.0.0.1:8000 --weights-label 0
    ebbtide agent --policy mine.yaml --node n1 --no-kubernetes --socket /run/ebbtide/agent.sock
    python socket_worker.py --socket /run/ebbtide/agent.sock --engine http://127.0.0.1:8000
"""

from __future__ import annotations

import argparse
import os
import signal
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import engines

from ebbtide import (
    DEFAULT_SOCKET,
    AgentGrant,
    AgentReply,
    Answer,
    EbbtideError,
    Finish,
    FinishReason,
    Keep,
    LeaseGateClosed,
    NodeAgent,
    NodeNotice,
    Release,
    Reopened,
    Tokens,
    Waiting,
)

#: Most tokens of one turn: it must end well within the two seconds for the tail.
TURN_TOKENS = 16


class UnitLost(Exception):
    """Another holder has the unit, or its group has ended."""


def main() -> None:
    arguments = parse_arguments()
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    name = f"socket-worker-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    agent = NodeAgent(name, arguments.socket, engine="socket-worker/1")
    print(f"working as {name}", flush=True)
    Work(agent, arguments.engine, stop, arguments.streams, arguments.thinking_s).run()
    print("everything is handed back", flush=True)


class Environment:
    """Stands for a tool or a simulator: looks at a turn for a while, and says whether it is
    enough."""

    def __init__(self, thinking_s: float, stop: threading.Event) -> None:
        self._thinking_s = thinking_s
        self._stop = stop

    def is_satisfied(
        self, turns: int, token_ids: list[int], is_given_up: Callable[[], bool]
    ) -> bool:
        ends_at = time.monotonic() + self._thinking_s
        while time.monotonic() < ends_at:
            if is_given_up():
                return False
            self._stop.wait(0.02)
        return turns >= 3 and sum(token_ids) % 3 == 0


class Work:
    """The units that are in hand, each in a thread of its own."""

    def __init__(
        self, agent: NodeAgent, engine: str, stop: threading.Event, streams: int, thinking_s: float
    ) -> None:
        self._agent = agent
        self._engine = engine
        self._stop = stop
        self._streams = streams
        self._environment = Environment(thinking_s, stop)
        self._held: dict[tuple[str, int], AgentGrant] = {}
        self._waiting: set[tuple[str, int]] = set()
        self._released: set[tuple[str, int]] = set()
        self._changed = threading.Condition()

    def run(self) -> None:
        """Leases and generates until it is told to stop; then hands everything back."""
        for loop in (self._renew, self._listen):
            threading.Thread(target=loop, daemon=True).start()
        with ThreadPoolExecutor(self._streams) as threads:
            while not self._stop.is_set():
                for grant in self._lease():
                    threads.submit(self._carry_out, grant)

    def _lease(self) -> list[AgentGrant]:
        with self._changed:
            has_room = self._changed.wait_for(lambda: len(self._held) < self._streams, 0.5)
            room = self._streams - len(self._held)
        if not has_room:
            return []
        try:
            version = engines.weights_version(self._engine)
            if version is None:
                self._stop.wait(0.5)
                return []
            lease = self._agent.lease(room, weights_version=version, wait_s=0.5)
        except LeaseGateClosed:
            self._stop.wait(0.5)
            return []
        except (EbbtideError, engines.EngineAway) as error:
            print(f"waiting: {error}", flush=True)
            self._stop.wait(0.5)
            return []
        with self._changed:
            self._held.update((grant.key, grant) for grant in lease.grants)
        return lease.grants

    def _renew(self) -> None:
        """Names every unit, each second: what is not named goes back after the lease time."""
        while not self._stop.wait(1.0):
            with self._changed:
                waiting = [self._held[key] for key in self._waiting if key in self._held]
                working = [grant for key, grant in self._held.items() if key not in self._waiting]
            try:
                replies = self._agent.renew(waiting, waiting=Waiting.ENVIRONMENT)
                replies += self._agent.renew(working)
            except EbbtideError as error:
                print(f"not renewed: {error}", flush=True)
                continue
            lost = {reply.unit for reply in replies if reply.answer is Answer.FENCED}
            self._forget(lambda key: key[0] in lost)

    def _listen(self) -> None:
        """Honours what the agent tells. `Keep` needs nothing: the episode just goes on."""
        for event in self._agent.notices(self._stop):
            if isinstance(event, Release):
                print(f"{len(event.units)} units go back: {event.reason}", flush=True)
                with self._changed:
                    self._released |= event.units
            elif isinstance(event, (NodeNotice, Keep, Reopened)):
                print(f"told: {event}", flush=True)

    def _carry_out(self, grant: AgentGrant) -> None:
        try:
            self._play(grant)
        except UnitLost as error:
            print(f"{grant.unit} is lost: {error}", flush=True)
        except engines.EngineAway as error:
            print(f"{grant.unit} goes back: {error}", flush=True)
            self._agent.hand_back(grant)
        except EbbtideError as error:
            # Not named any more, it goes back by itself, as it is stored.
            print(f"{grant.unit} is left to the agent: {error}", flush=True)
        finally:
            self._forget(lambda key: key == grant.key)

    def _play(self, grant: AgentGrant) -> None:
        """One episode: turns of the engine, and the environment between them."""
        made, turns = list(grant.token_ids), 0
        while True:
            left = grant.group.sampling.max_tokens - len(made)
            if left == 0:
                self._check(self._agent.complete(grant, Finish(FinishReason.LENGTH)))
                return
            if self._must_go(grant):
                self._check(self._agent.hand_back(grant))
                return
            turn = self._turn(grant, made, min(left, TURN_TOKENS))
            *before, tokens = tokens_of(turn, len(made))
            made, turns = made + turn.token_ids, turns + 1
            for earlier in before:
                self._check(self._agent.append(grant, earlier))
            if turn.finish == "stop":
                finish = Finish(FinishReason.STOP, turn.stop_reason)
                self._check(self._agent.complete(grant, finish, tokens))
                return
            if self._must_go(grant):
                # The tail of the unit: the turn that was under way.
                self._check(self._agent.hand_back(grant, tokens))
                return
            self._check(self._agent.append(grant, tokens))
            if self._ask_environment(grant, turns, turn.token_ids):
                self._check(self._agent.complete(grant, Finish(FinishReason.STOP)))
                return

    def _turn(self, grant: AgentGrant, made: list[int], most: int) -> engines.Slice:
        sampling = grant.group.sampling
        turn = engines.generate(
            self._engine,
            f"{grant.unit}.{grant.fencing_token}.{len(made)}",
            [*grant.group.prompt_token_ids, *made],
            {
                "max_tokens": most,
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "top_k": sampling.top_k,
                "min_p": sampling.min_p,
                "stop_token_ids": list(sampling.stop_token_ids),
                "seed": grant.seed,
                "ignore_eos": sampling.ignore_eos,
                "logprobs": 0,
            },
        )
        if turn.finish == "abort" or not turn.spans:
            raise engines.EngineAway("the engine broke it off")
        return turn

    def _ask_environment(self, grant: AgentGrant, turns: int, token_ids: list[int]) -> bool:
        with self._changed:
            self._waiting.add(grant.key)
        try:
            self._agent.renew([grant], waiting=Waiting.ENVIRONMENT)
            return self._environment.is_satisfied(
                turns, token_ids, lambda: self._must_go(grant)
            )
        finally:
            with self._changed:
                self._waiting.discard(grant.key)

    def _must_go(self, grant: AgentGrant) -> bool:
        with self._changed:
            if grant.key not in self._held:
                raise UnitLost("its lease has ended")
            return self._stop.is_set() or grant.key in self._released

    def _check(self, reply: AgentReply) -> None:
        if reply.answer is Answer.UNANSWERED:
            # The agent keeps the lease meanwhile; what was not stored is made again.
            raise engines.EngineAway(f"the queue gives no answer: {reply.problem}")
        if not reply.is_done:
            raise UnitLost(f"the queue says {reply.answer.value}")

    def _forget(self, is_gone: Callable[[tuple[str, int]], bool]) -> None:
        with self._changed:
            for key in [key for key in self._held if is_gone(key)]:
                del self._held[key]
                self._released.discard(key)
            self._changed.notify_all()


def tokens_of(turn: engines.Slice, offset: int) -> list[Tokens]:
    """The tokens of a turn, in pieces of one weights version each."""
    pieces, place = [], 0
    for version, length in turn.spans:
        part = slice(place, place + length)
        pieces.append(
            Tokens(offset + place, turn.token_ids[part], turn.logprobs[part], version)
        )
        place += length
    return pieces


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--socket", default=DEFAULT_SOCKET, metavar="PATH")
    parser.add_argument("--engine", required=True, metavar="URL")
    parser.add_argument("--streams", type=int, default=8, help="units at a time (8)")
    parser.add_argument(
        "--thinking-s", type=float, default=0.02, help="what the environment takes for a turn"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
