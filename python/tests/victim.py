"""A client process that stops at a step of its work, to be killed there.

usage: victim.py URL RUN SIDE STEP
Prints `at STEP` when it is there, and what it got before as one line of JSON.
"""

from __future__ import annotations

import json
import signal
import sys

from worlds import STOP, chunk

from ebbtide import Queue, Write


def main() -> None:
    url, run, side, stop_at = sys.argv[1:]

    def step(name: str, **got: object) -> None:
        if name == stop_at:
            print(json.dumps({"at": name} | got), flush=True)
            signal.pause()

    queue = Queue.connect(url, run)
    if side == "worker":
        worker = queue.worker("victim", lease_s=0.2)
        step("before the lease")
        grants = worker.lease(2, weight_version=0).grants
        step("leased", units=[grant.unit for grant in grants])
        worker.write([Write.append(grant, [chunk(0, 3)]) for grant in grants])
        step("appended")
        worker.complete(grants[0], STOP, [chunk(3, 1)])
        step("completed one")
        worker.exchange([Write.complete(grants[1], STOP, [chunk(3, 1)])], 2, weight_version=0)
        step("exchanged")
    else:
        trainer = queue.trainer("victim", groups_per_step=2)
        batch = trainer.next_batch(2)
        step("taken", groups=[group.group_id for group in batch])
        trainer.set_policy_version(1)
        step("published")
        trainer.acknowledge(batch[:1])
        step("acknowledged one")
        trainer.acknowledge(batch)
        step("acknowledged")
    raise SystemExit(f"no step {stop_at!r}")


main()
