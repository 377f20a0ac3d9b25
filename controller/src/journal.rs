//! The journal: what was seen and decided at every tick, enough to decide it again
//! (`ebbtide policy replay`), in a bounded file and, by the leader, in a bounded stream of the run.
//! Without a file, decisions that are news go to the log.

mod file;
mod news;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;
use std::time::Duration;

use ebbtide_core::journal::{Encoder, Record, RecordText, WHOLE_EVERY, pack};
use ebbtide_core::scale::Role;
use ebbtide_queue::client::WorkQueue;
use serde_json::Value;

use self::file::JournalFile;
pub use self::file::files_of;
use self::news::News;
pub(crate) use self::news::summarize;

/// Longest time of a write to the stream: the loop does not wait for a slow queue.
const STREAM_LIMIT: Duration = Duration::from_secs(1);

/// What the stream may take of the queue's memory, or so.
const STREAM_LIMIT_BYTES: u64 = 32 << 20;

/// Most lines that the stream has, however short: six days at one every 5 s.
const STREAM_LIMIT_LINES: usize = 100_000;

/// Where records go.
pub struct Journal {
    file: Option<(JournalFile, Encoder)>,
    news: BTreeMap<Role, News>,
    stream: Stream,
}

impl Journal {
    /// A journal in this file; without one, decisions are told in the log.
    pub fn new(file: Option<PathBuf>) -> Self {
        let file = file.map(|path| (JournalFile::new(path), Encoder::default()));
        Self { file, news: BTreeMap::new(), stream: Stream::default() }
    }

    /// Writes a record. A journal that cannot be written is reported and stops nothing.
    pub(crate) async fn record(&mut self, record: &Record, observed: &Value, queue: &WorkQueue) {
        let leads = record.generation > 0;
        if self.file.is_some() || leads {
            let text = RecordText::of(record);
            if let Some((file, encoder)) = &mut self.file {
                write(file, encoder, &text);
            }
            if leads {
                self.stream.add(record, &text, queue).await;
            } else {
                self.stream.encoder.begin_anew();
            }
        }
        if self.file.is_none()
            && let Some(line) = self.news.entry(record.role).or_default().line(record, observed)
        {
            tracing::info!(target: "ebbtide::journal", decision = %line, "decision");
        }
    }
}

/// Each file begins with a whole record, so that it can be read without the one before.
fn write(file: &mut JournalFile, encoder: &mut Encoder, text: &RecordText) {
    let mut line = encoder.encode(text);
    if file.make_room(line.len() + 1) {
        encoder.begin_anew();
        line = encoder.encode(text);
    }
    if !file.append(&line) {
        encoder.begin_anew();
    }
}

/// The stream of the run.
#[derive(Default)]
struct Stream {
    encoder: Encoder,
    /// Worker groups that it has rows of.
    roles: BTreeSet<Role>,
    /// Lengths of the lines of this process that fit, the newest at the back, and their sum.
    lengths: VecDeque<u64>,
    bytes: u64,
    was_failing: bool,
}

impl Stream {
    async fn add(&mut self, record: &Record, text: &RecordText, queue: &WorkQueue) {
        self.roles.insert(record.role);
        let line = pack(self.encoder.encode(text));
        self.note(line.len());
        let added = queue.add_journal(record.generation, line, self.kept());
        let written = tokio::time::timeout(STREAM_LIMIT, added);
        let problem = match written.await {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some(format!("no answer within {STREAM_LIMIT:?}")),
        };
        if let Some(problem) = &problem {
            self.encoder.begin_anew();
            if !self.was_failing {
                tracing::warn!(%problem, "journal is not in the queue");
            }
        }
        self.was_failing = problem.is_some();
    }

    /// Takes note of one more line, and of those that do not fit beside it any more.
    fn note(&mut self, length: usize) {
        let length = u64::try_from(length).unwrap_or(u64::MAX);
        self.lengths.push_back(length);
        self.bytes = self.bytes.saturating_add(length);
        while self.bytes > STREAM_LIMIT_BYTES || self.lengths.len() > STREAM_LIMIT_LINES {
            let Some(oldest) = self.lengths.pop_front() else { break };
            self.bytes -= oldest;
        }
    }

    /// How many lines fit, those of earlier processes taken to be as long as its own, and two whole
    /// ones of each group with all between in any case.
    fn kept(&self) -> usize {
        let own = u64::try_from(self.lengths.len()).unwrap_or(u64::MAX);
        let mean = (self.bytes / own.max(1)).max(1);
        let earlier = STREAM_LIMIT_BYTES.saturating_sub(self.bytes) / mean;
        let fit = usize::try_from(own + earlier).unwrap_or(usize::MAX);
        fit.clamp(2 * WHOLE_EVERY as usize * self.roles.len().max(1), STREAM_LIMIT_LINES)
    }
}

#[cfg(test)]
mod day;
#[cfg(test)]
mod tests;
