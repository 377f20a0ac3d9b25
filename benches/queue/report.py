"""What the rounds say: medians with their spread, the goals, and the figures by key."""

import statistics

import contestants

AOF_EVERYSEC_SUFFIX = "AofEverysec"

THROUGHPUT_ROWS = [
    ("floor, batched by 16", "batchedFloorCyclesPerSecond"),
    ("floor, batched by 16, spec copied", "batchedFloorWithSpecCyclesPerSecond"),
    ("floor, unbatched", "unbatchedFloorCyclesPerSecond"),
    ("floor, unbatched, spec copied", "unbatchedFloorWithSpecCyclesPerSecond"),
    ("Ebbtide, batched by 16, groups of 8", "batchedCyclesPerSecondGroupsOf8"),
    ("Ebbtide, batched by 16, groups of 1", "batchedCyclesPerSecondGroupsOf1"),
    ("Ebbtide, unbatched, groups of 8", "unbatchedCyclesPerSecondGroupsOf8"),
    ("Ebbtide, unbatched, groups of 1", "unbatchedCyclesPerSecondGroupsOf1"),
    ("Ebbtide, with partials of 8 KiB", "partialCyclesPerSecond"),
    (f"{contestants.PEERS['apalis']}, batched by 100", "apalisCyclesPerSecond"),
    (f"{contestants.PEERS['bullmq']}, 100 concurrent", "bullmqCyclesPerSecond"),
    (f"{contestants.PEERS['celery']}, 100 reserved", "celeryCyclesPerSecond"),
    (f"{contestants.PEERS['rq']}, one at a time", "rqCyclesPerSecond"),
]
ONCE_ROWS = [
    ("cost at 10^6 waiting units over 10^3", contestants.DEPTH),
    ("cost at 10^5 waiting units over 10^3", contestants.QUICK_DEPTH),
    ("hand-back of 512 units, ms", "handBack512Ms"),
    ("... with all tokens in the tails, ms", "handBack512AllInTailMs"),
    ("hand-back of 125 x 64 units, ms", "handBack125x64Ms"),
    ("... tokens of each stored before", "handBack125x64StoredTokens"),
    ("lease time, ms", "leaseTtlMs"),
    ("units leased again after SIGKILL, ms", "recoveryAfterKillMs"),
    ("bytes per waiting unit, groups of 1", "bytesPerWaitingUnit"),
    ("bytes per waiting unit, groups of 8", "bytesPerWaitingUnitGroupsOf8"),
    ("bytes per partial token", "bytesPerPartialToken"),
    ("Redis µs per append of 20 tokens", "redisMicrosecondsPerAppend"),
    ("Redis µs per renewal", "redisMicrosecondsPerRenewal"),
    ("lease, p50, ms", "leaseP50Ms"),
    ("lease, p99, ms", "leaseP99Ms"),
    ("append, p99, ms", "appendP99Ms"),
    ("complete, p99, ms", "completeP99Ms"),
    ("hand-back of one unit, p99, ms", "handBackP99Ms"),
]
FLOOR = "batchedFloorCyclesPerSecond"
# In queue.json, in this order.
KEYS = [
    *contestants.EBBTIDE_THROUGHPUT,
    *contestants.FLOOR,
    "bullmqCyclesPerSecond",
    "rqCyclesPerSecond",
    "celeryCyclesPerSecond",
    "apalisCyclesPerSecond",
    *contestants.EBBTIDE_ONCE,
    *contestants.LATENCY,
]


def kept(values):
    """All rounds but the first."""
    return values[1:]


def headline(figures, key):
    """The median over the rounds kept, or the value measured once; None when not measured."""
    value = figures.get(key)
    return statistics.median(kept(value)) if isinstance(value, list) else value


def table(passes):
    lines = []
    for aof, figures in passes.items():
        lines += ["", f"{f'AOF {aof}, cycles per second':42}{'min':>10}{'median':>10}{'max':>10}"]
        for name, key in THROUGHPUT_ROWS:
            if key in figures:
                values = kept(figures[key])
                spread = [min(values), statistics.median(values), max(values)]
                lines.append(f"  {name:40}" + "".join(f"{value:10,.0f}" for value in spread))
        for name, key in ONCE_ROWS:
            if figures.get(key) is not None:
                lines.append(f"  {name:40}{'':10}{figures[key]:10,.2f}")
    return "\n".join(lines)


def goals(passes):
    lines = []
    for aof, figures in passes.items():
        lines += ["", f"{f'AOF {aof}, goals':42}{'measured':>10}   wanted"]
        for name, measured, sign, bound in goal_values(figures):
            if measured is None or bound is None:
                lines.append(f"  {name:40}{'-':>10}   not measured")
                continue
            is_met = measured >= bound if sign == ">=" else measured <= bound
            word = "pass" if is_met else "FAIL"
            lines.append(f"  {name:40}{measured:10,.2f}   {sign} {bound:,.2f}  {word}")
    return "\n".join(lines) + "\n"


def goal_values(figures):
    """Name, figure, sign and bound of each goal; None where something was not measured.

    A ratio is the median of the ratios of each round: what the machine did meanwhile met both.
    """

    def value_of(key):
        return headline(figures, key)

    def ratio(above, below):
        pairs = zip(kept(figures.get(above, [])), kept(figures.get(below, [])))
        ratios = [one / other for one, other in pairs]
        return statistics.median(ratios) if ratios else None

    lease_ttl_ms = value_of("leaseTtlMs")
    bullmq = "bullmqCyclesPerSecond"
    ratios = []
    for size, note in [(8, ""), (1, ", groups of 1")]:
        batched = f"batchedCyclesPerSecondGroupsOf{size}"
        unbatched = f"unbatchedCyclesPerSecondGroupsOf{size}"
        ratios += [
            (f"batched / its floor{note}", ratio(batched, FLOOR), ">=", 0.5),
            (f"batched / BullMQ{note}", ratio(batched, bullmq), ">=", 3),
            (f"unbatched / BullMQ{note}", ratio(unbatched, bullmq), ">=", 1.3),
        ]
    return [
        *ratios,
        ("cost at 10^6 over 10^3 units", value_of(contestants.DEPTH), "<=", 1.2),
        ("cost at 10^5 over 10^3 units, --quick", value_of(contestants.QUICK_DEPTH), "<=", 1.2),
        ("hand-back of 512 units, ms", value_of("handBack512Ms"), "<=", 500),
        ("hand-back of 125 x 64 units, ms", value_of("handBack125x64Ms"), "<=", 5_000),
        (
            "units leased again after SIGKILL, ms",
            value_of("recoveryAfterKillMs"),
            "<=",
            None if lease_ttl_ms is None else lease_ttl_ms + 2_000,
        ),
    ]


def figures_by_key(passes):
    """Flat: every key of the benchmark, null where it was not measured."""
    off = {key: rounded(headline(passes.get("off", {}), key)) for key in KEYS}
    everysec = passes.get("everysec", {})
    return off | {
        key + AOF_EVERYSEC_SUFFIX: rounded(headline(everysec, key)) for key in KEYS
    }


def rounded(value):
    return None if value is None else round(value, 3)
