"""Checks of numbers and texts from outside, each with a message that says what, where and how."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from enum import Enum
from typing import Any, SupportsIndex, TypeVar

from .errors import InvalidInput

I32 = (-(1 << 31), (1 << 31) - 1)

_Word = TypeVar("_Word", bound=Enum)


def whole(where: str, value: SupportsIndex, low: int, high: int) -> int:
    """A whole number within low and high, both included."""
    try:
        number = operator.index(value)
    except TypeError:
        raise InvalidInput(f"{where} must be a whole number, got {value!r}") from None
    if isinstance(value, bool) or not low <= number <= high:
        raise InvalidInput(f"{where} must be {low} to {high}, got {value!r}")
    return number


def token_ids(where: str, values: Iterable[SupportsIndex]) -> list[int]:
    """Token ids as plain integers of 32 bits."""
    try:
        numbers = [operator.index(value) for value in values]
    except TypeError as error:
        raise InvalidInput(f"{where} must be token ids, whole numbers: {error}") from None
    if numbers and not (I32[0] <= min(numbers) and max(numbers) <= I32[1]):
        wrong = next(number for number in numbers if not I32[0] <= number <= I32[1])
        raise InvalidInput(f"{where} must be token ids of 32 bits, got {wrong}")
    return numbers


def real(where: str, value: Any) -> float:
    """A real number, infinities and NaN included."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise InvalidInput(f"{where} must be a number, got {value!r}") from None


def text(where: str, value: object, limit_bytes: int) -> str:
    """Text that takes at most `limit_bytes` in UTF-8."""
    if not isinstance(value, str):
        raise InvalidInput(f"{where} must be text, got {value!r}")
    try:
        length = len(value.encode())
    except UnicodeEncodeError as error:
        raise InvalidInput(f"{where} must be valid text: {error}") from None
    if length > limit_bytes:
        raise InvalidInput(f"{where} must be at most {limit_bytes} bytes, got {length}")
    return value


def blob(where: str, value: object, limit_bytes: int) -> bytes:
    """Bytes, at most `limit_bytes`."""
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise InvalidInput(f"{where} must be bytes, got {type(value).__name__}")
    if len(value) > limit_bytes:
        raise InvalidInput(f"{where} must be at most {limit_bytes} bytes, got {len(value)}")
    return bytes(value)


def seconds_as_ms(where: str, value: Any, low_s: float = 0.0) -> int:
    """A time in seconds as whole milliseconds, at least `low_s`."""
    number = real(where, value)
    if not low_s <= number <= 10.0**9:
        raise InvalidInput(f"{where} must be {low_s:g} to 1e9 seconds, got {value!r}")
    return round(number * 1000)


def word(where: str, words: type[_Word], value: object) -> _Word:
    """One of a closed set of words."""
    try:
        return words(value)
    except ValueError:
        allowed = ", ".join(str(allowed.value) for allowed in words)
        raise InvalidInput(f"{where} must be one of {allowed}, got {value!r}") from None
