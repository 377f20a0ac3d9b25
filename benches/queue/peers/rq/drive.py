"""Times RQ on empty jobs: `drive.py PORT JOBS CONCURRENCY`.

A SimpleWorker runs one job after the other in its own process, without a fork each, whatever the
concurrency. Results are not kept: that spares a write and a later deletion.
"""

import json
import sys
import time

from redis import Redis
from rq import Queue, SimpleWorker

PAYLOAD_BYTES = 1024
JOBS_A_BULK = 500


def unit(payload):
    """Does nothing; it is imported by name, from this file, by the worker."""


def main(port, jobs, _concurrency):
    connection = Redis(host="127.0.0.1", port=port)
    queue = Queue("bench", connection=connection)
    enqueue(queue, jobs)

    worker = SimpleWorker([queue], connection=connection, log_job_description=False)
    started = time.monotonic()
    worker.work(burst=True, logging_level="ERROR")
    seconds = time.monotonic() - started

    # Nothing is kept of a job that went well.
    left = queue.count + queue.started_job_registry.count + queue.failed_job_registry.count
    if left != 0:
        sys.exit(f"{left} jobs left or failed of {jobs}")
    print(json.dumps({"cyclesPerSecond": jobs / seconds}))


def enqueue(queue, jobs):
    payload = "x" * PAYLOAD_BYTES
    for first in range(0, jobs, JOBS_A_BULK):
        count = min(JOBS_A_BULK, jobs - first)
        job = Queue.prepare_data("drive.unit", args=(payload,), result_ttl=0)
        queue.enqueue_many([job] * count)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
