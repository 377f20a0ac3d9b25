//! JSON of SGLang 0.5.23, key by key in the order of the files that stand for recordings.

use serde::Serialize;
use serde_json::{Value, json};

use super::super::response::Token;
use super::super::sequence::{Finish, VersionSpan};

/// A field that is always null.
type Null = Option<()>;

/// A reply, or one event of a stream.
#[derive(Serialize)]
pub(super) struct Reply<'a> {
    pub(super) text: &'static str,
    pub(super) output_ids: Vec<u32>,
    pub(super) meta_info: Meta<'a>,
}

/// What is told of the whole response so far.
#[derive(Serialize)]
pub(super) struct Meta<'a> {
    pub(super) id: &'a str,
    pub(super) finish_reason: Option<Reason>,
    pub(super) prompt_tokens: usize,
    pub(super) weight_version: String,
    pub(super) weight_versions: Vec<Span>,
    pub(super) completion_tokens: usize,
    pub(super) cached_tokens: u32,
    pub(super) num_retractions: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) output_token_logprobs: Option<Vec<(f64, u32, Null)>>,
    pub(super) e2e_latency: f64,
}

/// Why a response ended.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub(super) enum Reason {
    Stop {
        matched: u32,
    },
    Length {
        length: usize,
    },
    Abort {
        message: &'static str,
        /// Left out where the call had not begun to run.
        #[serde(flatten)]
        details: Option<AbortDetails>,
    },
}

#[derive(Serialize)]
pub(super) struct AbortDetails {
    status_code: Null,
    err_type: Null,
}

impl Reason {
    /// The end token counts as a stop token that was matched.
    pub(super) fn of(finish: Finish, written: usize, eos_token_id: u32) -> Self {
        match finish {
            Finish::Stop(token) => Self::Stop { matched: token.unwrap_or(eos_token_id) },
            Finish::Length => Self::Length { length: written },
            Finish::Abort => {
                let details = Some(AbortDetails { status_code: None, err_type: None });
                Self::Abort { message: "Aborted", details }
            }
            Finish::AbortInQueue => {
                Self::Abort { message: "Abort in waiting queue", details: None }
            }
        }
    }
}

#[derive(Serialize)]
pub(super) struct Span {
    version: String,
    start: u32,
    end: u32,
}

impl Span {
    pub(super) fn of(span: &VersionSpan) -> Self {
        Self { version: span.label.to_string(), start: span.start, end: span.end }
    }
}

pub(super) fn logprob(token: &Token) -> (f64, u32, Null) {
    (f64::from(token.logprob), token.id, None)
}

/// An error as an event of a stream.
pub(super) fn error(message: &str, kind: &str, code: u16) -> Value {
    json!({ "error": { "message": message, "type": kind, "code": code, "retryable": false } })
}
