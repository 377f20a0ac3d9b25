"""Who takes part: how each is started, how many jobs it gets, and which figures it prints.

A driver enqueues its jobs, untimed, then times processing all of them, and prints one JSON line.
Job counts are such that a round of each takes some seconds.
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field

import install

# In the order in which they run in each round.
NAMES = ["ebbtide", "bullmq", "rq", "celery", "apalis"]

# What the peers are called, in the versions that their manifests pin.
PEERS = {
    "bullmq": "BullMQ " + install.pinned_version("bullmq/package.json", "bullmq"),
    "rq": "RQ " + install.pinned_version("rq/requirements.txt", "rq"),
    "celery": "Celery " + install.pinned_version("celery/requirements.txt", "celery"),
    "apalis": "apalis-redis " + install.pinned_version("apalis/Cargo.toml", "apalis-redis"),
}

CONCURRENCY = 100
QUICK_DIVISOR = 5
TIME_LIMIT_SECONDS = 600

CYCLES = "cyclesPerSecond"
FLOOR = [
    "batchedFloorCyclesPerSecond",
    "unbatchedFloorCyclesPerSecond",
    "batchedFloorWithSpecCyclesPerSecond",
    "unbatchedFloorWithSpecCyclesPerSecond",
]
EBBTIDE_THROUGHPUT = [
    "batchedCyclesPerSecond",
    "batchedCyclesPerSecondGroupsOf8",
    "batchedCyclesPerSecondGroupsOf1",
    "unbatchedCyclesPerSecond",
    "unbatchedCyclesPerSecondGroupsOf8",
    "unbatchedCyclesPerSecondGroupsOf1",
    "partialCyclesPerSecond",
]
LATENCY = [
    f"{call}{percentile}"
    for call in ["lease", "append", "complete", "handBack"]
    for percentile in ["P50Ms", "P99Ms", "P999Ms"]
]
# A quick run measures the depth of 10^5 in place of that of 10^6.
DEPTH, QUICK_DEPTH = "depthSlowdown1e6Over1e3", "depthSlowdown1e5Over1e3"
EBBTIDE_ONCE = [
    DEPTH,
    QUICK_DEPTH,
    "handBack512Ms",
    "handBack512AllInTailMs",
    "handBack125x64Ms",
    "handBack125x64StoredTokens",
    "leaseTtlMs",
    "recoveryAfterKillMs",
    "bytesPerWaitingUnit",
    "bytesPerWaitingUnitGroupsOf8",
    "bytesPerPartialToken",
    "redisMicrosecondsPerAppend",
    "redisMicrosecondsPerRenewal",
    "redisMicrosecondsPerCycle",
]


@dataclass
class Contestant:
    """`{port}` in a command stands for Redis's port."""

    name: str
    core: int
    command: list
    # Key that the driver prints -> key of the report.
    figures: dict
    # What one round need not repeat: its command repeats it by itself.
    command_once: list = field(default_factory=list)
    figures_once: list = field(default_factory=list)
    environment: dict = field(default_factory=dict)

    def run_round(self, port):
        printed = self.run(self.command, port)
        return {key: printed[theirs] for theirs, key in self.figures.items()}

    def run_once(self, port):
        printed = self.run(self.command_once, port)
        return {key: printed.get(key) for key in self.figures_once}

    def run(self, command, port):
        words = [str(word).replace("{port}", str(port)) for word in command]
        try:
            answer = subprocess.run(
                words,
                cwd=install.ROOT,
                env={**os.environ, **self.environment},
                capture_output=True,
                text=True,
                timeout=TIME_LIMIT_SECONDS,
                preexec_fn=lambda: os.sched_setaffinity(0, {self.core}),
            )
        except subprocess.TimeoutExpired:
            sys.exit(f"\n{self.name} was not done within {TIME_LIMIT_SECONDS} s")
        if answer.returncode != 0:
            said = (answer.stdout + answer.stderr)[-4000:]
            sys.exit(f"\n{self.name} exited with {answer.returncode}:\n{said}")
        return json.loads(answer.stdout.strip().splitlines()[-1])


def prepare(names, quick, core):
    """Installs and builds what the named contestants need."""
    makers = {
        "ebbtide": ebbtide,
        "bullmq": bullmq,
        "rq": rq,
        "celery": celery,
        "apalis": apalis,
    }
    return [makers[name](quick, core) for name in names]


def job_count(full, quick):
    return full // QUICK_DIVISOR if quick else full


def ebbtide(quick, core):
    """Its command measures the floor as well, each in turn within a round."""
    command = [install.ebbtide_binary(), "bench", "queue", "--output", "json"]
    command += ["--redis", "redis://127.0.0.1:{port}"]
    if quick:
        command.append("--quick")
    throughput = [*FLOOR, *EBBTIDE_THROUGHPUT]
    once = "latency,depth,hand-back,recovery,memory,shards"
    return Contestant(
        "ebbtide",
        core,
        [*command, "--only", "throughput", "--rounds", "1"],
        {key: key for key in throughput},
        command_once=[*command, "--only", once],
        figures_once=EBBTIDE_ONCE + LATENCY,
    )


def bullmq(quick, core):
    modules = install.node_modules("bullmq")
    driver = install.HERE / "peers/bullmq/drive.js"
    command = ["node", driver, "{port}", job_count(30_000, quick), CONCURRENCY]
    environment = {"NODE_PATH": str(modules), "NODE_ENV": "production"}
    figures = {CYCLES: "bullmqCyclesPerSecond"}
    return Contestant("bullmq", core, command, figures, environment=environment)


def rq(quick, core):
    return python_peer("rq", job_count(600, quick), core)


def celery(quick, core):
    return python_peer("celery", job_count(3_000, quick), core)


def python_peer(name, jobs, core):
    python = install.python_environment(name)
    command = [python, install.HERE / "peers" / name / "drive.py", "{port}", jobs, CONCURRENCY]
    environment = {"PYTHONDONTWRITEBYTECODE": "1"}
    return Contestant(
        name, core, command, {CYCLES: f"{name}CyclesPerSecond"}, environment=environment
    )


def apalis(quick, core):
    driver = install.cargo_binary("peers/apalis", "apalis-driver")
    command = [driver, "{port}", job_count(60_000, quick), CONCURRENCY]
    return Contestant("apalis", core, command, {CYCLES: "apalisCyclesPerSecond"})
