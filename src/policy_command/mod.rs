//! `ebbtide policy`: checks fleet policies, says them in words, tries them on what was recorded.

mod init;
mod last;
mod records;
mod replay;

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use ebbtide_core::policy::{FleetPolicy, PolicyError, PolicyErrors};
use serde_json::{Value, json};

use self::last::Asked;
use crate::cli::EXIT_BAD;
use crate::place::Output;
use crate::setup;

/// Every file was read and is valid.
const VALID: u8 = 0;

/// Something is wrong with the configuration: a file that is unreadable or invalid.
const INVALID: u8 = 2;

/// Most bytes read of a file; four times what a policy may have, so that the check itself says no.
const READ_LIMIT_BYTES: u64 = 1024 * 1024;

/// `ebbtide policy …`.
#[derive(Debug, Args)]
pub struct PolicyArgs {
    #[command(subcommand)]
    command: PolicyCommand,
}

#[derive(Debug, Subcommand)]
enum PolicyCommand {
    /// Report every mistake in fleet policies, each with its line and column.
    #[command(after_help = "Example:\n  ebbtide policy check policies/*.yaml\n\n\
                            Exit code 0: all valid; 2: a file is invalid or unreadable.")]
    Check {
        /// Fleet policies to check.
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
        /// `json` prints one object: {ok, errors: [{file, line, column, path, message}]}.
        #[arg(long, value_enum, default_value_t = Output::Text)]
        output: Output,
    },
    /// Say a fleet policy in words: values in force, defaults included, and what they imply; with
    /// --redis also the last decision of its controller.
    #[command(after_help = "Examples:\n  ebbtide policy explain policies/grpo-async.yaml\n  \
                            ebbtide policy explain policies/grpo-async.yaml --redis \
                            redis://10.0.0.5:6379\n\nExit code 0: told; 1: the queue is out of \
                            reach; 2: the file is invalid or unreadable.")]
    Explain {
        /// The fleet policy to explain.
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// The work queue of its run, for what the controller decided last, and why
        #[arg(long, env = "EBBTIDE_REDIS", value_name = "URL", hide_env_values = true)]
        redis: Option<String>,
        /// `json` prints one object: {ok, run, lines, decision} or {ok, errors}.
        #[arg(long, value_enum, default_value_t = Output::Text)]
        output: Output,
    },
    /// Write a first policy from Auto Scaling groups or Karpenter's node pools as they are.
    Init(init::InitArgs),
    /// Decide recorded ticks again, under this policy: where would another one decide otherwise?
    Replay(replay::ReplayArgs),
}

/// Runs `ebbtide policy`; 0 when every policy is valid, 2 when one is invalid or unreadable.
///
/// # Errors
/// What was recorded cannot be read.
pub fn run(args: PolicyArgs) -> anyhow::Result<ExitCode> {
    let (code, text) = match args.command {
        PolicyCommand::Check { files, output } => check(&files, output),
        PolicyCommand::Explain { file, redis: None, output } => explain(&file, output, None),
        PolicyCommand::Explain { file, redis: Some(url), output } => {
            return setup::run_async(async move {
                let asked = match read_policy(&file) {
                    Ok(policy) => Some(last::ask(&url, &policy).await),
                    Err(_) => None,
                };
                let (code, text) = explain(&file, output, asked);
                Ok(say(code, &text))
            });
        }
        PolicyCommand::Init(args) => return setup::run_async(init::run(args)),
        PolicyCommand::Replay(args) => return setup::run_async(replay::run(args)),
    };
    Ok(say(code, &text))
}

fn say(code: u8, text: &str) -> ExitCode {
    // A reader that has gone away, as in `| head`, changes nothing about the verdict.
    let _ = writeln!(io::stdout(), "{text}");
    ExitCode::from(code)
}

/// Why there is no policy to work with.
enum Refusal {
    Unreadable { file: String, error: io::Error },
    Invalid(PolicyErrors),
}

fn read_policy(path: &Path) -> Result<FleetPolicy, Refusal> {
    let file = path.display().to_string();
    match read_text(path) {
        Ok(text) => FleetPolicy::parse(&text, &file).map_err(Refusal::Invalid),
        Err(error) => Err(Refusal::Unreadable { file, error }),
    }
}

fn read_text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(READ_LIMIT_BYTES).read_to_string(&mut text)?;
    Ok(text)
}

impl Refusal {
    fn count(&self) -> usize {
        match self {
            Self::Unreadable { .. } => 1,
            Self::Invalid(errors) => errors.errors().len(),
        }
    }

    fn to_text(&self) -> String {
        match self {
            Self::Unreadable { file, error } => {
                format!("the file cannot be read: {error} ({file})")
            }
            Self::Invalid(errors) => errors.to_string(),
        }
    }

    fn to_json(&self) -> Vec<Value> {
        match self {
            Self::Unreadable { file, error } => vec![json!({
                "file": file, "line": null, "column": null, "path": "",
                "message": format!("the file cannot be read: {error}"),
            })],
            Self::Invalid(errors) => {
                let file = errors.file_name();
                let to_json = |error: &PolicyError| {
                    json!({
                        "file": file, "line": error.at.line, "column": error.at.column,
                        "path": error.path, "message": error.message,
                    })
                };
                errors.errors().iter().map(to_json).collect()
            }
        }
    }
}

fn check(files: &[PathBuf], output: Output) -> (u8, String) {
    let (mut refusals, mut notes) = (Vec::new(), Vec::new());
    for file in files {
        match read_policy(file) {
            Ok(policy) => notes.extend(notes_on(&policy, file)),
            Err(refusal) => refusals.push(refusal),
        }
    }
    let code = if refusals.is_empty() { VALID } else { INVALID };
    let text = match output {
        Output::Json => {
            let errors: Vec<Value> = refusals.iter().flat_map(Refusal::to_json).collect();
            json!({ "ok": refusals.is_empty(), "errors": errors, "notes": notes }).to_string()
        }
        Output::Text => {
            let notes = notes.iter().map(|note| format!("note: {note}"));
            let mut lines: Vec<String> =
                refusals.iter().map(Refusal::to_text).chain(notes).collect();
            lines.push(verdict(files.len(), &refusals));
            lines.join("\n")
        }
    };
    (code, text)
}

/// What a valid policy asks for and this version does not do.
fn notes_on(policy: &FleetPolicy, file: &Path) -> Vec<String> {
    let file = file.display();
    let refused = policy.unsupported_sizing();
    refused.into_iter().map(|why| format!("{why} ({file})")).collect()
}

fn verdict(files: usize, refusals: &[Refusal]) -> String {
    let errors: usize = refusals.iter().map(Refusal::count).sum();
    match errors {
        0 => format!("{} valid", counted(files, "file")),
        _ => format!("{} in {}", counted(errors, "error"), counted(refusals.len(), "file")),
    }
}

fn counted(count: usize, noun: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{plural}")
}

/// Says the policy and, where somebody asked for it, the last decision of its controller.
fn explain(file: &Path, output: Output, asked: Option<Asked>) -> (u8, String) {
    let code = match &asked {
        Some(Asked::OutOfReach(_)) => EXIT_BAD,
        _ => VALID,
    };
    match (read_policy(file), output) {
        (Ok(policy), Output::Text) => {
            (code, policy.explain() + &asked.map(|asked| asked.in_words()).unwrap_or_default())
        }
        (Ok(policy), Output::Json) => {
            let words = policy.explain();
            let lines: Vec<&str> = words.lines().collect();
            let mut answer = json!({ "ok": true, "run": policy.run, "lines": lines });
            match asked {
                Some(Asked::Decision(decision)) => answer["decision"] = decision.to_json(),
                Some(Asked::OutOfReach(problem)) => answer["problem"] = json!(problem),
                Some(Asked::Nothing) => answer["decision"] = Value::Null,
                None => {}
            }
            (code, answer.to_string())
        }
        (Err(refusal), Output::Text) => {
            (INVALID, format!("{}\n{}", refusal.to_text(), verdict(1, &[refusal])))
        }
        (Err(refusal), Output::Json) => {
            (INVALID, json!({ "ok": false, "errors": refusal.to_json() }).to_string())
        }
    }
}
