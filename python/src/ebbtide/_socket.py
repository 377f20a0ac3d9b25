"""HTTP over the agent's unix socket: one connection for each call, and calls that are repeated."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Any
from urllib.parse import quote

from .errors import (
    AgentUnavailable,
    EbbtideError,
    InvalidInput,
    LeaseGateClosed,
    LimitReached,
    ProtocolError,
    QueueUnavailable,
)

#: How long one call may take beyond what it waits for, in seconds.
_CALL_LIMIT_S = 10.0
#: Pause before a call that got no answer is sent again.
_AGAIN_S = 0.1


@dataclass(frozen=True)
class Call:
    """One call; every one of them may be sent again."""

    method: str
    path: str
    body: Any = None
    #: How long the agent itself may wait before it answers.
    wait_s: float = 0.0


class _Connection(HTTPConnection):
    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Socket:
    """Where the agent serves."""

    def __init__(self, path: str, retry_for_s: float) -> None:
        self._path = path
        self._retry_for_s = retry_for_s

    def call(self, call: Call) -> Any:
        """The answer; calls that get none are sent again within the bound."""
        ends_at, pause = time.monotonic() + self._retry_for_s, threading.Event()
        while True:
            try:
                return self._call_once(call)
            except AgentUnavailable:
                if time.monotonic() >= ends_at:
                    raise
                pause.wait(_AGAIN_S)

    def _call_once(self, call: Call) -> Any:
        connection = _Connection(self._path, _CALL_LIMIT_S + call.wait_s)
        try:
            body = None if call.body is None else json.dumps(call.body).encode()
            connection.request(call.method, call.path, body)
            response = connection.getresponse()
            text = response.read()
        except (OSError, HTTPException) as error:
            raise self._away(error) from error
        finally:
            connection.close()
        return _read(response, text)

    def events(
        self, path: str, silence_limit_s: float
    ) -> Iterator[tuple[str, Any] | None]:
        """Server-sent events until the stream ends: name and data, or `None` for a sign of life."""
        connection = _Connection(self._path, silence_limit_s)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            if response.status != 200:
                _read(response, response.read())
            yield from _events_of(response)
        except (OSError, HTTPException) as error:
            raise self._away(error) from error
        finally:
            connection.close()

    def _away(self, error: Exception) -> AgentUnavailable:
        why = str(error) or type(error).__name__
        return AgentUnavailable(
            f"no answer from the node's agent on {self._path}: {why}; it is tried again for "
            f"{self._retry_for_s:g} s. Does an agent run here with --socket, and may this user "
            "connect?"
        )


def _events_of(response: HTTPResponse) -> Iterator[tuple[str, Any] | None]:
    name, data = "", ""
    while line := response.readline():
        word, _, value = line.decode().rstrip("\r\n").partition(": ")
        if word == "event":
            name = value
        elif word == "data":
            data += value
        elif name:
            yield name, json.loads(data)
            name, data = "", ""
        else:
            yield None


def _read(response: HTTPResponse, text: bytes) -> Any:
    try:
        answer = json.loads(text)
    except ValueError as error:
        raise ProtocolError(f"the agent answered {response.status} without JSON") from error
    if response.status == 200:
        return answer
    raise _error(answer)


def _error(answer: Any) -> EbbtideError:
    try:
        code, message = answer["error"]["code"], answer["error"]["message"]
    except (KeyError, TypeError):
        return ProtocolError(f"the agent answered {answer!r}")
    kinds: dict[str, type[EbbtideError]] = {
        "gate_closed": LeaseGateClosed,
        "too_many": LimitReached,
        "queue_unavailable": QueueUnavailable,
        "agent_ended": AgentUnavailable,
        "bad_request": InvalidInput,
        "too_large": InvalidInput,
    }
    return kinds.get(code, ProtocolError)(message)


def quoted(text: str) -> str:
    """Text as a part of a path."""
    return quote(text, safe="")
