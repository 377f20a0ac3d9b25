"""Words to tell a story of the queue with."""

from __future__ import annotations

from collections.abc import Sequence

from ebbtide import Chunk, Finish, FinishReason, Grant, PromptGroup, Worker, WriteReply

STOP = Finish(FinishReason.STOP)
#: A moment that nothing depends on.
MOMENT_MS = 1_764_000_000_000


def group(group_id: str, size: int = 1, **terms: object) -> PromptGroup:
    """A group that tolerates a lag of 2."""
    terms = {"max_lag": 2, "prompt_token_ids": [1, 2, 3]} | terms
    return PromptGroup(group_id=group_id, group_size=size, **terms)  # type: ignore[arg-type]


def chunk(offset: int, count: int, version: int = 0) -> Chunk:
    """Tokens whose ids tell their place in the response."""
    return Chunk(
        offset=offset,
        weight_version=version,
        token_ids=list(range(offset, offset + count)),
        logprobs=[-1.5] * count,
        engine="vllm/0.32.0",
        started_at_ms=MOMENT_MS,
        ended_at_ms=MOMENT_MS + 5,
    )


def complete(worker: Worker, grants: Sequence[Grant], version: int = 0) -> list[WriteReply]:
    """Completes each with two more tokens."""
    return [
        worker.complete(grant, STOP, [chunk(len(grant.response), 2, version)]) for grant in grants
    ]


def units(grants: Sequence[Grant]) -> list[str]:
    """Their names, sorted."""
    return sorted(grant.unit for grant in grants)
