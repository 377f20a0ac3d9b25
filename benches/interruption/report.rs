//! Figures by their key, beside their goals, as a table and as a file.

use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use serde_json::{Map, Value, json};

/// Figures: the words for them, the key, the goal ("at most") where there is one.
const ROWS: [(&str, &str, Option<f64>); 24] = [
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

/// See the module.
#[derive(Debug, Default)]
pub struct Figures(Map<String, Value>);

impl Figures {
    /// Sets one figure.
    pub fn set(&mut self, key: &str, value: f64) {
        assert!(ROWS.iter().any(|row| row.1 == key), "{key} has no row");
        println!("{key} = {value:.3}");
        self.0.insert(key.to_owned(), json!((value * 1_000.0).round() / 1_000.0));
    }

    /// One line a figure: the words, the value, the goal and whether it holds.
    pub fn table(&self) -> String {
        let mut text = format!("{:66}{:>10}{:>12}\n", "", "measured", "at most");
        for (words, key, goal) in ROWS {
            let Some(value) = self.0.get(key).and_then(Value::as_f64) else { continue };
            let goal = goal.map_or(String::new(), |goal| {
                format!("{goal:>12}{}", if value <= goal { "" } else { "  missed" })
            });
            let _ = writeln!(text, "{words:66}{value:>10.3}{goal}");
        }
        text
    }

    /// Writes `target/bench/interruption.json`; what was not measured is there as null.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self) -> anyhow::Result<()> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/bench");
        let path = folder.join("interruption.json");
        let all = ROWS.map(|row| (row.1, self.0.get(row.1).cloned().unwrap_or_default()));
        let all: Map<String, Value> =
            all.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        let text = serde_json::to_string_pretty(&all)?;
        let problem = || format!("cannot write {}", path.display());
        std::fs::create_dir_all(&folder).with_context(problem)?;
        std::fs::write(&path, text + "\n").with_context(problem)?;
        println!("written: target/bench/interruption.json");
        Ok(())
    }
}

/// The smallest of the values that so many percent of them do not exceed, in ms.
pub fn percentile_ms(values: &[Duration], percent: usize) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort();
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).map_or(f64::NAN, |value| value.as_secs_f64() * 1_000.0)
}
