"""Times Celery on empty jobs: `drive.py PORT JOBS CONCURRENCY`.

The pool is `solo`: with one core for the client it was the fastest for jobs that do nothing (by
about a quarter against `threads`, more against `gevent`). The worker reserves as many jobs as the
others have in flight. `acks_late` keeps each job in Redis until it is done, as the others do;
results, events and remote control are off.
"""

import json
import os
import sys
import time

from celery import Celery, signals
from celery.worker import state
from redis import Redis

PAYLOAD_BYTES = 1024


def main(port, jobs, concurrency):
    app = Celery("bench", broker=f"redis://127.0.0.1:{port}/0")
    app.conf.update(
        task_acks_late=True,
        task_ignore_result=True,
        worker_prefetch_multiplier=concurrency,
        worker_disable_rate_limits=True,
        worker_enable_remote_control=False,
        worker_redirect_stdouts=False,
        worker_send_task_events=False,
    )
    done, started = [0], []

    @app.task(name="unit")
    def unit(payload):
        done[0] += 1
        if done[0] == jobs:
            # The worker stops after this job's acknowledgement, before it waits for another.
            state.should_stop = os.EX_OK

    @signals.worker_ready.connect(weak=False)
    def start_clock(**_):
        started.append(time.monotonic())

    enqueue(app, unit, jobs)
    worker = app.Worker(
        pool="solo",
        concurrency=1,
        loglevel="ERROR",
        quiet=True,
        without_gossip=True,
        without_heartbeat=True,
        without_mingle=True,
    )
    worker.start()
    seconds = time.monotonic() - started[0]

    redis = Redis(host="127.0.0.1", port=port)
    left = redis.llen("celery") + redis.hlen("unacked")
    if done[0] != jobs or left != 0:
        sys.exit(f"{done[0]} jobs done of {jobs}, {left} left")
    print(json.dumps({"cyclesPerSecond": jobs / seconds}))


def enqueue(app, unit, jobs):
    payload = "x" * PAYLOAD_BYTES
    with app.producer_pool.acquire(block=True) as producer:
        for _ in range(jobs):
            unit.apply_async((payload,), producer=producer)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
