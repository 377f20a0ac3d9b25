"""Reading the stored tokens of units.

Functions answer how many chunks each unit has; the chunks are read afterwards, which is safe
because only the holder, or nobody, writes to them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from . import codec
from .errors import InvalidInput, ProtocolError
from .link import Link
from .names import split_unit_id
from .samples import Response, join

#: Fields that one read asks for.
_FIELDS_LIMIT = 512


@dataclass(frozen=True)
class Stored:
    """A unit, and how much of it is stored."""

    unit: str
    #: Its chunks.
    parts: int
    #: The origins that they refer to.
    origins: int

    @property
    def fields(self) -> list[str]:
        """Where they lie in the hash of chunks: first the origins."""
        origins = [f"{self.unit}/o{number}" for number in range(self.origins)]
        return origins + [f"{self.unit}/{number}" for number in range(self.parts)]


def read_responses(link: Link, shard: int, units: Sequence[Stored]) -> list[Response | None]:
    """The stored tokens of units of one shard; `None` for one whose group has ended since.

    Raises:
        ProtocolError: chunks are missing or damaged.
        QueueUnavailable: no answer.
    """
    wanted = [stored.fields if stored.parts else [] for stored in units]
    flat = [name for fields in wanted for name in fields]
    values: list[bytes | None] = []
    for start in range(0, len(flat), _FIELDS_LIMIT):
        names = flat[start : start + _FIELDS_LIMIT]
        values += link.command("HMGET", link.shard_key(shard, "chunks"), *names)
    responses: list[Response | None] = []
    place = 0
    for stored, fields in zip(units, wanted, strict=True):
        of_unit = values[place : place + len(fields)]
        place += len(fields)
        responses.append(_response(link, shard, stored, of_unit))
    return responses


def _response(
    link: Link, shard: int, stored: Stored, values: Sequence[bytes | None]
) -> Response | None:
    if any(value is None for value in values):
        group_id, _ = split_unit_id(stored.unit)
        if not link.command("HEXISTS", link.shard_key(shard, "groups"), group_id):
            return None
        raise ProtocolError(
            f"unit {stored.unit} has lost stored tokens; `ebbtide queue check --repair` gives it "
            "back to be generated"
        )
    whole = [value for value in values if value is not None]
    origins = [codec.decode_origin(data) for data in whole[: stored.origins]]
    chunks = []
    for data in whole[stored.origins :]:
        # A stored chunk begins with the number of its origin, in two bytes.
        number = struct.unpack_from("<H", data)[0] if len(data) >= 2 else len(origins)
        if number >= len(origins):
            raise ProtocolError(f"a chunk of unit {stored.unit} has no origin")
        chunks.append(codec.decode_chunk(data[2:], origins[number]))
    try:
        return join(chunks)
    except InvalidInput as error:
        raise ProtocolError(f"chunks of unit {stored.unit}: {error}") from error
