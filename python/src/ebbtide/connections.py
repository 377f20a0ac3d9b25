"""From an address to a client of `redis-py`.

An address is never repeated in a message as it came: it may hold a password.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Any, Protocol, cast
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import redis
import redis.cluster
import redis.sentinel
from redis.backoff import NoBackoff
from redis.retry import Retry

from .errors import InvalidInput, QueueUnavailable

#: How long one call may take before it counts as not answered.
CALL_TIME_LIMIT_S = 2.0

_FORMS = (
    "redis://[user:password@]host[:port][/db], "
    "redis+sentinel://host:port,host:port/MASTER[/db], redis+cluster://host:port,host:port; "
    "rediss… for TLS, with ?ca=/path.pem for an authority of your own"
)
_REDIS_PORT, _SENTINEL_PORT = 6379, 26379

# These modules are partly without types.
_sentinel_module: Any = redis.sentinel
_cluster_module: Any = redis.cluster


class RedisClient(Protocol):
    """What is asked of a client: of `redis.Redis` and `redis.RedisCluster` alike."""

    def execute_command(self, *args: Any, **options: Any) -> Any: ...

    def pubsub(self, **options: Any) -> Any: ...

    def get_encoder(self) -> Any: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Connection:
    """A client, and what to call it in messages."""

    client: RedisClient
    name: str
    is_cluster: bool
    #: Whether the caller made it, and closes it.
    is_callers: bool = False


@dataclass(frozen=True)
class _Address:
    is_tls: bool
    kind: str
    hosts: list[tuple[str, int]]
    user: str | None
    password: str | None
    master: str
    db: int
    ca_file: str | None

    @property
    def name(self) -> str:
        hosts = ",".join(f"{host}:{port}" for host, port in self.hosts)
        kind = f" {self.kind}" if self.kind else ""
        return f"redis{kind} {hosts}" + (f" ({self.master})" if self.master else "")


def wrap(client: object) -> Connection:
    """A client that the caller made.

    Raises:
        InvalidInput: it is no synchronous client of `redis-py`, or decodes responses.
    """
    if not isinstance(client, (redis.Redis, redis.cluster.RedisCluster)):
        raise InvalidInput(
            f"redis must be an address, redis.Redis or redis.RedisCluster, got {client!r}"
        )
    made = cast(RedisClient, client)
    if made.get_encoder().decode_responses:
        raise InvalidInput("this client decodes responses: make it with decode_responses=False")
    is_cluster = isinstance(client, redis.cluster.RedisCluster)
    return Connection(made, "redis", is_cluster, is_callers=True)


def open_address(url: str) -> Connection:
    """A client of the Redis at `url`.

    It repeats nothing by itself: that is bounded elsewhere.

    Raises:
        InvalidInput: the address has none of the known forms.
        QueueUnavailable: no node of a cluster answers.
    """
    address = _parse(url)
    options = _options(address)
    if address.kind == "cluster":
        return Connection(_open_cluster(address, options), address.name, True)
    if address.kind == "sentinel":
        of_sentinels = {
            name: value for name, value in options.items() if name not in ("username", "password")
        }
        sentinels = _sentinel_module.Sentinel(
            address.hosts, sentinel_kwargs=of_sentinels, db=address.db, **options
        )
        return Connection(sentinels.master_for(address.master), address.name, False)
    host, port = address.hosts[0]
    client = redis.Redis(host=host, port=port, db=address.db, **options)
    return Connection(cast(RedisClient, client), address.name, False)


def _options(address: _Address) -> dict[str, Any]:
    options: dict[str, Any] = {
        "username": address.user,
        "password": address.password,
        "socket_timeout": CALL_TIME_LIMIT_S,
        "socket_connect_timeout": CALL_TIME_LIMIT_S,
        "socket_keepalive": True,
        "retry": Retry(NoBackoff(), 0),
    }
    if hasattr(socket, "TCP_KEEPIDLE"):
        options["socket_keepalive_options"] = {socket.TCP_KEEPIDLE: 5, socket.TCP_KEEPINTVL: 5}
    if address.is_tls:
        options |= {"ssl": True, "ssl_cert_reqs": "required", "ssl_check_hostname": True}
        if address.ca_file is not None:
            options["ssl_ca_certs"] = address.ca_file
    return options


def _open_cluster(address: _Address, options: dict[str, Any]) -> RedisClient:
    nodes = [_cluster_module.ClusterNode(host, port) for host, port in address.hosts]
    try:
        return cast(RedisClient, _cluster_module.RedisCluster(startup_nodes=nodes, **options))
    except (redis.RedisError, redis.exceptions.RedisClusterException, OSError) as error:
        raise QueueUnavailable(f"{address.name} is not reachable: {error}") from error


def _parse(url: str) -> _Address:
    if not isinstance(url, str):
        raise InvalidInput(f"redis address must be text, got {type(url).__name__}")
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise _wrong("cannot be read", error) from None
    base, _, kind = parts.scheme.partition("+")
    if base not in ("redis", "rediss") or kind not in ("", "sentinel", "cluster"):
        raise _wrong(f"has the unknown scheme {parts.scheme!r}")
    credentials, _, hosts_text = parts.netloc.rpartition("@")
    user, _, password = credentials.partition(":")
    default_port = _SENTINEL_PORT if kind == "sentinel" else _REDIS_PORT
    hosts = [_host(text, default_port) for text in hosts_text.split(",")]
    if not kind and len(hosts) > 1:
        raise _wrong("names several hosts: say +sentinel or +cluster")
    master, db = _path(parts, kind)
    return _Address(
        is_tls=base == "rediss",
        kind=kind,
        hosts=hosts,
        user=unquote(user) or None,
        password=unquote(password) or None,
        master=master,
        db=db,
        ca_file=_ca_file(parts, is_tls=base == "rediss"),
    )


def _host(text: str, default_port: int) -> tuple[str, int]:
    if text.startswith("["):
        host, _, port = text[1:].partition("]")
        port = port.removeprefix(":")
    else:
        host, _, port = text.partition(":")
    if not host:
        raise _wrong("has an empty host")
    if not port:
        return host, default_port
    if not (port.isascii() and port.isdecimal() and 0 < int(port) < 1 << 16):
        raise _wrong(f"has a port that is none: {port!r}")
    return host, int(port)


def _path(parts: SplitResult, kind: str) -> tuple[str, int]:
    names = [unquote(name) for name in parts.path.split("/")[1:] if name]
    master = ""
    if kind == "sentinel":
        if not names:
            raise _wrong("lacks the name of the master after the hosts, such as /mymaster")
        master = names.pop(0)
    if not names:
        return master, 0
    if len(names) > 1 or not names[0].isdecimal():
        raise _wrong(f"has a database that is no number: {'/'.join(names)!r}")
    if kind == "cluster" and names[0] != "0":
        raise _wrong("names a database: a cluster has only 0")
    return master, int(names[0])


def _ca_file(parts: SplitResult, *, is_tls: bool) -> str | None:
    ca_file = None
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name != "ca" or not value:
            raise _wrong(f"has the unknown option {name!r}, only ca=/path.pem is known")
        ca_file = value
    if ca_file is not None and not is_tls:
        raise _wrong("names an authority without TLS: begin it with rediss")
    return ca_file


def _wrong(problem: str, error: object = None) -> InvalidInput:
    detail = f" ({error})" if error else ""
    return InvalidInput(f"redis address {problem}{detail}; it must be {_FORMS}")
