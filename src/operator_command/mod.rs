//! What an operator asks of a run in service: `ebbtide drain`, `ebbtide drill`, `ebbtide hold`.
//!
//! Each writes the control keys that agents and controller read. Nothing here waits for Kubernetes
//! or AWS, and nothing needs the fleet policy.

pub mod drain;
pub mod drill;
mod follow;
pub mod hold;
mod node;
mod report;
mod standing;

use serde::Serialize;
use serde_json::Value;

use crate::place::Answer;

/// The wire's word for a state or a reason.
fn word(of: &impl Serialize) -> String {
    match serde_json::to_value(of) {
        Ok(Value::String(word)) => word,
        _ => "unknown".to_owned(),
    }
}

/// The same for people.
fn words(of: &impl Serialize) -> String {
    word(of).replace('_', " ")
}

/// An answer that nothing was done, and why.
fn refusal(why: String) -> Answer {
    let json = serde_json::json!({ "ok": false, "error": why });
    Answer { is_good: false, text: why, json }
}
