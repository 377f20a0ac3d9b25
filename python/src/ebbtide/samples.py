"""Work as it comes back: chunks of tokens in transfer, and the samples that they become."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from . import _checks as checks
from .errors import InvalidInput
from .names import NUMBER_LIMIT, split_unit_id
from .work import META_LIMIT_BYTES, PromptGroup, ResumePolicy

#: Most tokens of one chunk: 4 MiB of a call at five bytes a token, the fewest that one takes.
CHUNK_TOKENS_LIMIT = (4 << 20) // 5

_U32 = (1 << 32) - 1


class FabricVerdict(str, Enum):
    """Whether a node's expert traffic takes the path that the policy asks for."""

    #: The policy asks for no fabric on this node.
    NOT_APPLICABLE = "not_applicable"
    PASSED = "passed"
    FAILED = "failed"
    UNKNOWN = "unknown"


class FinishReason(str, Enum):
    """Why a sample ended. An aborted or failed generation is never a finish."""

    #: A stop token or the end of the sequence.
    STOP = "stop"
    #: The token limit.
    LENGTH = "length"
    #: The engine's repetition detector.
    REPETITION = "repetition"


@dataclass(frozen=True)
class Finish:
    """The end of a sample as its holder reports it."""

    reason: FinishReason
    #: What exactly stopped it: a token id, a text, or nothing of the kind.
    stop_reason: int | str | None = None

    def __post_init__(self) -> None:
        where = "finish (a unit whose generation broke off is handed back instead)"
        object.__setattr__(self, "reason", checks.word(where, FinishReason, self.reason))
        if isinstance(self.stop_reason, str):
            checks.text("stop_reason", self.stop_reason, META_LIMIT_BYTES)
        elif self.stop_reason is not None:
            checks.whole("stop_reason", self.stop_reason, *checks.I32)


@dataclass(frozen=True)
class Score:
    """What a scorer says of a finished response."""

    #: The reward.
    value: float
    #: Which scorer, in which version.
    scorer_version: str
    #: Opaque to Ebbtide, at most 4096 bytes.
    metadata: bytes = b""

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", checks.real("score.value", self.value))
        checks.text("score.scorer_version", self.scorer_version, META_LIMIT_BYTES)
        metadata = checks.blob("score.metadata", self.metadata, META_LIMIT_BYTES)
        object.__setattr__(self, "metadata", metadata)


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """A run of tokens in transfer, made under one weight version.

    A chunk that was sent once must never be changed: when its reply was lost, the queue knows the
    repetition by being equal.

    Raises:
        InvalidInput: a field is out of its range.
    """

    #: Index of the first token within the response.
    offset: int
    #: The policy version whose weights made every token of the chunk.
    weight_version: int
    token_ids: Sequence[int]
    #: One log-probability for each token; 32 bits on the wire.
    logprobs: Sequence[float]
    #: Engine and version, such as `vllm/0.32.0`.
    engine: str
    fabric: FabricVerdict = FabricVerdict.NOT_APPLICABLE
    #: When the first and the last token arrived, ms on the worker's clock.
    started_at_ms: int
    ended_at_ms: int

    def __post_init__(self) -> None:
        where = f"chunk at {self.offset}: "
        checks.whole("chunk offset", self.offset, 0, _U32)
        checks.whole(where + "weight_version", self.weight_version, 0, NUMBER_LIMIT - 1)
        object.__setattr__(self, "token_ids", checks.token_ids(where + "token_ids", self.token_ids))
        logprobs = [checks.real(where + "logprobs", value) for value in self.logprobs]
        object.__setattr__(self, "logprobs", logprobs)
        fabric = checks.word(where + "fabric", FabricVerdict, self.fabric)
        object.__setattr__(self, "fabric", fabric)
        checks.text(where + "engine", self.engine, 256)
        checks.whole(where + "started_at_ms", self.started_at_ms, 0, NUMBER_LIMIT - 1)
        checks.whole(where + "ended_at_ms", self.ended_at_ms, self.started_at_ms, NUMBER_LIMIT - 1)
        if len(self.token_ids) != len(logprobs):
            raise InvalidInput(
                f"{where}needs one logprob for each token, got {len(logprobs)} for "
                f"{len(self.token_ids)} tokens"
            )
        if len(self.token_ids) > CHUNK_TOKENS_LIMIT:
            raise InvalidInput(
                f"{where}must have at most {CHUNK_TOKENS_LIMIT} tokens, got "
                f"{len(self.token_ids)}; send several chunks"
            )

    @property
    def end(self) -> int:
        """Index one past the last token within the response."""
        return self.offset + len(self.token_ids)


@dataclass(frozen=True)
class StoredChunk:
    """A chunk as the queue has it: with the lease under which it was written."""

    offset: int
    weight_version: int
    token_ids: list[int]
    logprobs: list[float]
    holder: str
    fencing_token: int
    engine: str
    fabric: FabricVerdict
    started_at_ms: int
    ended_at_ms: int


@dataclass(frozen=True)
class Segment:
    """A run of tokens made by one holder under one lease and one weight version."""

    #: Tokens `start` up to, not including, `end` of the response.
    start: int
    end: int
    weight_version: int
    holder: str
    fencing_token: int
    engine: str
    fabric: FabricVerdict
    #: When its first and its last token arrived, ms on the holder's clock.
    started_at_ms: int
    ended_at_ms: int


@dataclass(frozen=True)
class Response:
    """Stored tokens of a unit, whole or partial."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    #: Contiguous, from 0 to the last token; versions never fall along them.
    segments: list[Segment] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def policy_versions(self) -> tuple[int, int] | None:
        """Weights of the first and of the last token; `None` without tokens."""
        if not self.segments:
            return None
        return self.segments[0].weight_version, self.segments[-1].weight_version

    def loss_mask(self, policy: ResumePolicy, current_version: int, max_lag: int) -> list[int]:
        """1 for each token that counts in the loss.

        Only `ResumePolicy.MASK_OLD` masks: tokens that lag `current_version` by more than
        `max_lag`.
        """
        mask: list[int] = []
        for segment in self.segments:
            is_old = current_version - segment.weight_version > max_lag
            counts = 0 if policy is ResumePolicy.MASK_OLD and is_old else 1
            mask += [counts] * (segment.end - segment.start)
        return mask


@dataclass(frozen=True)
class Sample:
    """One finished completion, with everything that made it."""

    #: The slot that the sample fills, as its unit id.
    unit: str
    response: Response
    #: 1 for each token that counts in the loss, at the version when the group was taken.
    loss_mask: list[int]
    finish: Finish
    #: `None` in a run without a reward stage.
    score: Score | None
    #: Model, engine and scorer faults on the way.
    attempts: int
    #: Holders lost on the way.
    infra_attempts: int
    #: Times it was handed back on the way.
    hand_backs: int

    @property
    def slot(self) -> int:
        """Its place in the group."""
        return split_unit_id(self.unit)[1]

    @property
    def token_ids(self) -> list[int]:
        """The whole response."""
        return self.response.token_ids

    @property
    def logprobs(self) -> list[float]:
        """One log-probability for each token of the response."""
        return self.response.logprobs

    @property
    def segments(self) -> list[Segment]:
        """Who made which tokens, under which weights."""
        return self.response.segments


@dataclass(frozen=True)
class SealedGroup:
    """A sealed group in the hands of a trainer, until it acknowledges it."""

    #: The group as it was enqueued.
    group: PromptGroup
    #: Its complete samples, in the order of their slots.
    samples: list[Sample]
    #: Slots without a sample; only of a group with `min_samples`.
    missing_slots: list[int]
    #: Whether it was handed to this consumer before and not acknowledged.
    is_redelivered: bool
    #: The policy version when it was taken.
    taken_at_version: int

    @property
    def group_id(self) -> str:
        """Its id."""
        return self.group.group_id


def join(chunks: Iterable[StoredChunk]) -> Response:
    """One response from its chunks; chunks that differ only in time become one segment.

    Raises:
        InvalidInput: the chunks do not follow one another from token 0.
    """
    response = Response()
    for chunk in chunks:
        if chunk.offset != len(response):
            raise InvalidInput(f"token {len(response)} must come next, got {chunk.offset}")
        response.token_ids.extend(chunk.token_ids)
        response.logprobs.extend(chunk.logprobs)
        segment = Segment(
            start=chunk.offset,
            end=len(response),
            weight_version=chunk.weight_version,
            holder=chunk.holder,
            fencing_token=chunk.fencing_token,
            engine=chunk.engine,
            fabric=chunk.fabric,
            started_at_ms=chunk.started_at_ms,
            ended_at_ms=chunk.ended_at_ms,
        )
        last = response.segments[-1] if response.segments else None
        if last is not None and segment == replace(
            segment,
            weight_version=last.weight_version,
            holder=last.holder,
            fencing_token=last.fencing_token,
            engine=last.engine,
            fabric=last.fabric,
        ):
            segment = replace(segment, start=last.start, started_at_ms=last.started_at_ms)
            response.segments.pop()
        response.segments.append(segment)
    return response
