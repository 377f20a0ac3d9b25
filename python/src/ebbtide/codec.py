"""How chunks, origins, prompt groups and scores look as bytes; `queue/WIRE.md` is the reference.

`queue/vectors.json` has examples that this module and the Rust client are both held to.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import msgpack

from .errors import EbbtideError, ProtocolError
from .names import Holder
from .samples import CHUNK_TOKENS_LIMIT, Chunk, FabricVerdict, Finish, Score, StoredChunk
from .work import WORK_SCHEMA, PromptGroup, Sampling

#: First byte of a chunk.
CHUNK_LAYOUT = 1

_NUMBER = re.compile(rb"[\x80-\xff]*[\x00-\x7f]")
_U32_END = 1 << 32
_SIGN_32 = 1 << 31
#: Token ids that are remembered with their bytes: about a vocabulary.
_REMEMBERED_IDS = 1 << 18

_T = TypeVar("_T")


def number_bytes(number: int) -> bytes:
    """LEB128: seven bits a byte, the lowest first; the highest bit says that more follow."""
    parts = bytearray()
    while number >= 0x80:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    parts.append(number)
    return bytes(parts)


def _number(part: bytes) -> int:
    number = 0
    for place, byte in enumerate(part):
        number |= (byte & 0x7F) << (7 * place)
    return number


class _BytesOfIds(dict[int, bytes]):
    """Bytes of token ids, each worked out once."""

    def __missing__(self, token_id: int) -> bytes:
        part = number_bytes(token_id % _U32_END)
        if len(self) < _REMEMBERED_IDS:
            self[token_id] = part
        return part


class _IdsOfBytes(dict[bytes, int]):
    """Token ids of bytes, each worked out once."""

    def __missing__(self, part: bytes) -> int:
        number = _number(part)
        if number >= _U32_END:
            raise ValueError(f"{number} is no token id of 32 bits")
        token_id = number - _U32_END if number >= _SIGN_32 else number
        if len(self) < _REMEMBERED_IDS:
            self[part] = token_id
        return token_id


_bytes_of_ids = _BytesOfIds()
_ids_of_bytes = _IdsOfBytes()


@dataclass(frozen=True)
class Origin:
    """What a run of chunks has in common: the lease, the engine, the fabric verdict."""

    holder: str
    fencing_token: int
    engine: str
    fabric: FabricVerdict


def encode_chunk(chunk: Chunk) -> bytes:
    """The bytes of a chunk, without its origin."""
    head = (
        chunk.offset,
        chunk.weight_version,
        chunk.started_at_ms,
        chunk.ended_at_ms - chunk.started_at_ms,
        len(chunk.token_ids),
    )
    parts = [bytes((CHUNK_LAYOUT,))]
    parts.extend(map(number_bytes, head))
    parts.extend(map(_bytes_of_ids.__getitem__, chunk.token_ids))
    try:
        parts.append(struct.pack(f"<{len(chunk.logprobs)}f", *chunk.logprobs))
    except OverflowError:
        # Beyond 32 bits, which is infinite there.
        parts.extend(map(_single, chunk.logprobs))
    return b"".join(parts)


def _single(value: float) -> bytes:
    try:
        return struct.pack("<f", value)
    except OverflowError:
        return struct.pack("<f", float("inf") if value > 0 else float("-inf"))


def decode_chunk(data: bytes, origin: Origin) -> StoredChunk:
    """Reads a chunk back.

    Raises:
        ProtocolError: bytes of another layout, too few, or too many.
    """
    if data[:1] != bytes((CHUNK_LAYOUT,)):
        raise ProtocolError(f"chunk: layout must be {CHUNK_LAYOUT}, got {data[:1].hex() or 'none'}")
    head, place = [], 1
    for _ in range(5):
        match = _NUMBER.match(data, place)
        if match is None or len(match[0]) > 10:
            raise ProtocolError("chunk: it ends early")
        head.append(_number(match[0]))
        place = match.end()
    offset, weight_version, started_at_ms, took_ms, count = head
    if offset >= _U32_END or count > CHUNK_TOKENS_LIMIT:
        raise ProtocolError(f"chunk: {count} tokens at {offset} are more than one may have")
    ids_end = len(data) - 4 * count
    parts = _NUMBER.findall(data, place, max(place, ids_end))
    if len(parts) != count or sum(map(len, parts)) != ids_end - place:
        raise ProtocolError(f"chunk: {len(data) - place} bytes do not hold {count} tokens")
    try:
        ids = list(map(_ids_of_bytes.__getitem__, parts))
    except ValueError as error:
        raise ProtocolError(f"chunk: {error}") from None
    return StoredChunk(
        offset=offset,
        weight_version=weight_version,
        token_ids=ids,
        logprobs=list(struct.unpack_from(f"<{count}f", data, ids_end)),
        holder=origin.holder,
        fencing_token=origin.fencing_token,
        engine=origin.engine,
        fabric=origin.fabric,
        started_at_ms=started_at_ms,
        ended_at_ms=started_at_ms + took_ms,
    )


def encode_origin(origin: Origin) -> bytes:
    """The bytes of an origin, as the queue's functions write it."""
    return _pack([origin.holder, origin.fencing_token, origin.engine, origin.fabric.value])


def decode_origin(data: bytes) -> Origin:
    """Reads an origin: the msgpack array `[holder, fencing token, engine, fabric verdict]`.

    Raises:
        ProtocolError: bytes of another layout.
    """

    def read(value: Any) -> Origin:
        holder, fencing_token, engine, fabric = value
        return Origin(str(Holder.parse(holder)), fencing_token, engine, FabricVerdict(fabric))

    return _read("origin", data, read)


def encode_group(group: PromptGroup) -> bytes:
    """The bytes of a group: the msgpack map of its fields."""
    sampling = group.sampling
    on_dead_slot: Any = "fail"
    if group.min_samples is not None:
        on_dead_slot = {"shrink": {"min_samples": group.min_samples}}
    fields = {
        "schema": WORK_SCHEMA,
        "group_id": group.group_id,
        "group_size": group.group_size,
        "prompt_token_ids": group.prompt_token_ids,
        "sampling": {
            "max_tokens": sampling.max_tokens,
            "temperature": float(sampling.temperature),
            "top_p": float(sampling.top_p),
            "top_k": sampling.top_k,
            "min_p": float(sampling.min_p),
            "stop_token_ids": sampling.stop_token_ids,
            "seed": sampling.seed,
            "logprobs_mode": sampling.logprobs_mode.value,
            "ignore_eos": bool(sampling.ignore_eos),
        },
        "model_id": group.model_id,
        "tokenizer_fingerprint": group.tokenizer_fingerprint,
        "enqueue_policy_version": group.enqueue_policy_version,
        "min_policy_version": group.min_policy_version,
        "max_lag": group.max_lag,
        "resume_policy": group.resume_policy.value,
        "on_dead_slot": on_dead_slot,
        "priority": group.priority,
        "expires_at": group.expires_at_ms,
        "max_attempts": group.max_attempts,
        "max_infra_attempts": group.max_infra_attempts,
        "max_leased_ms": group.max_leased_ms,
        "meta": group.meta,
    }
    return _pack(fields, single_floats=True)


def decode_group(data: bytes) -> PromptGroup:
    """Reads a group back. Unknown fields are refused, as the queue's other clients do.

    Raises:
        ProtocolError: bytes of another layout.
    """

    def read(value: Any) -> PromptGroup:
        fields = dict(value)
        schema = fields.pop("schema")
        if schema != WORK_SCHEMA:
            raise ValueError(f"schema must be {WORK_SCHEMA}, got {schema!r}")
        on_dead_slot = fields.pop("on_dead_slot", "fail")
        if on_dead_slot != "fail":
            fields["min_samples"] = on_dead_slot["shrink"]["min_samples"]
        fields["expires_at_ms"] = fields.pop("expires_at", None)
        fields["sampling"] = Sampling(**fields["sampling"])
        return PromptGroup(**fields)

    return _read("prompt group", data, read)


def encode_finish(finish: Finish) -> bytes:
    """The bytes of a finish: the msgpack map of its fields."""
    return _pack({"reason": finish.reason.value, "stop_reason": finish.stop_reason})


def decode_finish(data: bytes) -> Finish:
    """Reads a finish back.

    Raises:
        ProtocolError: bytes of another layout.
    """
    return _read("finish", data, lambda value: Finish(**value))


def encode_score(score: Score) -> bytes:
    """The bytes of a score: the msgpack map of its fields."""
    fields = {
        "value": score.value,
        "scorer_version": score.scorer_version,
        "metadata": score.metadata,
    }
    return _pack(fields)


def decode_score(data: bytes) -> Score:
    """Reads a score back.

    Raises:
        ProtocolError: bytes of another layout.
    """
    return _read("score", data, lambda value: Score(**value))


def decode_array(what: str, data: bytes) -> list[Any]:
    """Reads a msgpack array, such as the history of a unit; text that is none is replaced.

    Raises:
        ProtocolError: bytes of another layout.
    """

    def read(value: Any) -> list[Any]:
        # An empty table of Lua is an empty map.
        return [] if isinstance(value, Mapping) and not value else list(value)

    return _read(what, data, read)


def _pack(value: Any, *, single_floats: bool = False) -> bytes:
    packed = msgpack.packb(value, use_bin_type=True, use_single_float=single_floats)
    return bytes(packed)


def _read(what: str, data: bytes, read: Callable[[Any], _T]) -> _T:
    try:
        value = msgpack.unpackb(data, raw=False, strict_map_key=True, unicode_errors="replace")
        return read(value)
    except (EbbtideError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ProtocolError(f"{what}: {error}") from error
    except msgpack.UnpackException as error:
        raise ProtocolError(f"{what}: {error}") from error
