//! The end of a test run: which real parts took part, what was left out, and the count.

use std::{collections::BTreeMap, fs, io, path::Path};

use crate::{
    PARTS,
    folder::sweep_ended_runs,
    place,
    report::{SKIPPED_FILE, TOOK_PART_FILE},
};

/// Sums over all test programs of a run.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Tests that ran and held.
    pub passed: u64,
    /// Tests that did not hold; one more when a test program could not be built or crashed.
    pub failed: u64,
    /// Tests that were left out because a real part is missing, or are marked as ignored.
    pub skipped: u64,
}

/// Begins a run: forgets the records and the logs of the last one.
///
/// # Errors
///
/// When old records cannot be removed.
pub fn begin() -> io::Result<()> {
    sweep_ended_runs();
    for file in [TOOK_PART_FILE, SKIPPED_FILE] {
        match fs::remove_file(place::report().join(file)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Prints the closing table and counts the results in cargo's output.
///
/// # Errors
///
/// When cargo's output cannot be read.
pub fn close(cargo_output: &Path, cargo_succeeded: bool) -> io::Result<Counts> {
    let took_part = records(TOOK_PART_FILE);
    let skipped = records(SKIPPED_FILE);
    let mut counts = count_results(&fs::read_to_string(cargo_output)?);
    // A test counts once, with the first part it did not find.
    let skipped_tests: BTreeMap<&str, (&str, &str)> = skipped
        .iter()
        .rev()
        .filter_map(|line| {
            let (test, reason) = line.split_once('\t')?;
            Some((test, reason.split_once('\t')?))
        })
        .collect();
    let skipped_count = skipped_tests.len() as u64;
    // A test that left early is "ok" to its test program.
    counts.passed = counts.passed.saturating_sub(skipped_count);
    counts.skipped += skipped_count;
    if !cargo_succeeded && counts.failed == 0 {
        println!("\na test program could not be built or crashed: see above");
        counts.failed = 1;
    }
    print_table(&took_part);
    print_left_out(&skipped_tests);
    if counts.failed == 0 {
        sweep_ended_runs();
    } else {
        println!("\nlogs of the services: {}", place::runs().display());
    }
    Ok(counts)
}

impl Counts {
    /// The last line of a run.
    #[must_use]
    pub fn line(&self) -> String {
        let Self { passed, failed, skipped } = self;
        match skipped {
            0 => format!("{passed} passed, {failed} failed"),
            _ => format!("{passed} passed, {failed} failed, {skipped} skipped"),
        }
    }
}

fn print_table(took_part: &[String]) {
    println!("\n{:<20} {:<12} state", "real part", "version");
    for part in PARTS {
        let used =
            took_part.iter().find_map(|line| line.strip_prefix(part.name)?.strip_prefix('\t'));
        let (version, state) = match (used, part.locate()) {
            (Some(version), _) => (version.to_owned(), "took part"),
            (None, Ok(located)) => (located.version, "not used"),
            (None, Err(_)) if !part.is_asked_for() => (part.version.to_owned(), "not asked for"),
            (None, Err(_)) => (part.version.to_owned(), "missing"),
        };
        println!("{:<20} {version:<12} {state}", part.name);
    }
}

fn print_left_out(skipped_tests: &BTreeMap<&str, (&str, &str)>) {
    let mut by_reason: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (test, reason) in skipped_tests {
        by_reason.entry(reason).or_default().push(test);
    }
    for ((part, how), tests) in by_reason {
        println!("\nleft out, without {part}: {how}");
        for test in tests {
            println!("  {test}");
        }
    }
}

fn records(file: &str) -> Vec<String> {
    let text = fs::read_to_string(place::report().join(file)).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// Sums the `test result:` line of every test program.
fn count_results(cargo_output: &str) -> Counts {
    let mut counts = Counts::default();
    for line in cargo_output.lines() {
        let Some((_, results)) = line.split_once("test result: ") else { continue };
        for (amount, kind) in results.split([';', '.']).filter_map(amount_and_kind) {
            match kind {
                "passed" => counts.passed += amount,
                "failed" => counts.failed += amount,
                "ignored" => counts.skipped += amount,
                _ => {}
            }
        }
    }
    counts
}

fn amount_and_kind(words: &str) -> Option<(u64, &str)> {
    let (amount, kind) = words.trim().split_once(' ')?;
    Some((amount.parse().ok()?, kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_the_sums_over_all_test_programs() {
        let output = "\
test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s
test a ... ok
test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; 4 filtered out; finished in 12.3s
";
        let expected = Counts { passed: 5, failed: 1, skipped: 1 };
        assert_eq!(count_results(output), expected);
        assert_eq!(expected.line(), "5 passed, 1 failed, 1 skipped");
    }

    #[test]
    fn line_without_skips_names_none() {
        let counts = Counts { passed: 5, failed: 0, skipped: 0 };
        assert_eq!(counts.line(), "5 passed, 0 failed");
    }
}
