//! One folder per started service, `target/tests-run/<process id>/<service>-<n>/`, with `log` and
//! `data` in it.
//!
//! The data goes when the service ends, unless a test is failing just then; the logs stay until the
//! next `tests/run` begins, or this one ends green. A process that was killed leaves its data
//! behind; the next test process removes it.

use std::{
    ffi::OsStr,
    fs,
    io::{Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    process,
    sync::{
        Once,
        atomic::{AtomicU32, Ordering},
    },
    thread,
};

use crate::{Error, place};

const LOG_TAIL_LINES: usize = 20;
// 20 lines of at most 400 characters each.
const LOG_TAIL_BYTES: u64 = 8_000;

static NEXT_NUMBER: AtomicU32 = AtomicU32::new(0);
static SWEEP: Once = Once::new();

/// The folder of one service; its data is removed on drop.
#[derive(Debug)]
pub(crate) struct RunFolder {
    path: PathBuf,
}

impl RunFolder {
    pub(crate) fn create(service: &str) -> Result<Self, Error> {
        SWEEP.call_once(|| sweep(|run| remove_data_of(&run)));
        let number = NEXT_NUMBER.fetch_add(1, Ordering::Relaxed);
        let process_folder = place::runs().join(process::id().to_string());
        let path = process_folder.join(format!("{service}-{number}"));
        let data = path.join("data");
        fs::create_dir_all(&data).map_err(Error::io("create", &data))?;
        Ok(Self { path })
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.path.join("data")
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.path.join("log")
    }

    /// The log's path and last lines, for an error message.
    pub(crate) fn log_tail(&self) -> String {
        let log = self.log();
        match read_end(&log) {
            Ok(end) => {
                let lines: Vec<&str> = end.lines().collect();
                let from = lines.len().saturating_sub(LOG_TAIL_LINES);
                format!("log {}, its end:\n{}", log.display(), lines[from..].join("\n"))
            }
            Err(error) => format!("log {} cannot be read: {error}", log.display()),
        }
    }
}

impl Drop for RunFolder {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("kept for the failing test: {}", self.path.display());
        } else {
            // Left-overs are removed by the next sweep.
            let _ = fs::remove_dir_all(self.data());
        }
    }
}

/// Removes folders and logs of test processes that have ended.
pub fn sweep_ended_runs() {
    sweep(|run| {
        let _ = fs::remove_dir_all(run);
    });
}

fn sweep(remove: impl Fn(PathBuf)) {
    for run in entries(&place::runs()) {
        if run.file_name().and_then(OsStr::to_str).is_some_and(has_ended) {
            remove(run);
        }
    }
}

/// Whether the text is the id of a process that has ended; unknown, so no, without `/proc`.
pub(crate) fn has_ended(process_id: &str) -> bool {
    let processes = Path::new("/proc");
    process_id.parse::<u32>().is_ok()
        && processes.join("self").exists()
        && !processes.join(process_id).exists()
}

fn remove_data_of(run: &Path) {
    for service in entries(run) {
        let _ = fs::remove_dir_all(service.join("data"));
    }
}

pub(crate) fn entries(folder: &Path) -> Vec<PathBuf> {
    let Ok(listing) = fs::read_dir(folder) else { return Vec::new() };
    listing.filter_map(|entry| Some(entry.ok()?.path())).collect()
}

fn read_end(file: &Path) -> std::io::Result<String> {
    let mut opened = fs::File::open(file)?;
    let length_bytes = opened.metadata()?.len();
    opened.seek(SeekFrom::Start(length_bytes.saturating_sub(LOG_TAIL_BYTES)))?;
    let mut end = Vec::new();
    opened.read_to_end(&mut end)?;
    Ok(String::from_utf8_lossy(&end).into_owned())
}
