"""What the examples say to an engine in vLLM's shape, over plain HTTP."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, cast
from urllib.error import URLError
from urllib.request import ProxyHandler, Request, build_opener

#: How long one call may take, in seconds.
CALL_LIMIT_S = 60.0

# Engines are in the same network: no proxy.
_opener = build_opener(ProxyHandler({}))


class EngineAway(Exception):
    """The engine gave no answer, or none that is of use."""


@dataclass(frozen=True)
class Slice:
    """What one generation call brought."""

    token_ids: list[int]
    logprobs: list[float]
    #: (policy version, tokens made under it), in order.
    spans: list[tuple[int, int]]
    #: `stop`, `length` or `abort`.
    finish: str
    #: The token that stopped it, if one did.
    stop_reason: int | str | None


def weights_version(address: str) -> int | None:
    """The policy version that the engine serves; `None` when its label is none."""
    label = str(_call(f"{address}/weight_info")["weight_version"])
    return int(label) if label.isascii() and label.isdecimal() else None


def set_weights_version(address: str, version: int) -> None:
    """Raises the engine's label: what a trainer does once it has pushed the weights."""
    _call(f"{address}/update_weight_version", {"new_version": str(version)})


def generate(address: str, request_id: str, token_ids: list[int], sampling: Any) -> Slice:
    """Generates behind these tokens; `sampling` is the engine's own set of words."""
    answer = _call(
        f"{address}/inference/v1/generate",
        {"request_id": request_id, "token_ids": token_ids, "sampling_params": sampling},
    )
    choice = answer["choices"][0]
    spans = []
    for span in choice["weight_versions"] or []:
        label = span["version"]
        if not label.isdecimal():
            raise EngineAway(f"weights label {label!r} is no policy version")
        spans.append((int(label), span["end"] - span["start"]))
    logprobs = [token["logprob"] for token in choice["logprobs"]["content"]]
    return Slice(
        choice["token_ids"], logprobs, spans, choice["finish_reason"], choice["stop_reason"]
    )


def _call(url: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = Request(url, data, {"Content-Type": "application/json"})
    try:
        with _opener.open(request, timeout=CALL_LIMIT_S) as answer:
            text = cast(bytes, answer.read())
        return json.loads(text) if text else None
    except (URLError, OSError, ValueError) as error:
        raise EngineAway(f"{url}: {error}") from error
