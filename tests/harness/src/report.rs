//! What a test does when a part is missing, and the record of which real parts took part.
//!
//! Records are lines in `target/tests-report/`, appended by every test process and read once by
//! [`crate::closing`]. A record that cannot be written never fails a test.

use std::{
    collections::BTreeSet,
    env, fs,
    hash::{BuildHasher, RandomState},
    io::Write,
    path::PathBuf,
    sync::{Mutex, PoisonError},
    thread,
};

use crate::{Error, Missing, Part, place};

/// The value a skipped test returns.
pub trait Skipped {
    /// A test result that is not a failure.
    fn skipped() -> Self;
}

impl Skipped for () {
    fn skipped() -> Self {}
}

impl<E> Skipped for Result<(), E> {
    fn skipped() -> Self {
        Ok(())
    }
}

/// The value of a harness `Result`; when its part is missing the test returns, listed as skipped.
///
/// With `CI=true` a missing part fails the test, unless only an option of `tests/run` asks for it;
/// a part that is there and does not work always does.
///
/// ```no_run
/// # async fn queue_survives_a_redis_restart() {
/// let redis = ebbtide_harness::require!(ebbtide_harness::Redis::start().await);
/// # drop(redis);
/// # }
/// ```
#[macro_export]
macro_rules! require {
    ($part:expr) => {
        match $crate::take_or_skip($part) {
            Some(part) => part,
            None => return $crate::Skipped::skipped(),
        }
    };
}

/// What [`require!`] does, without the `return`.
///
/// # Panics
///
/// When the part does not work, or was asked for and is missing with `CI=true`.
#[track_caller]
pub fn take_or_skip<T>(part: Result<T, Error>) -> Option<T> {
    match part {
        Ok(part) => Some(part),
        Err(Error::Missing(missing)) if missing.is_unasked || !is_ci() => {
            skipped(&missing);
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Whether this is a CI run, where nothing may be left out.
#[must_use]
pub fn is_ci() -> bool {
    env::var("CI").is_ok_and(|value| value == "true" || value == "1")
}

/// Whether the long runs were asked for (`tests/run --long`).
#[must_use]
pub fn is_long() -> bool {
    env::var("EBBTIDE_TEST_LONG").is_ok_and(|value| value == "1")
}

/// Whether tests with the real vLLM were asked for (`tests/run --with-vllm`).
#[must_use]
pub fn is_with_vllm() -> bool {
    env::var("EBBTIDE_TEST_VLLM").is_ok_and(|value| value == "1")
}

/// The seed of a test with chance in it: another one in each run, unless `EBBTIDE_TEST_SEED` says
/// which. It is printed, so that a failure can be repeated.
///
/// # Panics
///
/// When `EBBTIDE_TEST_SEED` is no number.
#[must_use]
pub fn seed() -> u64 {
    let seed = match env::var("EBBTIDE_TEST_SEED") {
        Ok(told) => told.parse().expect("EBBTIDE_TEST_SEED must be a number below 2^64"),
        Err(_) => RandomState::new().hash_one(0_u8),
    };
    eprintln!("EBBTIDE_TEST_SEED={seed} repeats this");
    seed
}

pub(crate) const TOOK_PART_FILE: &str = "took-part.tsv";
pub(crate) const SKIPPED_FILE: &str = "skipped.tsv";

/// Records, once per process, that a part was used.
pub(crate) fn took_part(part: &Part, version: &str) {
    static RECORDED: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let first = RECORDED.lock().unwrap_or_else(PoisonError::into_inner).insert(part.name);
    if first {
        append(TOOK_PART_FILE, &format!("{}\t{version}", part.name));
    }
}

fn skipped(missing: &Missing) {
    let thread = thread::current();
    let test = thread.name().unwrap_or("a test");
    let suite = env::current_exe().ok().and_then(suite_name).unwrap_or_default();
    eprintln!("skipped: {missing}");
    let how = missing.how.replace(['\n', '\t'], " ");
    append(SKIPPED_FILE, &format!("{suite}::{test}\t{}\t{how}", missing.part));
}

/// A test binary is called `suite-0123456789abcdef`.
fn suite_name(program: PathBuf) -> Option<String> {
    let stem = program.file_stem()?.to_str()?;
    Some(stem.rsplit_once('-').map_or(stem, |(suite, _)| suite).to_owned())
}

fn append(file: &str, line: &str) {
    let folder = place::report();
    let written = fs::create_dir_all(&folder).and_then(|()| {
        let mut opened = fs::File::options().create(true).append(true).open(folder.join(file))?;
        // One write, so that lines of several processes do not mix.
        opened.write_all(format!("{line}\n").as_bytes())
    });
    if let Err(error) = written {
        eprintln!("the report in {} is incomplete: {error}", folder.display());
    }
}
