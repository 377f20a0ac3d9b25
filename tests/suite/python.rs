//! The Python client in `python/`: all its own tests, and its types, count here as one test.

use std::path::Path;
use std::process::Command;

use ebbtide_harness::{Error, Located, PARTS, require};

use crate::programs::EBBTIDE;

#[test]
fn python_client_is_typed_and_passes_its_own_tests() {
    let python = require!(part("python-client"));
    let metadata_mock = require!(part("ec2-metadata-mock"));
    require!(part("redis"));
    run(&python, &metadata_mock, &["-m", "mypy"]);
    let tests = run(&python, &metadata_mock, &["-m", "pytest", "-ra", "--durations=5"]);
    let summary = tests.lines().last().unwrap_or_default();
    assert!(summary.contains(" passed"), "no test ran:\n{tests}");
    println!("{summary}");
}

fn part(name: &str) -> Result<Located, Error> {
    let part = PARTS.iter().find(|part| part.name == name).expect("a part of that name");
    part.take_part()
}

/// Runs Python in `python/`, which says what is tested and how; gives what it wrote.
fn run(python: &Located, metadata_mock: &Located, arguments: &[&str]) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("python");
    let answer = Command::new(&python.path)
        .args(arguments)
        .current_dir(&folder)
        .env("EBBTIDE_BINARY", EBBTIDE)
        .env("EBBTIDE_METADATA_MOCK", &metadata_mock.path)
        // The source of this tree, wherever the virtual environment was made.
        .env("PYTHONPATH", folder.join("src"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .expect("python starts");
    let (said, complained) =
        (String::from_utf8_lossy(&answer.stdout), String::from_utf8_lossy(&answer.stderr));
    assert!(
        answer.status.success(),
        "`python {}` in {} ended with {}:\n{said}\n{complained}",
        arguments.join(" "),
        folder.display(),
        answer.status
    );
    said.into_owned()
}
