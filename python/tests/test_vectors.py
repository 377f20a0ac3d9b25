"""`queue/vectors.json`: bytes that this package and the Rust client must write and read alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ebbtide import (
    Chunk,
    FabricVerdict,
    Finish,
    InvalidInput,
    PromptGroup,
    ProtocolError,
    Sampling,
    Score,
    codec,
)
from ebbtide.names import shard_of, split_unit_id, unit_id

VECTORS: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "queue" / "vectors.json").read_text()
)
ORIGIN = codec.Origin(**VECTORS["chunk_origin"] | {"fabric": FabricVerdict.PASSED})


def cases(name: str) -> list[Any]:
    return [pytest.param(case, id=case.get("name")) for case in VECTORS[name]]


def text(value: str | list[str]) -> str:
    """Long texts come in parts."""
    return "".join(value)


def data(case: dict[str, Any]) -> bytes:
    return bytes.fromhex(text(case["bytes"]))


@pytest.mark.parametrize("case", cases("chunks"))
def test_chunk_is_written_and_read_as_in_the_vectors(case: dict[str, Any]) -> None:
    names = ("offset", "weight_version", "started_at_ms", "ended_at_ms", "token_ids")
    fields = {name: case[name] for name in names}
    logprobs = [float(value) for value in case["logprobs"]]
    chunk = Chunk(engine=ORIGIN.engine, fabric=ORIGIN.fabric, logprobs=logprobs, **fields)
    assert codec.encode_chunk(chunk) == data(case)
    stored = codec.decode_chunk(data(case), ORIGIN)
    assert {name: getattr(stored, name) for name in names} == fields
    assert stored.logprobs == logprobs
    assert (stored.holder, stored.fencing_token) == (ORIGIN.holder, ORIGIN.fencing_token)


@pytest.mark.parametrize("case", cases("bad_chunks"))
def test_damaged_chunk_of_the_vectors_is_refused(case: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError, match="chunk"):
        codec.decode_chunk(data(case), ORIGIN)


@pytest.mark.parametrize("case", cases("origins"))
def test_origin_is_written_and_read_as_in_the_vectors(case: dict[str, Any]) -> None:
    fabric = FabricVerdict(case["fabric"])
    origin = codec.Origin(case["holder"], case["fencing_token"], case["engine"], fabric)
    assert codec.encode_origin(origin) == data(case)
    assert codec.decode_origin(data(case)) == origin


@pytest.mark.parametrize("case", cases("groups"))
def test_group_is_written_and_read_as_in_the_vectors(case: dict[str, Any]) -> None:
    fields = {name: value for name, value in case.items() if name not in ("name", "bytes")}
    fields["sampling"] = Sampling(**fields["sampling"])
    fields["tokenizer_fingerprint"] = text(fields["tokenizer_fingerprint"])
    fields["meta"] = bytes.fromhex(text(fields["meta"]))
    group = PromptGroup(**fields)
    assert codec.encode_group(group) == data(case)
    assert codec.decode_group(data(case)) == group


@pytest.mark.parametrize("case", VECTORS["finishes"])
def test_finish_is_written_and_read_as_in_the_vectors(case: dict[str, Any]) -> None:
    finish = Finish(case["reason"], case["stop_reason"])
    assert codec.encode_finish(finish) == data(case)
    assert codec.decode_finish(data(case)) == finish


@pytest.mark.parametrize("case", cases("scores"))
def test_score_is_written_and_read_as_in_the_vectors(case: dict[str, Any]) -> None:
    metadata = bytes.fromhex(text(case["metadata"]))
    score = Score(case["value"], case["scorer_version"], metadata)
    assert codec.encode_score(score) == data(case)
    assert codec.decode_score(data(case)) == score


@pytest.mark.parametrize("case", VECTORS["shards"])
def test_group_lies_on_the_shard_of_the_vectors(case: dict[str, Any]) -> None:
    for shard_count in (1, 2, 7, 16, 1000):
        assert shard_of(case["group_id"], shard_count) == case[f"of_{shard_count}"]


@pytest.mark.parametrize("case", VECTORS["unit_ids"])
def test_unit_is_named_as_in_the_vectors(case: dict[str, Any]) -> None:
    assert unit_id(case["group_id"], case["slot"]) == case["unit_id"]
    assert split_unit_id(case["unit_id"]) == (case["group_id"], case["slot"])


@pytest.mark.parametrize("bad", VECTORS["bad_unit_ids"])
def test_wrong_unit_id_of_the_vectors_is_refused(bad: str) -> None:
    with pytest.raises(InvalidInput, match="unit id must be"):
        split_unit_id(bad)


def test_unknown_field_of_a_group_is_refused() -> None:
    import msgpack

    fields = msgpack.unpackb(data(VECTORS["groups"][0]))
    for place in (fields, fields["sampling"]):
        place["speed"] = 1
        with pytest.raises(ProtocolError, match="prompt group: .*speed"):
            codec.decode_group(msgpack.packb(fields, use_single_float=True))
        del place["speed"]
