//! Records of sizing, from a journal's files or from the stream of a run.

use std::io::{BufRead, BufReader};
use std::path::Path;

use anyhow::Context;
use ebbtide_controller::journal::files_of;
use ebbtide_core::ids::RunId;
use ebbtide_core::journal::{DecodeError, Decoder, Record};
use ebbtide_core::time::UnixMillis;
use ebbtide_queue::client::WorkQueue;

use crate::place::{Output, Place, RedisArgs};

/// Most lines that are read of a stream, which keeps no more.
const STREAM_LIMIT_LINES: usize = 200_000;

/// Records in the order of time, and how many lines were none.
#[derive(Default)]
pub struct Records {
    pub records: Vec<Record>,
    /// What was wrong with lines that could not be read; the first few.
    pub problems: Vec<String>,
    pub unreadable: u64,
}

/// Problems that are repeated to the reader.
const PROBLEMS_SHOWN: usize = 3;

impl Records {
    fn take(&mut self, decoder: &mut Decoder, line: &str, place: &str) {
        match decoder.decode(line) {
            // A line that was written twice is one moment.
            Ok(Some(record)) if self.newest() != Some(record.at()) => self.records.push(record),
            Ok(_) => {}
            Err(error) => self.refuse(&error, place),
        }
    }

    fn refuse(&mut self, error: &DecodeError, place: &str) {
        self.unreadable += 1;
        if self.problems.len() < PROBLEMS_SHOWN {
            self.problems.push(format!("{place}: {error}"));
        }
    }

    fn newest(&self) -> Option<UnixMillis> {
        self.records.last().map(Record::at)
    }
}

/// Reads a journal's files, those that have moved aside first.
///
/// # Errors
/// A file cannot be read.
pub fn read_files(path: &Path) -> anyhow::Result<Records> {
    let mut found = Records::default();
    for path in files_of(path) {
        let name = path.display().to_string();
        let file = std::fs::File::open(&path)
            .with_context(|| format!("cannot read the journal {name}"))?;
        let mut decoder = Decoder::default();
        for line in BufReader::new(file).lines() {
            let line = line.with_context(|| format!("cannot read the journal {name}"))?;
            found.take(&mut decoder, &line, &name);
        }
    }
    Ok(found)
}

/// Reads the newest lines of the run's stream.
///
/// # Errors
/// No answer.
pub async fn read_stream(queue: &WorkQueue, limit: usize) -> anyhow::Result<Records> {
    let lines = queue.journal(limit).await?;
    let (mut found, mut decoder) = (Records::default(), Decoder::default());
    for line in lines.iter().rev() {
        found.take(&mut decoder, &line.line, "the queue's journal");
    }
    Ok(found)
}

/// The same, all of it.
///
/// # Errors
/// No answer.
pub async fn read_whole_stream(queue: &WorkQueue) -> anyhow::Result<Records> {
    read_stream(queue, STREAM_LIMIT_LINES).await
}

/// The queue of a run.
///
/// # Errors
/// It is not reachable, or does not exist.
pub async fn connect(url: &str, run: &RunId) -> anyhow::Result<WorkQueue> {
    let redis = RedisArgs { url: url.to_owned() };
    Place { redis, run: run.clone(), output: Output::Text }.connect().await
}
