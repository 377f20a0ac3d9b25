"""What is checked before anything is done with a Redis or a run."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from servers import Server

from ebbtide import Layout, Queue, QueueUnavailable, QueueUnsuitable


def test_run_is_laid_out_once_and_then_checked(redis_server: Server, run: str) -> None:
    with pytest.raises(QueueUnavailable, match="not started by anybody yet") as caught:
        Queue.connect(redis_server.url, run)
    assert caught.value.is_retriable
    made = Layout(shards=3, stages=("generate", "reward"), dedup_window_s=60)
    Queue.connect(redis_server.url, run, create=made)
    meta = redis_server.command("HGETALL", f"{{{run}:c}}:meta")
    expected = {b"schema": b"3", b"shards": b"3", b"stages": b"2", b"dedup_window_ms": b"60000"}
    assert meta == expected
    again = Layout(shards=3, stages=("generate", "reward"))
    for create in (None, again):
        assert Queue.connect(redis_server.url, run, create=create).layout == made
    with pytest.raises(QueueUnsuitable, match="has shards 3, Layout says 4; a run keeps its sha"):
        Queue.connect(redis_server.url, run, create=Layout(shards=4, stages=made.stages))
    with pytest.raises(QueueUnsuitable, match=r"has stages \['generate', 'reward'\], Layout says"):
        Queue.connect(redis_server.url, run, create=Layout(shards=3))


def test_dedup_window_follows_the_last_client_that_says_so(redis_server: Server, run: str) -> None:
    Queue.connect(redis_server.url, run, create=Layout(dedup_window_s=60))
    Queue.connect(redis_server.url, run, create=Layout(dedup_window_s=30))
    assert Queue.connect(redis_server.url, run, create=Layout()).layout.dedup_window_s == 30


def test_run_of_another_schema_is_left_alone(redis_server: Server, run: str) -> None:
    redis_server.command("HSET", f"{{{run}:c}}:meta", "schema", "9", "shards", "1")
    with pytest.raises(QueueUnsuitable, match="has layout 9, this version speaks 3"):
        Queue.connect(redis_server.url, run)


def test_redis_that_evicts_is_refused(own_server: Callable[..., Server]) -> None:
    server = own_server("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
    with pytest.raises(QueueUnsuitable, match="must be noeviction, got allkeys-lru"):
        Queue.connect(server.url, "run", create=Layout())


def test_safe_durability_needs_a_replica_or_the_disk(
    own_server: Callable[..., Server],
) -> None:
    server = own_server("--save", "")
    with pytest.raises(QueueUnsuitable, match="needs appendonly yes .* got no"):
        Queue.connect(server.url, "run", create=Layout(), durability="safe")
    server.command("CONFIG SET", "appendonly", "yes")
    with pytest.raises(QueueUnsuitable, match="needs appendfsync always .* got everysec"):
        Queue.connect(server.url, "run", create=Layout(), durability="safe")
    server.command("CONFIG SET", "appendfsync", "always")
    Queue.connect(server.url, "run", create=Layout(), durability="safe")
