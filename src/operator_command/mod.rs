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

use serde_json::Value;

use crate::place::Answer;

/// A state or a reason for people, from the wire's word for it.
fn words(of: &Value) -> String {
    of.as_str().unwrap_or("unknown").replace('_', " ")
}

/// An answer that nothing was done, and why.
fn refusal(why: String) -> Answer {
    let json = serde_json::json!({ "ok": false, "error": why });
    Answer { is_good: false, text: why, json }
}
