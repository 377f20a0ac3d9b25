"""One run's queue: connecting to it, and what stands in it."""

from __future__ import annotations

from types import TracebackType

import redis
import redis.cluster

from . import _checks as checks
from . import control, status
from .connections import open_address, wrap
from .control import Drain, Engine, PolicyVersion
from .errors import EbbtideError, InvalidInput
from .layout import Durability, Layout, agree_on_layout, check_servers
from .link import Link
from .names import Holder, check_consumer, check_node, check_run, shard_of
from .status import Failure, Status
from .trainer import Trainer
from .worker import ProgressLimits, Worker


class Queue:
    """The work queue and experience buffer of one run. Threads may share it.

    Every call that gets no answer is sent again for `retry_for_s` seconds, and then raises
    `QueueUnavailable`: sending it once more does no harm.
    """

    def __init__(self, link: Link, layout: Layout) -> None:
        """Use `Queue.connect`."""
        self._link = link
        #: How the run is laid out.
        self.layout = layout

    @classmethod
    def connect(
        cls,
        redis: str | redis.Redis | redis.cluster.RedisCluster,
        run: str,
        *,
        create: Layout | None = None,
        durability: Durability | str = Durability.FAST,
        retry_for_s: float = 10.0,
    ) -> Queue:
        """Connects, checks that this Redis is fit for a queue, and agrees on the run's layout.

        Args:
            redis: an address: `redis://[user:password@]host[:port][/db]`,
                `redis+sentinel://host:port,host:port/MASTER[/db]`,
                `redis+cluster://host:port,host:port`, each with `rediss` for TLS and then
                `?ca=/path.pem` for an authority of your own. Or a client of yours (a Sentinel
                master too) that does not decode responses; its own time limits and retries hold.
            run: the run id, the `metadata.name` of its fleet policy.
            create: how to lay the run out when nobody has yet; checked against what stands.
                `None` takes what stands.
            durability: what an acknowledged write must survive: `fast` or `safe`.
            retry_for_s: how long, in seconds, a call that got no answer is sent again; 0: once.

        Raises:
            InvalidInput: an argument is out of its range.
            QueueUnavailable: no answer, or nobody has started the run; try again.
            QueueUnsuitable: this Redis must be set up differently, or the run is laid out
                differently; the message says what to do.
        """
        check_run(run)
        retry_ms = checks.seconds_as_ms("retry_for_s", retry_for_s)
        durability = checks.word("durability", Durability, durability)
        connection = open_address(redis) if isinstance(redis, str) else wrap(redis)
        link = Link(connection, run, retry_for_s=retry_ms / 1000)
        try:
            check_servers(link, durability)
            return cls(link, agree_on_layout(link, create))
        except EbbtideError:
            link.close()
            raise

    @property
    def run(self) -> str:
        """The run id."""
        return self._link.run

    def trainer(self, consumer: str, *, groups_per_step: int) -> Trainer:
        """The trainer's side of the run.

        Args:
            consumer: a name that survives the trainer's restart: under it, groups that were taken
                and not acknowledged come again.
            groups_per_step: groups that one update consumes; the controller sizes by it.

        Raises:
            InvalidInput: an argument is out of its range.
            QueueUnavailable: no answer.
        """
        check_consumer(consumer)
        checks.whole("groups_per_step", groups_per_step, 1, (1 << 32) - 1)
        return Trainer(self._link, self.layout, consumer, groups_per_step)

    def worker(
        self,
        holder: Holder | str,
        *,
        lease_s: float = 15.0,
        limits: ProgressLimits | None = None,
    ) -> Worker:
        """The side of those who generate or score.

        Args:
            holder: the node's name as its agent reports it, for a new process on this boot of it
                (`Holder.of_worker`); or a `Holder`, of which only one worker must exist at a time.
            lease_s: how long a lease lasts without renewal, in seconds.
            limits: how long a lease may go without progress.

        Raises:
            InvalidInput: an argument is out of its range.
        """
        if isinstance(holder, str):
            holder = Holder.of_worker(holder)
        if holder.process.startswith("agent-"):
            raise InvalidInput(
                f"process of a worker must not begin with agent-, got {holder.process!r}: a "
                "restarted agent would take back what it holds"
            )
        lease_ms = checks.seconds_as_ms("lease_s", lease_s, 0.001)
        return Worker(self._link, self.layout, holder, lease_ms, limits or ProgressLimits())

    def shard_of(self, group_id: str) -> int:
        """The shard of a group."""
        return shard_of(group_id, self.layout.shards)

    def status(self) -> Status:
        """Counters and depths, summed over the shards that answer.

        Raises:
            QueueUnavailable: no shard answers.
        """
        return status.read_status(self._link, self.layout.shards)

    def failures(self, shard: int, *, after: str = "", limit: int = 100) -> list[Failure]:
        """The records of failed groups and dead units of one shard, oldest first.

        Args:
            shard: 0 up to `layout.shards`.
            after: the `record_id` after which to go on; '' begins.
            limit: most records, 1 to 1000.

        Raises:
            InvalidInput: an argument is out of its range.
            QueueUnavailable: no answer.
        """
        checks.whole("shard", shard, 0, self.layout.shards - 1)
        checks.whole("limit", limit, 1, 1000)
        return status.read_failures(self._link, shard, after, limit)

    def engines(self) -> list[Engine]:
        """Every engine on record, by replica and number.

        Raises:
            QueueUnavailable: no answer.
        """
        return control.read_engines(self._link)

    def drain_of(self, node: str) -> Drain | None:
        """The drain that a node is under; `None` when its workers may lease.

        A worker that leases straight from the queue asks this about its node every second, from
        before its first lease: nobody else tells it, and nobody can stop it.

        Raises:
            InvalidInput: no node name.
            QueueUnavailable: no answer.
        """
        check_node(node)
        return control.read_drain(self._link, node)

    def policy_version(self) -> PolicyVersion:
        """The policy version that is published.

        Raises:
            QueueUnavailable: no answer.
        """
        return control.read_policy_version(self._link)

    def close(self) -> None:
        """Closes the connections, but not a client of the caller's; leases and taken groups stay
        as they are."""
        self._link.close()

    def __enter__(self) -> Queue:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
