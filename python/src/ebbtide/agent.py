"""The node agent's socket, for workers that are more than an engine: environments, tools, scorers.

`NodeAgent` says to the agent what `Worker` says to the queue, and hears from it: on a notice the
agent tells which units may finish and which must be handed back, and hands back what a worker
leaves behind. Standard library only; the API is described by `agent/openapi.json`.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from . import _checks as checks
from ._socket import Call, Socket, quoted
from .errors import AgentUnavailable, EbbtideError, InvalidInput
from .events import NodeEvent, read_event
from .names import NUMBER_LIMIT, check_worker
from .samples import Finish, FinishReason, Score
from .work import LogprobsMode, PromptGroup, ResumePolicy, Sampling
from .worker import Stage, Waiting
from .writes import Answer

#: Where the chart puts the socket.
DEFAULT_SOCKET = "/run/ebbtide/agent.sock"
#: Units that one call names.
CALL_UNITS_LIMIT = 128
#: Signs of life come every five seconds; three missed ones mean that the stream is dead.
_SILENCE_LIMIT_S = 15.0
#: Pause before a stream of notices is opened again.
_LISTEN_AGAIN_S = 0.5


@dataclass(frozen=True)
class AgentGrant:
    """One unit that was leased through the agent."""

    #: The unit, `group_id.slot`.
    unit: str
    #: The token to write with.
    fencing_token: int
    stage: Stage
    #: Its place in the group.
    slot: int
    #: The seed of this sample; siblings differ.
    seed: int | None
    #: Response tokens that may still be made; with 0, complete it with finish `length`.
    tokens_left: int
    #: Faults in this stage so far.
    attempts: int
    #: The group that it belongs to, as far as workers need it.
    group: PromptGroup
    #: Tokens that are stored, to go on from; the whole response to a scorer.
    token_ids: list[int]
    #: One log-probability for each of them.
    logprobs: list[float]
    #: Weights of the last of them.
    weights_version: int | None
    #: How the response ended; only a scorer is told.
    finish: Finish | None

    @property
    def key(self) -> tuple[str, int]:
        """Unit and fencing token: what the agent's events name."""
        return self.unit, self.fencing_token


@dataclass(frozen=True)
class AgentLease:
    """What one lease brought."""

    grants: list[AgentGrant]
    #: The run's policy version.
    policy_version: int
    #: A unit that is neither written nor renewed for this long goes back, in seconds.
    lease_s: float
    #: How often to renew, in seconds.
    renew_every_s: float


@dataclass(frozen=True)
class Tokens:
    """New tokens of one unit."""

    #: Index of the first one within the response.
    offset: int
    token_ids: Sequence[int]
    #: One log-probability for each token.
    logprobs: Sequence[float]
    #: The weights that made them; `None` (default) is that of the lease.
    weights_version: int | None = None

    def __post_init__(self) -> None:
        checks.whole("offset", self.offset, 0, (1 << 32) - 1)
        object.__setattr__(self, "token_ids", checks.token_ids("token_ids", self.token_ids))
        logprobs = [checks.real("logprobs", value) for value in self.logprobs]
        object.__setattr__(self, "logprobs", logprobs)
        if len(logprobs) != len(self.token_ids):
            raise InvalidInput(
                f"logprobs must have one number for each token, got {len(logprobs)} for "
                f"{len(self.token_ids)} tokens"
            )

    def as_words(self) -> dict[str, Any]:
        """As the agent reads it; a logarithm that is no number in JSON is null."""
        finite = [value if abs(value) < float("inf") else None for value in self.logprobs]
        words: dict[str, Any] = {
            "offset": self.offset, "token_ids": self.token_ids, "logprobs": finite,
        }  # fmt: skip
        if self.weights_version is not None:
            words["weights_version"] = self.weights_version
        return words


@dataclass(frozen=True)
class AgentReply:
    """What became of one unit in a call."""

    unit: str
    answer: Answer
    #: Tokens that are stored; only with `Answer.OFFSET`.
    stored_tokens: int | None
    #: Why there was no answer; only with `Answer.UNANSWERED`.
    problem: str | None
    #: The unit has to be handed back within this time, in seconds, if it has to.
    release_in_s: float | None

    @property
    def is_done(self) -> bool:
        """Whether what was asked for holds now, by this call or an earlier one."""
        return self.answer in (Answer.OK, Answer.ALREADY_DONE)


class NodeAgent:
    """One worker process at the agent of its node. Threads may share it.

    Args:
        worker: the name of this process; another one for each, also after a restart.
        socket: the path of the agent's socket.
        engine: what makes the tokens, such as `my-agent/1.4`; recorded with them.
        retry_for_s: for how long a call that gets no answer is sent again, in seconds. An agent
            that is replaced is away for a few seconds.
    """

    def __init__(
        self,
        worker: str,
        socket: str = DEFAULT_SOCKET,
        *,
        engine: str | None = None,
        retry_for_s: float = 10.0,
    ) -> None:
        self.worker = check_worker(worker)
        self._engine = engine
        self._socket = Socket(socket, retry_for_s)

    def lease(
        self,
        limit: int,
        *,
        weights_version: int | None = None,
        stage: Stage = Stage.GENERATE,
        wait_s: float = 0.0,
    ) -> AgentLease:
        """Leases up to `limit` units; none when there are none that this worker may take.

        Args:
            limit: 1 to 128, which is also what one worker may hold.
            weights_version: the policy version of the weights that this worker serves; needed to
                generate.
            stage: generate responses, or score them.
            wait_s: how long to wait for a first unit, at most 30 seconds.

        Raises:
            LeaseGateClosed: the node is about to go, or leases nothing for another reason.
            LimitReached: this worker holds as much as one may.
            AgentUnavailable, QueueUnavailable: no answer; call again.
        """
        body: dict[str, Any] = {
            "worker": self.worker,
            "stage": stage.value,
            "limit": checks.whole("limit", limit, 1, CALL_UNITS_LIMIT),
            "wait_ms": min(checks.seconds_as_ms("wait_s", wait_s), 30_000),
            # Repeated under this name, a call is granted the same units.
            "request_id": uuid.uuid4().hex,
        }
        if weights_version is not None:
            low, high = 0, NUMBER_LIMIT - 1
            body["weights_version"] = checks.whole("weights_version", weights_version, low, high)
        if self._engine is not None:
            body["engine"] = self._engine
        answer = self._socket.call(Call("POST", "/v1/lease", body, wait_s=wait_s))
        terms = answer["terms"]
        return AgentLease(
            grants=[_read_grant(words, stage) for words in answer["grants"]],
            policy_version=answer["policy_version"],
            lease_s=terms["lease_ms"] / 1000,
            renew_every_s=terms["renew_every_ms"] / 1000,
        )

    def append(self, grant: AgentGrant, tokens: Tokens) -> AgentReply:
        """Stores tokens; once this returns with `is_done`, the loss of the node costs none."""
        return self._one("/v1/append", grant, tokens.as_words())

    def complete(
        self, grant: AgentGrant, finish: Finish, tokens: Tokens | None = None
    ) -> AgentReply:
        """Ends the response, with the tokens that are not stored yet."""
        words: dict[str, Any] = {"reason": finish.reason.value}
        if finish.stop_reason is not None:
            words["stop_reason"] = finish.stop_reason
        return self._one("/v1/complete", grant, {"finish": words} | _words_of(tokens))

    def score(self, grant: AgentGrant, score: Score) -> AgentReply:
        """Ends the scoring; the metadata must be text in UTF-8."""
        try:
            metadata = score.metadata.decode()
        except UnicodeDecodeError as error:
            raise InvalidInput(f"score.metadata must be text in UTF-8: {error}") from None
        words = {"value": score.value, "scorer_version": score.scorer_version}
        return self._one("/v1/score", grant, words | {"metadata": metadata})

    def hand_back(
        self, grant: AgentGrant, tokens: Tokens | None = None, *, cause: str = "engine"
    ) -> AgentReply:
        """Gives the unit back with its tokens; never an attempt. `cause` is `engine` or `weights`;
        during a drain the agent knows it better."""
        return self._one("/v1/hand-back", grant, {"cause": cause} | _words_of(tokens))

    def fail(self, grant: AgentGrant, problem: str, tokens: Tokens | None = None) -> AgentReply:
        """Gives the unit back because of a fault while it was worked on: an attempt."""
        return self._one("/v1/fail", grant, {"problem": problem} | _words_of(tokens))

    def renew(
        self, grants: Iterable[AgentGrant], *, waiting: Waiting = Waiting.NOTHING
    ) -> list[AgentReply]:
        """Says that these units are still worked on, and what they wait for. Every unit has to be
        named: one that is not goes back after the lease time."""
        if waiting is Waiting.ENGINE_PAUSE:
            raise InvalidInput("waiting must be NOTHING or ENVIRONMENT: the engine is your own")
        held = list(grants)
        replies: list[AgentReply] = []
        for start in range(0, len(held), CALL_UNITS_LIMIT):
            units = [
                _named(grant, {"waiting": waiting.name.lower()})
                for grant in held[start : start + CALL_UNITS_LIMIT]
            ]
            replies += self._batch("/v1/renew", units)
        return replies

    def notices(self, stop: threading.Event | None = None) -> Iterator[NodeEvent]:
        """What happens to the node and to this worker's units, for as long as it is listened to.

        A stream that breaks is opened again and begins with everything that stands, so that
        nothing is missed. Ends within five seconds after `stop` is set.

        Raises:
            LimitReached: this worker listens several times already.
        """
        path = f"/v1/notices?worker={quoted(self.worker)}"
        stop = stop or threading.Event()
        while not stop.is_set():
            try:
                for event in self._socket.events(path, _SILENCE_LIMIT_S):
                    if stop.is_set():
                        return
                    if event is not None:
                        yield read_event(*event)
            except AgentUnavailable:
                pass
            stop.wait(_LISTEN_AGAIN_S)

    def status(self) -> dict[str, Any]:
        """How the node stands, and this worker's units, as `Status` of the API."""
        path = f"/v1/status?worker={quoted(self.worker)}"
        answer: dict[str, Any] = self._socket.call(Call("GET", path))
        return answer

    def _one(self, path: str, grant: AgentGrant, words: dict[str, Any]) -> AgentReply:
        return self._batch(path, [_named(grant, words)])[0]

    def _batch(self, path: str, units: list[dict[str, Any]]) -> list[AgentReply]:
        body = {"worker": self.worker, "units": units}
        answer = self._socket.call(Call("POST", path, body))
        return [_read_reply(words) for words in answer["replies"]]


def _named(grant: AgentGrant, words: dict[str, Any]) -> dict[str, Any]:
    return {"unit": grant.unit, "fencing_token": grant.fencing_token} | words


def _words_of(tokens: Tokens | None) -> dict[str, Any]:
    return {} if tokens is None or not tokens.token_ids else tokens.as_words()


def _read_grant(words: dict[str, Any], stage: Stage) -> AgentGrant:
    group, partial, finish = words["group"], words["partial"], words["finish"]
    sampling = dict(group["sampling"])
    sampling["logprobs_mode"] = LogprobsMode(sampling["logprobs_mode"])
    low = float("-inf")
    return AgentGrant(
        unit=words["unit"],
        fencing_token=words["fencing_token"],
        stage=stage,
        slot=words["slot"],
        seed=words["seed"],
        tokens_left=words["tokens_left"],
        attempts=words["attempts"],
        group=PromptGroup(
            group_id=group["group_id"],
            group_size=group["group_size"],
            prompt_token_ids=group["prompt_token_ids"],
            sampling=Sampling(**sampling),
            model_id=group["model_id"],
            tokenizer_fingerprint=group["tokenizer_fingerprint"],
            min_policy_version=group["min_policy_version"],
            max_lag=group["max_lag"],
            resume_policy=ResumePolicy(group["resume_policy"]),
            expires_at_ms=group["expires_at_ms"],
            max_leased_ms=group["max_leased_ms"],
            meta=bytes.fromhex(group["meta_hex"]),
        ),
        token_ids=partial["token_ids"],
        logprobs=[low if value is None else float(value) for value in partial["logprobs"]],
        weights_version=partial["weights_version"],
        finish=Finish(FinishReason(finish["reason"]), finish["stop_reason"]) if finish else None,
    )


def _read_reply(words: dict[str, Any]) -> AgentReply:
    release_in_ms = words.get("release_in_ms")
    return AgentReply(
        unit=words["unit"],
        answer=Answer(words["reply"]),
        stored_tokens=words.get("stored_tokens"),
        problem=words.get("problem"),
        release_in_s=None if release_in_ms is None else release_in_ms / 1000,
    )


