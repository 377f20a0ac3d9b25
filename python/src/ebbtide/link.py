"""The way to one run on Redis: its keys, its functions, and how often a call is repeated.

Every function answers a repetition as it answered the call (`queue/WIRE.md`), so a call whose reply
was lost is sent again until `retry_for_s` have passed.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import redis
from redis.exceptions import RedisClusterException

from .connections import CALL_TIME_LIMIT_S, Connection
from .errors import EbbtideError, ProtocolError, QueueBusy, QueueUnavailable, QueueUnsuitable
from .library import library

#: Bounds of the pause between two tries, in seconds.
RETRY_DELAY_MIN_S, RETRY_DELAY_MAX_S = 0.05, 2.0
#: How long a call over several shards tries one of them, in seconds: long enough for a new
#: connection, so that a shard that is away does not stop the others.
BRIEF_S = 0.2
#: Part of `maxmemory` above which nothing is added.
MEMORY_SHORT_ABOVE = 0.85
#: Between two looks at a server's memory, in seconds.
MEMORY_LOOK_INTERVAL_S = 1.0
#: A message on the wake channel: there may be work.
WORK_HINT = b""
#: The same, and the control keys have changed in a way that cannot wait.
CONTROL_HINT = b"control"

#: Keys of one shard in the order in which every function declares them.
SHARD_KEYS = (
    "ready:generate", "ready:reward", "lease:generate", "lease:reward", "units", "groups",
    "specs", "chunks", "history", "out", "failed", "counters", "version", "grants", "tombs",
    "expiry",
)  # fmt: skip

#: Beginnings of answers that pass by themselves.
_PASSING_ANSWERS = ("BUSY ", "NOREPLICAS", "MISCONF", "LOADING", "UNBLOCKED", "NOMASTERLINK")

_T = TypeVar("_T")


class Link:
    """One run on one Redis, Sentinel set or Cluster. Threads may share it."""

    def __init__(self, connection: Connection, run: str, *, retry_for_s: float) -> None:
        self.connection = connection
        self.run = run
        self.retry_for_s = retry_for_s
        #: Whether writes wait for a replica (durability safe with replicas).
        self.waits_for_replica = False
        self._memory: dict[str, tuple[float, bool]] = {}

    @property
    def name(self) -> str:
        """What to call this Redis in messages."""
        return self.connection.name

    def shard_key(self, shard: int, name: str) -> str:
        """A key of a shard."""
        return f"{{{self.run}:{shard}}}:{name}"

    def control_key(self, name: str) -> str:
        """A control key."""
        return f"{{{self.run}:c}}:{name}"

    def on_shard(
        self,
        shard: int,
        name: str,
        args: Sequence[Any] = (),
        *,
        must_last: bool = False,
        patience_s: float | None = None,
    ) -> Any:
        """Calls a function on a shard.

        Args:
            must_last: whether durability `safe` makes the caller wait for a replica.
            patience_s: how long it is repeated without an answer; `None` is `retry_for_s`.

        Raises:
            QueueUnavailable: no answer within the bounds.
            QueueBusy: memory is short, and the function would add to it.
            ProtocolError: Redis refused the call.
        """
        keys = [self.shard_key(shard, key) for key in SHARD_KEYS]
        return self.call(name, keys, args, must_last=must_last, patience_s=patience_s)

    def call(
        self,
        name: str,
        keys: Sequence[str],
        args: Sequence[Any],
        *,
        must_last: bool = False,
        patience_s: float | None = None,
    ) -> Any:
        """Calls a function with these keys; raises as `on_shard` does."""
        send = self._send_and_wait if must_last and self.waits_for_replica else self._send
        words = ("FCALL", library().function(name), len(keys), *keys, *args)

        def call() -> Any:
            try:
                return send(*words)
            except redis.ResponseError as error:
                if "Function not found" not in str(error):
                    raise
            self._load_library(keys[0])
            return send(*words)

        return self.repeat(call, patience_s)

    def command(self, *args: Any, patience_s: float | None = None, **options: Any) -> Any:
        """Runs a plain command that may be repeated; raises as `on_shard` does."""

        def call() -> Any:
            return self.connection.client.execute_command(*args, **options)

        return self.repeat(call, patience_s)

    def close(self) -> None:
        """Closes the client, unless it is the caller's."""
        if not self.connection.is_callers:
            self.connection.client.close()

    def wake(self, hint: bytes = WORK_HINT) -> None:
        """Tells everybody that something has changed: a hint, whose loss does no harm."""
        try:
            self.connection.client.execute_command("PUBLISH", self.control_key("wake"), hint)
        except (redis.RedisError, RedisClusterException, OSError):
            pass

    def is_memory_short(self, shard: int) -> bool:
        """Whether the server of this shard has little memory left, as of a second ago at most.

        While it does not answer, the last answer stands.
        """
        node = self._node_of(shard)
        name = getattr(node, "name", "")
        looked_at, is_short = self._memory.get(name, (float("-inf"), False))
        if time.monotonic() - looked_at < MEMORY_LOOK_INTERVAL_S:
            return is_short
        options = {"target_nodes": node} if self.connection.is_cluster else {}
        try:
            info = self.connection.client.execute_command("INFO", "memory", **options)
            is_short = is_memory_short(info)
        except (redis.RedisError, RedisClusterException, OSError):
            pass
        self._memory[name] = (time.monotonic(), is_short)
        return is_short

    def repeat(self, call: Callable[[], _T], patience_s: float | None = None) -> _T:
        """Makes a call that may be repeated, until it is answered or `patience_s` have passed.

        Raises:
            EbbtideError: what the last try ended with.
        """
        patience_s = self.retry_for_s if patience_s is None else min(patience_s, self.retry_for_s)
        ends_at, delay = time.monotonic() + patience_s, RETRY_DELAY_MIN_S
        while True:
            try:
                return call()
            except (redis.RedisError, RedisClusterException, OSError) as error:
                explained = self.explain(error)
                if not self._wait_to_repeat(explained, ends_at, delay):
                    raise explained from error
            except QueueUnavailable as error:
                if not self._wait_to_repeat(error, ends_at, delay):
                    raise
            delay = min(delay * 2, RETRY_DELAY_MAX_S)

    def _wait_to_repeat(self, error: EbbtideError, ends_at: float, delay: float) -> bool:
        left = ends_at - time.monotonic()
        if not isinstance(error, QueueUnavailable) or left <= 0:
            return False
        time.sleep(min(left, delay * random.uniform(0.5, 1.0)))
        return True

    def explain(self, error: Exception) -> EbbtideError:
        """The error as this package tells it."""
        if isinstance(error, redis.exceptions.OutOfMemoryError):
            return QueueBusy(f"memory of {self.name} is full, nothing was added: {error}")
        if isinstance(
            error,
            (
                redis.exceptions.AuthenticationError,
                redis.exceptions.AuthorizationError,
                redis.exceptions.NoPermissionError,
            ),
        ):
            return QueueUnsuitable(f"{self.name} refuses this user: {error}; see its ACL")
        passing = (
            redis.exceptions.ConnectionError,
            redis.exceptions.TimeoutError,
            redis.exceptions.ReadOnlyError,
            redis.exceptions.ClusterError,
            redis.exceptions.AskError,
            redis.exceptions.TryAgainError,
            RedisClusterException,
            OSError,
        )
        if isinstance(error, passing) or str(error).startswith(_PASSING_ANSWERS):
            return QueueUnavailable(
                f"{self.name} is not reachable: {error}; retrying helps once it is back"
            )
        return ProtocolError(f"unexpected answer from {self.name}: {error}")

    def _load_library(self, key: str) -> None:
        """Gives the library to the server that has this key."""
        words = ("FUNCTION LOAD", "REPLACE", library().source)
        self.connection.client.execute_command(*words, **self._to_owner_of(key))

    def _to_owner_of(self, key: str) -> dict[str, Any]:
        """Options that send a command to the server that has this key, without asking a server
        which of its words are keys."""
        if not self.connection.is_cluster:
            return {}
        return {"target_nodes": cast(Any, self.connection.client).get_node_from_key(key)}

    def _send(self, *words: Any) -> Any:
        return self.connection.client.execute_command(*words, **self._to_owner_of(words[3]))

    def _send_and_wait(self, *words: Any) -> Any:
        """The call, then WAIT on the very same connection: it tells of that connection's writes.

        After a fail-over in between, a WAIT elsewhere would say yes to a write that is lost.
        """
        client: Any = self.connection.client
        if self.connection.is_cluster:
            client = client.get_redis_connection(client.get_node_from_key(words[3]))
        try:
            with client.pipeline(transaction=False) as pipeline:
                pipeline.execute_command(*words)
                pipeline.execute_command("WAIT", 1, round(CALL_TIME_LIMIT_S * 500))
                answers = pipeline.execute(raise_on_error=False)
            for answer in answers:
                if isinstance(answer, Exception):
                    raise answer
        except redis.RedisError as error:
            if self.connection.is_cluster and "Function not found" not in str(error):
                # A plain call makes the client learn which node has the key now.
                self.connection.client.execute_command("EXISTS", words[3])
            raise
        answer, replicas = answers
        if replicas < 1:
            raise redis.exceptions.TimeoutError("no replica acknowledged the write in time")
        return answer

    def _node_of(self, shard: int) -> Any:
        if not self.connection.is_cluster:
            return None
        client = cast(Any, self.connection.client)
        try:
            return client.get_node_from_key(self.shard_key(shard, "units"))
        except (redis.RedisError, RedisClusterException):
            return None


def is_memory_short(info: dict[str, Any]) -> bool:
    """Whether what INFO says of a server's memory means that nothing may be added."""
    limit = float(info.get("maxmemory", 0))
    return limit > 0 and float(info.get("used_memory", 0)) > MEMORY_SHORT_ABOVE * limit
