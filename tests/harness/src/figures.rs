//! Figures of a benchmark by their key, beside their goals, as a table and as a file; and what a
//! process costs.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use serde_json::{Map, Value, json};

/// The words for a figure, its key, and its goal ("at most") where there is one.
pub type FigureRow = (&'static str, &'static str, Option<f64>);

/// What was measured so far.
#[derive(Debug)]
pub struct Figures {
    name: &'static str,
    rows: &'static [FigureRow],
    values: BTreeMap<&'static str, Figure>,
}

/// What was found for one key.
#[derive(Debug, Clone, Copy)]
enum Figure {
    Number(f64),
    Truth(bool),
}

impl Figures {
    /// Those of the benchmark `name`, none of them measured yet.
    #[must_use]
    pub fn new(name: &'static str, rows: &'static [FigureRow]) -> Self {
        Self { name, rows, values: BTreeMap::new() }
    }

    /// Sets one figure.
    ///
    /// # Panics
    /// It has no row.
    pub fn set(&mut self, key: &str, value: f64) {
        println!("{key} = {value:.3}");
        self.note(key, Figure::Number(value));
    }

    /// Sets whether something holds.
    ///
    /// # Panics
    /// It has no row.
    pub fn set_truth(&mut self, key: &str, holds: bool) {
        println!("{key} = {holds}");
        self.note(key, Figure::Truth(holds));
    }

    fn note(&mut self, key: &str, figure: Figure) {
        let row = self.rows.iter().find(|row| row.1 == key);
        let (_, key, _) = row.unwrap_or_else(|| panic!("{key} has no row"));
        self.values.insert(key, figure);
    }

    /// One line a figure: the words, the value, the goal and whether it holds.
    #[must_use]
    pub fn table(&self) -> String {
        let mut text = format!("{:66}{:>10}{:>12}\n", "", "measured", "at most");
        for (words, key, goal) in self.rows {
            let value = match self.values.get(key) {
                Some(Figure::Number(value)) => value,
                Some(Figure::Truth(holds)) => {
                    let _ = writeln!(text, "{words:66}{holds:>10}");
                    continue;
                }
                None => continue,
            };
            let goal = goal.map_or(String::new(), |goal| {
                format!("{goal:>12}{}", if *value <= goal { "" } else { "  missed" })
            });
            let _ = writeln!(text, "{words:66}{value:>10.3}{goal}");
        }
        text
    }

    /// Writes `target/bench/NAME.json` below `root`; what was not measured is there as null.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, root: &Path) -> anyhow::Result<()> {
        let file = format!("target/bench/{}.json", self.name);
        let path = root.join(&file);
        let written = |figure: &Figure| match figure {
            Figure::Number(value) => json!((value * 1_000.0).round() / 1_000.0),
            Figure::Truth(holds) => json!(holds),
        };
        let value = |key| self.values.get(key).map_or(Value::Null, written);
        let all: Map<String, Value> =
            self.rows.iter().map(|(_, key, _)| ((*key).to_owned(), value(key))).collect();
        let text = serde_json::to_string_pretty(&all)?;
        let problem = || format!("cannot write {}", path.display());
        std::fs::create_dir_all(root.join("target/bench")).with_context(problem)?;
        std::fs::write(&path, text + "\n").with_context(problem)?;
        println!("written: {file}");
        Ok(())
    }
}

/// The smallest of the values that so many percent of them do not exceed, in ms.
#[must_use]
pub fn percentile_ms(values: &[Duration], percent: usize) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort();
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).map_or(f64::NAN, |value| value.as_secs_f64() * 1_000.0)
}

/// How long the threads of a process have run on any core
/// (`/proc/PID/task/*/schedstat`, in ns); those that have ended are left out.
///
/// # Errors
/// The kernel does not say.
pub fn cpu_time(process_id: u32) -> anyhow::Result<Duration> {
    let mut all = Duration::ZERO;
    for thread in std::fs::read_dir(format!("/proc/{process_id}/task"))? {
        let text = std::fs::read_to_string(thread?.path().join("schedstat"))?;
        let run = text.split(' ').next().context("schedstat has no run time")?;
        all += Duration::from_nanos(run.parse()?);
    }
    Ok(all)
}

/// Resident memory of a process (`VmRSS`), in MiB.
///
/// # Errors
/// The kernel does not say.
pub fn resident_mib(process_id: u32) -> anyhow::Result<f64> {
    let text = std::fs::read_to_string(format!("/proc/{process_id}/status"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.trim().strip_suffix(" kB"));
    let kib: f64 = number.context("VmRSS is missing")?.trim().parse()?;
    Ok(kib / 1024.0)
}
