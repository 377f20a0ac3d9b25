//! Keeps the floors: who may import whom, no file that nothing includes, and what has grown large.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Lines above which a file is listed (not refused).
const LONG_FILE_LINES: usize = 400;
/// Lines above which a function is listed (not refused).
const LONG_FUNCTION_LINES: usize = 60;
/// Columns that no line may pass.
const WIDEST_LINE: usize = 100;

const CRATES: [&str; 6] = ["core", "queue", "sim", "agent", "controller", "tests/harness"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn rust_files() -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders: Vec<PathBuf> =
        CRATES.iter().map(|name| root().join(name)).chain([root().join("src")]).collect();
    folders.push(root().join("tests/suite"));
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

fn manifest_dependencies(manifest: &Path) -> BTreeSet<String> {
    let text = fs::read_to_string(manifest).unwrap();
    let section = text.split("[dependencies]").nth(1).unwrap_or("");
    let section = section.split("\n[").next().unwrap_or("");
    section
        .lines()
        .filter_map(|line| line.split(['.', ' ', '=']).next())
        .filter(|name| !name.is_empty() && !name.starts_with('#'))
        .map(str::to_owned)
        .collect()
}

#[test]
fn dependencies_point_down_only() {
    let above = |name: &str| -> Vec<&str> {
        let floors = ["ebbtide-core", "ebbtide-queue", "ebbtide-sim", "ebbtide-agent"];
        let all = [&floors[..], &["ebbtide-controller", "ebbtide"]].concat();
        let allowed: &[&str] = match name {
            "core" => &[],
            "queue" => &["ebbtide-core"],
            _ => &["ebbtide-core", "ebbtide-queue"],
        };
        all.into_iter().filter(|floor| !allowed.contains(floor)).collect()
    };
    for name in ["core", "queue", "sim", "agent", "controller"] {
        let found = manifest_dependencies(&root().join(name).join("Cargo.toml"));
        for forbidden in above(name) {
            assert!(!found.contains(forbidden), "{name} must not depend on {forbidden}");
        }
    }
}

#[test]
fn decisions_and_simulator_know_no_outside_world() {
    let outside = ["tokio", "kube", "k8s-openapi", "redis", "reqwest", "axum", "tracing", "rand"];
    for name in ["core", "sim"] {
        let found = manifest_dependencies(&root().join(name).join("Cargo.toml"));
        for dependency in &found {
            let is_outside =
                outside.contains(&dependency.as_str()) || dependency.starts_with("aws");
            assert!(!is_outside, "{name} must not depend on {dependency}");
        }
    }
}

#[test]
fn every_file_is_included_by_its_parent() {
    for file in rust_files() {
        let name = file.file_stem().unwrap().to_str().unwrap().to_owned();
        if matches!(name.as_str(), "main" | "lib" | "build") {
            continue;
        }
        let folder = file.parent().unwrap();
        let is_top_of_tests = folder.file_name().is_some_and(|name| name == "tests")
            && folder.parent().is_some_and(|parent| parent.join("Cargo.toml").exists());
        if is_top_of_tests {
            continue;
        }
        let (folder, name) = if name == "mod" {
            let module = folder.file_name().unwrap().to_str().unwrap().to_owned();
            (folder.parent().unwrap(), module)
        } else {
            (folder, name)
        };
        let own = format!("{}.rs", folder.file_name().unwrap().to_str().unwrap());
        let parents = [
            folder.join("mod.rs"),
            folder.join("lib.rs"),
            folder.join("main.rs"),
            folder.with_file_name(own),
        ];
        let is_included =
            parents.iter().filter_map(|path| fs::read_to_string(path).ok()).any(|text| {
                text.lines().any(|line| {
                    let line = line.trim().trim_start_matches("pub(crate) ");
                    let line = line.trim_start_matches("pub(super) ").trim_start_matches("pub ");
                    line == format!("mod {name};")
                })
            });
        assert!(is_included, "no `mod {name};` includes {}", file.display());
    }
}

#[test]
fn every_file_says_its_job() {
    for file in rust_files() {
        let text = fs::read_to_string(&file).unwrap();
        assert!(text.starts_with("//!"), "{} has no //! line", file.display());
    }
}

#[test]
fn no_line_is_too_wide() {
    for file in rust_files() {
        let text = fs::read_to_string(&file).unwrap();
        for (line, number) in text.lines().zip(1..) {
            let width = line.chars().count();
            assert!(width <= WIDEST_LINE, "{}:{number}: {width} columns", file.display());
        }
    }
}

#[test]
fn long_files_and_functions_are_listed() {
    for file in rust_files() {
        let text = fs::read_to_string(&file).unwrap();
        let shown = file.strip_prefix(root()).unwrap().display().to_string();
        let lines = text.lines().count();
        if lines > LONG_FILE_LINES {
            println!("warning: {shown} has {lines} lines, {LONG_FILE_LINES} are pleasant");
        }
        for (name, lines) in functions(&text) {
            if lines > LONG_FUNCTION_LINES {
                println!("warning: {shown}: fn {name} has {lines} lines");
            }
        }
    }
}

/// Names and lengths of functions, told by rustfmt's indentation: from `fn` to the closing brace
/// in the same column.
fn functions(text: &str) -> Vec<(String, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (start, line) in lines.iter().enumerate() {
        let Some(after) = line.split("fn ").nth(1).filter(|_| !line.trim().starts_with("//"))
        else {
            continue;
        };
        let indent = line.len() - line.trim_start().len();
        let closing = format!("{}}}", " ".repeat(indent));
        let length = lines[start..].iter().position(|line| *line == closing);
        if let Some(length) = length {
            let name = after.split(['(', '<']).next().unwrap_or(after);
            found.push((name.to_owned(), length + 1));
        }
    }
    found
}
