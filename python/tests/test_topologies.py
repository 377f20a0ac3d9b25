"""Sentinel, Cluster, TLS with users: the same queue behind other doors."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import redis
from servers import Server, free_port, need, until
from worlds import complete, group

from ebbtide import Answer, Layout, Queue, QueueUnavailable, QueueUnsuitable

Start = Callable[..., Server]


def work_through(queue: Queue, first: int, count: int, version: int = 0) -> None:
    """Groups `first` up to `first + count` go all the way."""
    trainer, worker = queue.trainer("t", groups_per_step=1), queue.worker("n")
    for number in range(first, first + count):
        assert trainer.enqueue_group(group(f"g{number}", 2))
    grants = worker.lease(2 * count, weight_version=version).grants
    assert len(grants) == 2 * count
    assert all(reply.answer is Answer.OK for reply in complete(worker, grants, version))
    assert worker.renew(grants[:1]) == [grants[0].unit]
    batch = trainer.next_batch(count)
    assert {taken.group_id for taken in batch} == {f"g{n}" for n in range(first, first + count)}
    assert trainer.acknowledge(batch) == count
    trainer.heartbeat()


def has_replica(master: Server) -> bool:
    return bool(master.client().info("replication").get("slave0", {}).get("state") == "online")


def test_queue_on_a_cluster_of_three_masters(own_server: Start, run: str) -> None:
    servers = cluster(own_server, 3)
    url = "redis+cluster://" + ",".join(f"127.0.0.1:{server.port}" for server in servers[:2])
    layout = Layout(shards=8, stages=("generate",))
    with Queue.connect(url, run, create=layout) as queue:
        work_through(queue, 0, 20)
        holders = [bool(server.command("KEYS", f"{{{run}:*}}:counters")) for server in servers]
        assert all(holders), "every master has a shard"
        trainer = queue.trainer("t", groups_per_step=1)
        trainer.set_policy_version(3)
        assert trainer.next_batch(1, wait_s=0.1) == []
        assert queue.policy_version().version == 3
    own_client = redis.RedisCluster(host="127.0.0.1", port=servers[0].port)
    with own_client, Queue.connect(own_client, run) as queue:
        work_through(queue, 20, 5, version=3)
    with pytest.raises(QueueUnsuitable, match=r"cluster mode: begin its address with redis\+clu"):
        Queue.connect(servers[0].url, run)


def test_shard_that_is_away_does_not_stop_the_others(own_server: Start, run: str) -> None:
    servers = cluster(own_server, 3)
    url = f"redis+cluster://127.0.0.1:{servers[0].port}"
    queue = Queue.connect(url, run, create=Layout(shards=8), retry_for_s=0)
    trainer, worker = queue.trainer("t", groups_per_step=1), queue.worker("n")
    for number in range(40):
        trainer.enqueue_group(group(f"g{number}"))
    for server in servers:
        # The others go on, as a cluster does that need not cover every slot.
        server.command("CONFIG SET", "cluster-require-full-coverage", "no")
    servers[2].kill()
    leased = worker.lease(1000, weight_version=0)
    assert leased.missing_shards and leased.grants
    status = trainer.status()
    assert status.missing_shards.keys() == leased.missing_shards.keys()
    assert len(leased.grants) == status.leased == status.enqueued
    replies = complete(worker, leased.grants)
    assert all(reply.answer is Answer.OK for reply in replies)
    assert len(trainer.next_batch(40)) == len(leased.grants)
    away = next(number for number in range(99) if queue.shard_of(f"x{number}") in
                leased.missing_shards)  # fmt: skip
    with pytest.raises(QueueUnavailable):
        trainer.enqueue_group(group(f"x{away}"))


def test_safe_durability_on_a_cluster_waits_for_the_replica(own_server: Start, run: str) -> None:
    (master,) = cluster(own_server, 1)
    replica = own_server("--save", "", "--cluster-enabled", "yes")
    replica.command("CLUSTER MEET", "127.0.0.1", master.port)
    words = ("CLUSTER REPLICATE", master.command("CLUSTER MYID"))
    until("the replica to know its master", lambda: replica.command(*words))
    until("the replica to be in step", lambda: has_replica(master))
    url = f"redis+cluster://127.0.0.1:{master.port}"
    queue = Queue.connect(url, run, create=Layout(), durability="safe", retry_for_s=0)
    work_through(queue, 0, 3)
    replica.pause()
    with pytest.raises(QueueUnavailable, match="no replica acknowledged the write in time"):
        queue.trainer("t", groups_per_step=1).enqueue_group(group("g"))
    replica.resume()
    assert not queue.trainer("t", groups_per_step=1).enqueue_group(group("g"))


def test_acknowledged_writes_survive_a_failover_by_sentinel(own_server: Start, run: str) -> None:
    master = own_server("--save", "")
    replica = own_server("--save", "", "--replicaof", "127.0.0.1", str(master.port))
    until("the replica to be in step", lambda: has_replica(master))
    sentinel = own_server("--sentinel", program="redis-server")
    sentinel.command("SENTINEL", "MONITOR", "main", "127.0.0.1", master.port, 1)
    sentinel.command("SENTINEL", "SET", "main", "down-after-milliseconds", 300)
    sentinel.command("SENTINEL", "SET", "main", "failover-timeout", 3000)
    until("the sentinel to know the replica", lambda: sentinel.command("SENTINEL REPLICAS", "main"))
    url = f"redis+sentinel://127.0.0.1:{sentinel.port}/main"
    queue = Queue.connect(url, run, create=Layout(), durability="safe", retry_for_s=60)
    trainer, worker = queue.trainer("t", groups_per_step=1), queue.worker("n")
    for number in range(10):
        assert trainer.enqueue_group(group(f"g{number}"))
    grants = worker.lease(10, weight_version=0).grants
    complete(worker, grants[:5])
    master.kill()
    # The sentinel promotes the replica; until then calls are repeated. Nothing replicates then.
    replica_link = Queue.connect(url, run, retry_for_s=60)
    heir = replica_link.worker("n2")
    status = replica_link.status()
    assert (status.enqueued, status.completed) == (10, 5)
    fast = replica_link.trainer("t", groups_per_step=1)
    assert len(fast.next_batch(10)) == 5
    assert all(reply.is_done for reply in complete(heir, heir.lease(5, weight_version=0).grants))
    assert replica.client().info("replication")["role"] == "master"


def test_tls_with_an_authority_and_a_user_of_its_own(
    own_server: Start, run: str, tmp_path: Path
) -> None:
    certificate, key = certify(tmp_path)
    server = TlsServer(own_server, certificate, key)
    server.add_user("trainer", "p@ss")
    url = f"rediss://trainer:p%40ss@127.0.0.1:{server.port}?ca={certificate}"
    with Queue.connect(url, run, create=Layout()) as queue:
        work_through(queue, 0, 2)
    with pytest.raises(QueueUnsuitable, match="refuses this user"):
        Queue.connect(url.replace("p%40ss", "wrong"), run, retry_for_s=0)
    with pytest.raises(QueueUnavailable, match="(?i)certificate"):
        Queue.connect(url.split("?")[0], run, retry_for_s=0)
    with pytest.raises(QueueUnavailable):
        Queue.connect(f"redis://127.0.0.1:{server.port}", run, retry_for_s=0)


class TlsServer:
    """A Redis that speaks TLS on a port of its own, and plain text to its test."""

    def __init__(self, start: Start, certificate: Path, key: Path) -> None:
        self.port = free_port()
        self._server = start(
            "--save", "", "--tls-cert-file", str(certificate), "--tls-key-file", str(key),
            "--tls-ca-cert-file", str(certificate), "--tls-auth-clients", "no",
        )  # fmt: skip
        self._server.command("CONFIG SET", "tls-port", self.port)

    def add_user(self, name: str, password: str) -> None:
        words = ("on", f">{password}", "~*", "&*", "+@all", "-@dangerous", "+info", "+keys")
        self._server.command("ACL SETUSER", name, *words)


def certify(folder: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that is its own authority."""
    certificate, key = folder / "ca.pem", folder / "key.pem"
    subprocess.run(
        [
            need("openssl"), "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
            "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1",
            "-keyout", str(key), "-out", str(certificate),
        ],
        check=True, capture_output=True,
    )  # fmt: skip
    return certificate, key


def cluster(start: Start, masters: int) -> list[Server]:
    """A cluster of so many masters."""
    servers = [start("--save", "", "--cluster-enabled", "yes") for _ in range(masters)]
    for number, server in enumerate(servers):
        first, end = (16384 * place // masters for place in (number, number + 1))
        server.command("CLUSTER ADDSLOTSRANGE", first, end - 1)
        server.command("CLUSTER SET-CONFIG-EPOCH", number + 1)
        if number > 0:
            server.command("CLUSTER MEET", "127.0.0.1", servers[0].port)

    for server in servers:
        until("the cluster to be whole", partial(is_whole, server, masters))
    return servers


def cluster_info(server: Server) -> dict[str, str]:
    info = server.command("CLUSTER INFO")
    if isinstance(info, dict):
        return info
    return dict(line.split(":") for line in info.decode().split())


def nodes_known(server: Server) -> int:
    return int(cluster_info(server)["cluster_known_nodes"])


def is_whole(server: Server, masters: int) -> bool:
    return cluster_info(server)["cluster_state"] == "ok" and nodes_known(server) == masters
