"""Writes to leased units, and their answers."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from . import _checks as checks
from . import codec
from .errors import EbbtideError, InvalidInput, ProtocolError
from .samples import Chunk, Finish, Score

#: Units that one call names, and bytes that it carries.
_CALL_UNITS_LIMIT, _CALL_BYTES_LIMIT = 1000, 4 << 20
#: Bytes around the tokens of one chunk, generously.
_CHUNK_OVERHEAD_BYTES = 512
#: Longest text of a fault, in bytes.
_REASON_LIMIT_BYTES = 4096


class Answer(Enum):
    """What the queue answers to one write."""

    #: Done, or done before by this very write.
    OK = "OK"
    #: The unit or group has ended, or this write was done before.
    ALREADY_DONE = "ALREADY_DONE"
    #: Another holder or a newer token has the unit; nothing changed. Break the unit off.
    FENCED = "FENCED"
    #: The tokens do not begin where the stored ones end, or there are too many; nothing changed.
    OFFSET = "OFFSET"
    #: No such unit.
    UNKNOWN = "UNKNOWN"
    #: Memory is short; nothing changed, try later.
    BUSY = "BUSY"
    #: The tokens were made under weights older than those before them; nothing changed.
    BAD_VERSION = "BAD_VERSION"
    #: A score for a unit that is being generated, or tokens for one that is being scored.
    WRONG_STAGE = "WRONG_STAGE"
    #: Its shard gave no answer: whether it was done is unknown, send the same write again.
    UNANSWERED = "UNANSWERED"


@dataclass(frozen=True)
class WriteReply:
    """The answer to one write."""

    answer: Answer
    #: Tokens that the queue has stored; only with `Answer.OFFSET`.
    stored_tokens: int | None = None
    #: Why there was no answer; only with `Answer.UNANSWERED`.
    error: EbbtideError | None = None

    @property
    def is_done(self) -> bool:
        """Whether what was asked for holds now, by this write or an earlier one."""
        return self.answer in (Answer.OK, Answer.ALREADY_DONE)


class HandBackCause(str, Enum):
    """Why a holder gives a unit back."""

    #: The node has an interruption notice.
    NOTICE = "notice"
    #: The node is being drained for another reason, or the worker ends.
    DRAIN = "drain"
    #: The agent ends or ended.
    AGENT_RESTART = "agent_restart"
    #: The engine will not serve it: not ready, paused too long, wrong weights.
    ENGINE = "engine"
    #: The weights rose and the group restarts under the new ones.
    WEIGHTS = "weights"


class Leases(Protocol):
    """What a write needs of a grant."""

    @property
    def unit(self) -> str: ...

    @property
    def fencing_token(self) -> int: ...


@dataclass(frozen=True)
class Write:
    """One write to one leased unit: its new tokens, then what becomes of it."""

    unit: str
    fencing_token: int
    #: On the wire: `CONTINUE`, `COMPLETE`, `SCORE`, `HANDBACK` or `FAULT`.
    verb: str
    detail: bytes
    #: New tokens, contiguous; chunks that are stored already are skipped.
    tail: tuple[Chunk, ...] = ()

    @classmethod
    def append(cls, grant: Leases, chunks: Sequence[Chunk]) -> Write:
        """Stores tokens; the unit stays leased."""
        return cls._of(grant, "CONTINUE", b"", chunks)

    @classmethod
    def complete(cls, grant: Leases, finish: Finish, tail: Sequence[Chunk] = ()) -> Write:
        """Ends a generation: the unit goes on to its score, or is COMPLETED in a run without a
        reward stage."""
        return cls._of(grant, "COMPLETE", codec.encode_finish(finish), tail)

    @classmethod
    def score(cls, grant: Leases, score: Score) -> Write:
        """Scores a response, which is COMPLETED then."""
        return cls._of(grant, "SCORE", codec.encode_score(score), ())

    @classmethod
    def hand_back(
        cls, grant: Leases, cause: HandBackCause | str = "drain", tail: Sequence[Chunk] = ()
    ) -> Write:
        """Gives the unit back with its tokens; never an attempt."""
        word = checks.word("cause of a hand-back", HandBackCause, cause)
        return cls._of(grant, "HANDBACK", word.value.encode(), tail)

    @classmethod
    def fault(cls, grant: Leases, reason: str, tail: Sequence[Chunk] = ()) -> Write:
        """Gives the unit back because of a fault of model, engine or scorer: an attempt.

        Args:
            reason: for the unit's history; cut to 4096 bytes.
        """
        checks.text("reason of a fault", reason, 1 << 30)
        cut = reason.encode()[:_REASON_LIMIT_BYTES].decode(errors="ignore")
        return cls._of(grant, "FAULT", cut.encode(), tail)

    @classmethod
    def _of(cls, grant: Leases, verb: str, detail: bytes, tail: Sequence[Chunk]) -> Write:
        for before, after in itertools.pairwise(tail):
            if after.offset != before.end:
                raise InvalidInput(
                    f"chunks for {grant.unit} must follow one another: {before.end} must come "
                    f"next, got {after.offset}"
                )
        return cls(grant.unit, grant.fencing_token, verb, detail, tuple(tail))

    @property
    def arguments(self) -> list[Any]:
        """As EXCHANGE takes them."""
        args: list[Any] = [self.unit, self.fencing_token, self.verb, self.detail, len(self.tail)]
        for chunk in self.tail:
            args += [
                chunk.offset, len(chunk.token_ids), chunk.weight_version, chunk.engine,
                chunk.fabric.value, codec.encode_chunk(chunk),
            ]  # fmt: skip
        return args


def batches(writes: Iterable[tuple[int, Write]]) -> list[list[tuple[int, Write]]]:
    """Cuts writes, each with its place, into batches that one call may carry."""
    cut: list[list[tuple[int, Write]]] = []
    carried = 0
    for place, write in writes:
        # Nine bytes a token at most: five of its id, four of its log-probability.
        size = sum(_CHUNK_OVERHEAD_BYTES + 9 * len(chunk.token_ids) for chunk in write.tail)
        is_full = bool(cut) and (
            len(cut[-1]) >= _CALL_UNITS_LIMIT or carried + size > _CALL_BYTES_LIMIT
        )
        if not cut or is_full:
            cut.append([])
            carried = 0
        cut[-1].append((place, write))
        carried += size
    return cut


def read_reply(reply: Any) -> WriteReply:
    """The answer to one write.

    Raises:
        ProtocolError: it is none.
    """
    word, _, number = (reply.decode() if isinstance(reply, bytes) else str(reply)).partition(" ")
    try:
        return WriteReply(Answer(word), int(number) if number else None)
    except ValueError:
        raise ProtocolError(f"unknown reply {reply!r} to a write") from None
