"""Addresses of Redis, and what is said of wrong ones."""

from __future__ import annotations

import pytest
import redis
from servers import free_port

from ebbtide import InvalidInput, Queue, QueueUnavailable, connections


@pytest.mark.parametrize(
    ("url", "hosts", "kind", "master", "db"),
    [
        ("redis://host", [("host", 6379)], "", "", 0),
        ("rediss://user:p%40ss@host:7000/3", [("host", 7000)], "", "", 3),
        ("redis://[::1]:7000", [("::1", 7000)], "", "", 0),
        ("redis+sentinel://a,b:7/main", [("a", 26379), ("b", 7)], "sentinel", "main", 0),
        ("rediss+sentinel://:pw@a:1/main/2?ca=/ca.pem", [("a", 1)], "sentinel", "main", 2),
        ("redis+cluster://a:1,b,[::2]:3", [("a", 1), ("b", 6379), ("::2", 3)], "cluster", "", 0),
    ],
)
def test_forms_of_an_address(
    url: str, hosts: list[tuple[str, int]], kind: str, master: str, db: int
) -> None:
    address = connections._parse(url)
    assert (address.hosts, address.kind, address.master, address.db) == (hosts, kind, master, db)
    assert address.is_tls == url.startswith("rediss")


def test_credentials_and_authority_are_read_and_never_shown() -> None:
    address = connections._parse("rediss+sentinel://us%3Aer:p%40ss@a:1/main?ca=/etc/ca.pem")
    assert (address.user, address.password) == ("us:er", "p@ss")
    assert address.ca_file == "/etc/ca.pem"
    assert address.name == "redis sentinel a:1 (main)"
    sentinel = connections.open_address("redis+sentinel://u:secret@a:1/main").client
    assert isinstance(sentinel, redis.Redis)


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("http://host", "unknown scheme 'http'"),
        ("redis+mirror://host", "unknown scheme"),
        ("host:6379", "unknown scheme"),
        ("redis://", "empty host"),
        ("redis://a,b", r"several hosts: say \+sentinel or \+cluster"),
        ("redis://host:port", "port that is none: 'port'"),
        ("redis://host:99999", "port that is none"),
        ("redis://host/zero", "database that is no number: 'zero'"),
        ("redis+sentinel://a:1", "lacks the name of the master"),
        ("redis+cluster://a:1/2", "a cluster has only 0"),
        ("rediss://:secret@host?cert=/x", "unknown option 'cert'"),
        ("redis://:secret@host?ca=/x", "authority without TLS"),
        ("redis://:secret@[::1", "cannot be read"),
    ],
)
def test_wrong_address_is_explained_without_its_password(url: str, problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem) as caught:
        Queue.connect(url, "run")
    assert "it must be redis://[user:password@]host" in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("form", ["redis://127.0.0.1:{}", "redis+cluster://127.0.0.1:{}"])
def test_redis_that_is_not_there_is_unavailable(form: str) -> None:
    with pytest.raises(QueueUnavailable, match="not reachable") as caught:
        Queue.connect(form.format(free_port()), "run", retry_for_s=0)
    assert caught.value.is_retriable


def test_what_is_no_client_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"redis.Redis or redis.RedisCluster"):
        Queue.connect(7, "run")  # type: ignore[arg-type]
