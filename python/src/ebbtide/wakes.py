"""Waiting for something to change, with a bound: a message on the run's wake channel is a hint,
the keys are the truth and are looked at every second anyway."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any

import redis
from redis.exceptions import RedisClusterException

from .link import Link

#: Longest time between two looks, in seconds.
LOOK_INTERVAL_S = 1.0
#: Shortest time between two looks: a busy run says something all the time.
LOOK_PAUSE_S = 0.05


class Wakes:
    """A subscription to the run's wake channel, made when it is first waited on.

    Waits `wait_s` seconds at most in all, from when it was made.
    """

    def __init__(self, link: Link, wait_s: float) -> None:
        self._link = link
        self._ends_at = time.monotonic() + wait_s
        self._pubsub: Any = None

    def __enter__(self) -> Wakes:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._pubsub is not None:
            self._pubsub.close()

    def wait(self) -> bool:
        """Waits until something may have changed; `False` when the time is over.

        The first wait returns at once: what changed before the subscription was not heard.
        """
        left = self._ends_at - time.monotonic()
        if left <= 0:
            return False
        try:
            if self._pubsub is None:
                self._pubsub = self._link.connection.client.pubsub(ignore_subscribe_messages=True)
                self._pubsub.subscribe(self._link.control_key("wake"))
                return True
            self._listen(min(left, LOOK_INTERVAL_S))
        except (redis.RedisError, RedisClusterException, OSError):
            time.sleep(min(left, LOOK_INTERVAL_S))
        return True

    def _listen(self, limit_s: float) -> None:
        """Returns after a message, or after `limit_s`; drops further messages that are there."""
        began_at = time.monotonic()
        while (left := began_at + limit_s - time.monotonic()) > 0:
            if self._pubsub.get_message(timeout=left) is not None:
                time.sleep(max(0.0, began_at + LOOK_PAUSE_S - time.monotonic()))
                while self._pubsub.get_message(timeout=0) is not None:
                    pass
                return
