"""Work as the trainer asks for it: prompt groups, and how to sample from them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from . import _checks as checks
from .errors import InvalidInput
from .names import NUMBER_LIMIT, check_group_id, unit_id

#: Version of the wire layout of a prompt group.
WORK_SCHEMA = 1
#: Most samples in one prompt group.
GROUP_SIZE_LIMIT = 1024
#: Most bytes of opaque metadata on a prompt group or a score.
META_LIMIT_BYTES = 4096

_U16 = (1 << 16) - 1
_U32 = (1 << 32) - 1
_I64 = (-(1 << 63), (1 << 63) - 1)


class ResumePolicy(str, Enum):
    """How a unit with tokens goes on when the weights have changed since."""

    #: Go on under the newer weights; too old a first span makes the slot EXPIRED.
    CONTINUE_MIXED = "continue_mixed"
    #: Drop the tokens and start again when the version rose since the last token.
    RESTART_IF_NEWER = "restart_if_newer"
    #: Go on; spans that became too old get loss mask 0 and no longer count for lag.
    MASK_OLD = "mask_old"


class LogprobsMode(str, Enum):
    """Which log-probabilities are recorded."""

    #: Before temperature and top-p.
    RAW_LOGPROBS = "raw_logprobs"
    #: As sampled.
    PROCESSED_LOGPROBS = "processed_logprobs"


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How to sample. A closed schema, because engines drop unknown keys in silence.

    Raises:
        InvalidInput: a field is out of its range.
    """

    #: Most response tokens of one sample in all, over every holder that works on it.
    max_tokens: int = 1024
    #: Softmax temperature; 0 is greedy. 32 bits on the wire, as the other fractions.
    temperature: float = 1.0
    #: Nucleus probability mass, above 0 and at most 1.
    top_p: float = 1.0
    #: Most candidates; -1 for all.
    top_k: int = -1
    #: Least probability of a candidate relative to the best one.
    min_p: float = 0.0
    #: Token ids that end a sample; the id itself is part of the response.
    stop_token_ids: Sequence[int] = ()
    #: Seed of the engine's sampler; the slot is added to it, so that siblings differ.
    seed: int | None = None
    logprobs_mode: LogprobsMode = LogprobsMode.RAW_LOGPROBS
    #: Go on past the end-of-sequence token up to `max_tokens`.
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        where = "sampling."
        checks.whole(where + "max_tokens", self.max_tokens, 1, _U32)
        checks.whole(where + "top_k", self.top_k, *checks.I32)
        if self.seed is not None:
            checks.whole(where + "seed", self.seed, *_I64)
        stops = checks.token_ids(where + "stop_token_ids", self.stop_token_ids)
        object.__setattr__(self, "stop_token_ids", stops)
        mode = checks.word(where + "logprobs_mode", LogprobsMode, self.logprobs_mode)
        object.__setattr__(self, "logprobs_mode", mode)
        temperature = checks.real(where + "temperature", self.temperature)
        if not (math.isfinite(temperature) and temperature >= 0):
            raise InvalidInput(f"sampling.temperature must be at least 0, got {temperature}")
        top_p = checks.real(where + "top_p", self.top_p)
        if not 0 < top_p <= 1:
            raise InvalidInput(f"sampling.top_p must be above 0 and at most 1, got {top_p}")
        min_p = checks.real(where + "min_p", self.min_p)
        if not 0 <= min_p <= 1:
            raise InvalidInput(f"sampling.min_p must be 0 to 1, got {min_p}")

    def seed_of(self, slot: int) -> int | None:
        """The seed of one sample: siblings differ, and every holder of a unit uses the same."""
        if self.seed is None:
            return None
        return (self.seed + slot - _I64[0]) % (1 << 64) + _I64[0]


@dataclass(frozen=True, kw_only=True)
class PromptGroup:
    """The n samples of one prompt, as the trainer enqueues them: all or nothing, once by id.

    Raises:
        InvalidInput: a field is out of its range; the message names group, field and range.
    """

    #: Unique within the run and data-set epoch; letters, digits, `_` and `-`, at most 64.
    group_id: str
    #: Number of samples, n: 1 to 1024.
    group_size: int
    #: Final token ids with the chat template applied; never text.
    prompt_token_ids: Sequence[int]
    sampling: Sampling = field(default_factory=Sampling)
    #: The model that the engine must serve; empty accepts any.
    model_id: str = ""
    #: 32 bytes as hex; an agent whose tokenizer differs refuses the unit. Empty accepts any.
    tokenizer_fingerprint: str = ""
    #: The trainer's policy version when it enqueued.
    enqueue_policy_version: int = 0
    #: Oldest weights that may start this group.
    min_policy_version: int = 0
    #: Staleness bound L, in policy versions; 0 is strictly on-policy.
    max_lag: int = 0
    #: What happens to a partial when the weights change.
    resume_policy: ResumePolicy = ResumePolicy.CONTINUE_MIXED
    #: Fewest complete samples with which the group may seal when slots die or expire. `None`
    #: (default): one such slot fails the group.
    min_samples: int | None = None
    #: -2048 to 2047, lower comes first.
    priority: int = 0
    #: When slots that are not final become EXPIRED, ms on the Redis server's clock; `None`: never.
    expires_at_ms: int | None = None
    #: Model or engine faults after which a unit is DEAD, at least 1.
    max_attempts: int = 3
    #: Lost holders after which a unit is DEAD; 0 (default) is no limit.
    max_infra_attempts: int = 0
    #: Wall-clock limit of one lease in ms; 0 (default) is none: the guard is progress.
    max_leased_ms: int = 0
    #: Opaque to Ebbtide, at most 4096 bytes.
    meta: bytes = b""

    def __post_init__(self) -> None:
        check_group_id(self.group_id)
        where = f"prompt group {self.group_id}: "
        prompt = checks.token_ids(where + "prompt_token_ids", self.prompt_token_ids)
        if not prompt:
            raise InvalidInput(f"{where}prompt_token_ids must not be empty")
        object.__setattr__(self, "prompt_token_ids", prompt)
        policy = checks.word(where + "resume_policy", ResumePolicy, self.resume_policy)
        object.__setattr__(self, "resume_policy", policy)
        object.__setattr__(self, "meta", checks.blob(where + "meta", self.meta, META_LIMIT_BYTES))
        if not isinstance(self.sampling, Sampling):
            raise InvalidInput(f"{where}sampling must be a Sampling, got {self.sampling!r}")
        checks.text(where + "model_id", self.model_id, META_LIMIT_BYTES)
        checks.text(where + "tokenizer_fingerprint", self.tokenizer_fingerprint, META_LIMIT_BYTES)
        for name, low, high in (
            ("group_size", 1, GROUP_SIZE_LIMIT),
            ("enqueue_policy_version", 0, NUMBER_LIMIT - 1),
            ("min_policy_version", 0, NUMBER_LIMIT - 1),
            ("max_lag", 0, _U16),
            ("priority", -2048, 2047),
            ("max_attempts", 1, _U16),
            ("max_infra_attempts", 0, _U16),
            ("max_leased_ms", 0, _U32),
        ):
            checks.whole(where + name, getattr(self, name), low, high)
        if self.min_samples is not None:
            checks.whole(where + "min_samples", self.min_samples, 1, self.group_size)
        if self.expires_at_ms is not None:
            checks.whole(where + "expires_at_ms", self.expires_at_ms, 1, NUMBER_LIMIT - 1)

    def unit_ids(self) -> list[str]:
        """Every unit of the group, in the order of its slots."""
        return [unit_id(self.group_id, slot) for slot in range(self.group_size)]
