//! The figures of this benchmark.

use ebbtide_harness::FigureRow;

/// The words, the key, the goal where there is one.
pub const ROWS: [FigureRow; 25] = [
    (
        "notice to the last of 64 units handed back, median, ms",
        "noticeToHandedBackP50Ms",
        Some(1_000.0),
    ),
    ("... 99th percentile", "noticeToHandedBackP99Ms", Some(1_500.0)),
    ("of it until the agent has read it, median", "noticeToDetectionP50Ms", None),
    ("... 99th percentile", "noticeToDetectionP99Ms", None),
    ("the rest, median", "detectionToHandedBackP50Ms", None),
    ("... 99th percentile", "detectionToHandedBackP99Ms", Some(250.0)),
    ("tokens of one unit that were not stored yet, mean", "tailTokensMean", None),
    ("tokens that came too late to be handed back", "lateTokens", None),
    ("notices measured", "noticesMeasured", None),
    ("125 nodes at once, median, ms", "fleet125NoticeToHandedBackP50Ms", None),
    ("... 99th percentile", "fleet125NoticeToHandedBackP99Ms", Some(5_000.0)),
    ("... tokens that came too late, all together", "fleet125LateTokens", None),
    ("... leases that had run out before", "fleet125LostLeases", None),
    ("EP group of 8: write to the last closed gate, median, ms", "groupStopP50Ms", None),
    ("... 99th percentile", "groupStopP99Ms", Some(250.0)),
    (
        "API server in order: notice to handed back, 99th percentile, ms",
        "apiServerNoticeToHandedBackP99Ms",
        None,
    ),
    ("API server answers in 10 s", "apiServerSlowNoticeToHandedBackP99Ms", Some(1_500.0)),
    ("API server throttles", "apiServerThrottlesNoticeToHandedBackP99Ms", Some(1_500.0)),
    ("API server away", "apiServerAwayNoticeToHandedBackP99Ms", Some(1_500.0)),
    ("notice to cordoned node, median, ms", "noticeToCordonedP50Ms", Some(1_840.0)),
    ("... worst", "noticeToCordonedMaxMs", Some(2_590.0)),
    ("idle agent: resident memory, MiB", "idleRssMiB", Some(20.0)),
    ("idle agent: CPU, % of one core", "idleCpuPercent", Some(0.1)),
    ("idle agent: metadata requests per second", "imdsRequestsPerSecond", Some(3.0)),
    ("idle agent: watched for, s", "idleSeconds", None),
];
