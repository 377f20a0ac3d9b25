//! The journal's file: bounded, a full one moves aside.

use std::io::Write;
use std::path::{Path, PathBuf};

/// Largest file.
pub(super) const FILE_LIMIT_BYTES: u64 = 64 << 20;

/// Files that are kept, the one that is written included. 8 × 64 MiB: a tick of 48 replicas of
/// four nodes that all change is 5 KiB, and a day of that, at one every 5 s, 80 MiB.
pub(super) const FILES_KEPT: u32 = 8;

/// Where lines go, in full and aside.
pub(super) struct JournalFile {
    path: PathBuf,
    written: u64,
    limit: u64,
    was_failing: bool,
}

impl JournalFile {
    /// A file that goes on where it ends.
    pub fn new(path: PathBuf) -> Self {
        let written = std::fs::metadata(&path).map_or(0, |metadata| metadata.len());
        Self { path, written, limit: FILE_LIMIT_BYTES, was_failing: false }
    }

    /// Makes room for so many bytes; `true` when a new file begins.
    pub fn make_room(&mut self, bytes: usize) -> bool {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        if self.written == 0 || self.written.saturating_add(bytes) <= self.limit {
            return false;
        }
        let outcome = self.move_aside();
        self.tell(&outcome);
        self.written = 0;
        outcome.is_ok()
    }

    /// Appends a line; `false` when it could not be written. That is told once.
    pub fn append(&mut self, line: &str) -> bool {
        let outcome = self.try_append(line);
        self.tell(&outcome);
        outcome.is_ok()
    }

    fn try_append(&mut self, line: &str) -> std::io::Result<()> {
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(&self.path)?;
        file.write_all(format!("{line}\n").as_bytes())?;
        self.written += u64::try_from(line.len() + 1).unwrap_or(u64::MAX);
        Ok(())
    }

    fn move_aside(&self) -> std::io::Result<()> {
        for number in (1..FILES_KEPT - 1).rev() {
            let older = numbered(&self.path, number);
            if older.exists() {
                std::fs::rename(older, numbered(&self.path, number + 1))?;
            }
        }
        std::fs::rename(&self.path, numbered(&self.path, 1))
    }

    fn tell(&mut self, outcome: &std::io::Result<()>) {
        let file = self.path.display();
        match outcome {
            Err(error) if !self.was_failing => {
                tracing::error!(%error, %file, "journal cannot be written");
            }
            Ok(()) if self.was_failing => tracing::info!(%file, "journal is written again"),
            _ => {}
        }
        self.was_failing = outcome.is_err();
    }
}

/// The name of a journal's file that has moved aside so many times.
fn numbered(path: &Path, number: u32) -> PathBuf {
    path.with_added_extension(number.to_string())
}

/// The files of a journal that are there, the oldest first.
pub fn files_of(path: &Path) -> Vec<PathBuf> {
    let aside = (1..FILES_KEPT).rev().map(|number| numbered(path, number));
    let present = aside.filter(|path| path.exists());
    present.chain([path.to_owned()]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_file_moves_aside_and_the_oldest_goes() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("journal.jsonl");
        let mut file = JournalFile { limit: 20, ..JournalFile::new(path.clone()) };
        for number in 0..30_u32 {
            let line = format!("line {number:04}");
            file.make_room(line.len() + 1);
            assert!(file.append(&line));
        }
        let files = files_of(&path);
        assert_eq!(files.len(), FILES_KEPT as usize);
        let read = |path: &PathBuf| std::fs::read_to_string(path).expect("written");
        let lines: String = files.iter().map(read).collect();
        let kept: Vec<&str> = lines.lines().collect();
        assert_eq!(kept.len(), 16, "two of ten bytes fit into each");
        assert_eq!((kept[0], kept[15]), ("line 0014", "line 0029"));
    }

    #[test]
    fn journal_that_cannot_be_written_stops_nothing() {
        let mut file = JournalFile::new(PathBuf::from("/proc/no/such/place"));
        assert!(!file.append("line"));
        assert!(file.was_failing);
    }
}
