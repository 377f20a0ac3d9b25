"""Bad input: the message says what, where, and what is right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from worlds import chunk, group

from ebbtide import (
    Chunk,
    Finish,
    Holder,
    InvalidInput,
    Layout,
    ProgressLimits,
    PromptGroup,
    Queue,
    Sampling,
    Score,
    Write,
)


def finish(reason: Any) -> Finish:
    return Finish(reason)


def score(value: Any) -> Score:
    return Score(value, "s")


def new_chunk(**terms: Any) -> Chunk:
    fields: dict[str, Any] = {
        "offset": 4, "weight_version": 1, "token_ids": [1], "logprobs": [-1.0], "engine": "e/1",
        "started_at_ms": 5, "ended_at_ms": 6,
    }  # fmt: skip
    return Chunk(**(fields | terms))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: group("a.b"), r"group id must match \[A-Za-z0-9_-\]\{1,64\}, got 'a.b'"),
        (lambda: group("g", 0), "prompt group g: group_size must be 1 to 1024, got 0"),
        (lambda: group("g", True), "group_size must be 1 to 1024, got True"),
        (lambda: group("g", prompt_token_ids=[]), "group g: prompt_token_ids must not be empty"),
        (lambda: group("g", prompt_token_ids="text"), "prompt_token_ids must be token ids"),
        (lambda: group("g", prompt_token_ids=[1 << 31]), "32 bits, got 2147483648"),
        (lambda: group("g", priority=2048), "priority must be -2048 to 2047, got 2048"),
        (lambda: group("g", max_lag=-1), "max_lag must be 0 to 65535, got -1"),
        (lambda: group("g", 2, min_samples=3), "min_samples must be 1 to 2, got 3"),
        (lambda: group("g", meta="text"), "group g: meta must be bytes, got str"),
        (lambda: group("g", meta=b"x" * 4097), "meta must be at most 4096 bytes, got 4097"),
        (lambda: group("g", resume_policy="later"), "continue_mixed, restart_if_newer, mask_old"),
        (lambda: group("g", sampling={}), "sampling must be a Sampling, got {}"),
        (lambda: Sampling(max_tokens=0), "sampling.max_tokens must be 1 to"),
        (lambda: Sampling(temperature=-1), "sampling.temperature must be at least 0, got -1"),
        (lambda: Sampling(temperature=float("nan")), "temperature must be at least 0, got nan"),
        (lambda: Sampling(top_p=0), "sampling.top_p must be above 0 and at most 1, got 0"),
        (lambda: Sampling(seed=1 << 63), "sampling.seed must be"),
        (lambda: new_chunk(logprobs=[]), "chunk at 4: needs one logprob for each token, got 0 for"),
        (lambda: new_chunk(logprobs=[None]), "chunk at 4: logprobs must be a number, got None"),
        (lambda: new_chunk(token_ids=[1.5]), "chunk at 4: token_ids must be token ids"),
        (lambda: new_chunk(weight_version="7"), "weight_version must be a whole number, got '7'"),
        (lambda: new_chunk(ended_at_ms=4), "ended_at_ms must be 5 to"),
        (lambda: new_chunk(fabric="fine"), "fabric must be one of not_applicable, passed"),
        (lambda: finish("abort"), "broke off is handed back instead.* got 'abort'"),
        (lambda: score("good"), "score.value must be a number, got 'good'"),
        (lambda: Layout(shards=0), "layout.shards must be 1 to 65535, got 0"),
        (lambda: Layout(stages=("reward",)), r"layout.stages must be \('generate',\) or"),
        (lambda: ProgressLimits(idle_s=-1), "limits.idle_s must be 0 to 1e9 seconds, got -1"),
        (lambda: Holder("n", "b", "a/b"), "process must match"),
        (lambda: Holder.parse("n/b"), "holder must be <node>/<boot id>/<process>, got 'n/b'"),
    ],
)
def test_wrong_value_is_named(make: Callable[[], object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        make()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda q: q.trainer("a b", groups_per_step=1), "consumer must match"),
        (lambda q: q.trainer("a", groups_per_step=0), "groups_per_step must be 1 to"),
        (lambda q: q.trainer("a", groups_per_step=1).next_batch(0), "groups must be 1 to 10000"),
        (lambda q: q.trainer("a", groups_per_step=1).acknowledge(["{}"]), "group id must match"),
        (lambda q: q.worker("n").lease(0, weight_version=0), "limit must be 1 to 1000, got 0"),
        (lambda q: q.worker("n").lease(1, weight_version=-1), "weight_version must be 0 to"),
        (lambda q: q.worker("n", lease_s=0), "lease_s must be 0.001 to"),
        (lambda q: q.worker("n").exchange([], 1, stage="judge"), "stage must be one of generate"),
        (lambda q: q.worker("n").write(["x"]), "writes must be Write, got 'x'"),
        (lambda q: q.failures(2), "shard must be 0 to 1, got 2"),
    ],
)
def test_wrong_argument_of_a_call_is_named(
    queue: Queue, call: Callable[[Queue], object], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        call(queue)


@pytest.mark.parametrize(
    ("uri", "sha256", "message"),
    [
        ("ftp://host/w", "0" * 64, "uri must begin with s3://, file://"),
        ("s3://bucket/w", "", "sha256 must be 64 hex digits with a uri"),
        ("s3://bucket/w", "XY", "sha256 must be 64 hex digits with a uri"),
        ("", "0" * 64, "and empty without"),
    ],
)
def test_wrong_weights_are_not_published(queue: Queue, uri: str, sha256: str, message: str) -> None:
    trainer = queue.trainer("t", groups_per_step=1)
    with pytest.raises(InvalidInput, match=message):
        trainer.set_policy_version(1, uri, sha256)
    assert trainer.status().policy_version == 0


def test_wrong_run_is_named_before_anything_is_opened() -> None:
    with pytest.raises(InvalidInput, match="run id must match"):
        Queue.connect("redis://nowhere", "a.b")


def test_chunks_of_a_write_follow_one_another(queue: Queue) -> None:
    queue.trainer("t", groups_per_step=1).enqueue_group(group("g"))
    (grant,) = queue.worker("n").lease(1, weight_version=0).grants
    with pytest.raises(InvalidInput, match=r"g.0000 must follow one another: 2 .*next, got 3"):
        Write.append(grant, [chunk(0, 2), chunk(3, 1)])
    with pytest.raises(InvalidInput, match="cause of a hand-back must be one of notice, drain"):
        Write.hand_back(grant, "tired")


def test_what_other_libraries_give_becomes_plain_lists() -> None:
    class Number:
        """As a number of an array library is."""

        def __index__(self) -> int:
            return 7

        def __float__(self) -> float:
            return -0.5

    made = new_chunk(token_ids=(Number(),), logprobs=(Number(),))
    assert (made.token_ids, made.logprobs) == ([7], [-0.5])
    given: Any = (Number(), 2)
    plain = PromptGroup(group_id="g", group_size=1, prompt_token_ids=given)
    assert plain.prompt_token_ids == [7, 2]


def test_seeds_of_siblings_differ_and_wrap_around() -> None:
    assert Sampling().seed_of(3) is None
    assert Sampling(seed=7).seed_of(3) == 10
    assert Sampling(seed=(1 << 63) - 1).seed_of(1) == -(1 << 63)
