//! Records of sizing, from a journal's files or from the stream of a run.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;

use anyhow::Context;
use ebbtide_controller::journal::files_of;
use ebbtide_core::ids::RunId;
use ebbtide_core::journal::{DecodeError, Decoder, Record};
use ebbtide_core::scale::Role;
use ebbtide_core::time::UnixMillis;
use ebbtide_queue::client::WorkQueue;

use crate::place::{Output, Place, RedisArgs};

/// Most lines that are read of a stream, which keeps no more.
const STREAM_LIMIT_LINES: usize = 200_000;

/// Problems that are repeated to the reader.
const PROBLEMS_SHOWN: usize = 3;

/// What was read, beside the records themselves: a day of them does not fit into memory.
#[derive(Debug, Default)]
pub struct Reading {
    /// What was wrong with lines that could not be read; the first few.
    pub problems: Vec<String>,
    /// How many these were.
    pub unreadable: u64,
    /// By worker group.
    newest: BTreeMap<Role, UnixMillis>,
}

impl Reading {
    fn take(
        &mut self,
        decoder: &mut Decoder,
        line: &str,
        place: &str,
        each: &mut impl FnMut(Record),
    ) {
        match decoder.decode(line) {
            // A line that was written twice is one moment.
            Ok(Some(record)) if self.newest.get(&record.role) != Some(&record.at()) => {
                self.newest.insert(record.role, record.at());
                each(record);
            }
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
}

/// Reads a journal's files, those that have moved aside first, and hands out each record.
///
/// # Errors
/// A file cannot be read.
pub fn read_files(path: &Path, mut each: impl FnMut(Record)) -> anyhow::Result<Reading> {
    let mut reading = Reading::default();
    for path in files_of(path) {
        let name = path.display().to_string();
        let file = std::fs::File::open(&path)
            .with_context(|| format!("cannot read the journal {name}"))?;
        let mut decoder = Decoder::default();
        for line in BufReader::new(file).lines() {
            let line = line.with_context(|| format!("cannot read the journal {name}"))?;
            reading.take(&mut decoder, &line, &name, &mut each);
        }
    }
    Ok(reading)
}

/// Reads the newest lines of the run's stream, at most `limit`, and hands out each record.
///
/// # Errors
/// No answer.
pub async fn read_stream(
    queue: &WorkQueue,
    limit: usize,
    mut each: impl FnMut(Record),
) -> anyhow::Result<Reading> {
    let lines = queue.journal(limit).await?;
    let (mut reading, mut decoder) = (Reading::default(), Decoder::default());
    for line in lines.iter().rev() {
        reading.take(&mut decoder, &line.line, "the queue's journal", &mut each);
    }
    Ok(reading)
}

/// The same, all of it.
///
/// # Errors
/// No answer.
pub async fn read_whole_stream(
    queue: &WorkQueue,
    each: impl FnMut(Record),
) -> anyhow::Result<Reading> {
    read_stream(queue, STREAM_LIMIT_LINES, each).await
}

/// The queue of a run.
///
/// # Errors
/// It is not reachable, or does not exist.
pub async fn connect(url: &str, run: &RunId) -> anyhow::Result<WorkQueue> {
    let redis = RedisArgs { url: url.to_owned() };
    Place { redis, run: run.clone(), output: Output::Text }.connect().await
}
