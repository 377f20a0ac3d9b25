//! JSON of vLLM 0.32, key by key in the recorded order. Fields that the emulator never fills are
//! nulls on the wire too.

use serde::Serialize;

use super::super::EngineConfig;
use super::super::response::Token;
use super::super::sequence::{Finish, VersionSpan};

/// A field that is always null.
type Null = Option<()>;

/// One event of a stream.
#[derive(Serialize)]
pub(super) struct Chunk<'a> {
    pub(super) request_id: &'a str,
    pub(super) usage: Option<ChunkUsage>,
    pub(super) output_mode: &'static str,
    pub(super) choices: Vec<Choice>,
}

/// Usage as the extra event of a stream has it.
#[derive(Serialize)]
pub(super) struct ChunkUsage {
    pub(super) prompt_tokens: usize,
    pub(super) total_tokens: usize,
    pub(super) completion_tokens: usize,
}

/// The reply of a call without a stream.
#[derive(Serialize)]
pub(super) struct WholeReply<'a> {
    pub(super) request_id: &'a str,
    pub(super) model: &'a str,
    pub(super) created: i64,
    pub(super) usage: WholeUsage,
    pub(super) prompt_logprobs: Null,
    pub(super) prompt_token_id_logprobs: Null,
    pub(super) prompt_token_ids: Option<Vec<u32>>,
    pub(super) mm_placeholders: Null,
    pub(super) metrics: Null,
    pub(super) kv_transfer_params: Null,
    pub(super) ec_transfer_params: Null,
    pub(super) output_mode: &'static str,
    pub(super) choices: [Choice; 1],
}

/// Usage as a whole reply has it.
#[derive(Serialize)]
pub(super) struct WholeUsage {
    #[serde(flatten)]
    pub(super) usage: ChunkUsage,
    pub(super) prompt_tokens_details: Null,
    pub(super) completion_tokens_details: Null,
}

/// New tokens, or all of them.
#[derive(Serialize)]
pub(super) struct Choice {
    index: u32,
    finish_reason: Option<&'static str>,
    stop_reason: Option<u32>,
    token_ids: Vec<u32>,
    routed_experts: Null,
    sampling_mask: Null,
    weight_versions: Option<Vec<Span>>,
    logprobs: Option<Logprobs>,
}

#[derive(Serialize)]
struct Span {
    version: String,
    start: u32,
    end: u32,
}

#[derive(Serialize)]
struct Logprobs {
    content: Vec<TokenLogprob>,
}

#[derive(Serialize)]
struct TokenLogprob {
    #[serde(flatten)]
    sampled: Candidate,
    top_logprobs: [Candidate; 1],
}

#[derive(Clone, Copy, Serialize)]
struct Candidate {
    token_id: u32,
    logprob: f64,
    rank: u32,
}

impl Choice {
    /// Tokens of an output; `end` comes with its last ones. Log-probabilities are those of
    /// `logprobs: 0`, of the sampled token alone, however many were asked.
    pub(super) fn new(
        tokens: &[Token],
        end: Option<(Finish, &[VersionSpan])>,
        has_logprobs: bool,
    ) -> Self {
        let (finish_reason, stop_reason) = finish_of(end.map(|(finish, _)| finish));
        let content = || tokens.iter().map(TokenLogprob::of).collect();
        Self {
            index: 0,
            finish_reason,
            stop_reason,
            token_ids: tokens.iter().map(|token| token.id).collect(),
            routed_experts: None,
            sampling_mask: None,
            weight_versions: end.map(|(_, spans)| spans.iter().map(Span::of).collect()),
            logprobs: has_logprobs.then(|| Logprobs { content: content() }),
        }
    }
}

impl Span {
    fn of(span: &VersionSpan) -> Self {
        Self { version: span.label.to_string(), start: span.start, end: span.end }
    }
}

impl TokenLogprob {
    fn of(token: &Token) -> Self {
        let sampled =
            Candidate { token_id: token.id, logprob: f64::from(token.logprob), rank: token.rank };
        Self { sampled, top_logprobs: [sampled] }
    }
}

/// Finish reason and stop token.
pub(super) fn finish_of(end: Option<Finish>) -> (Option<&'static str>, Option<u32>) {
    match end {
        None => (None, None),
        Some(Finish::Stop(stop_token)) => (Some("stop"), stop_token),
        Some(Finish::Length) => (Some("length"), None),
        Some(Finish::Abort | Finish::AbortInQueue) => (Some("abort"), None),
    }
}

/// Any error, as an HTTP body or as an event of a stream.
#[derive(Debug, Serialize)]
pub(super) struct ErrorBody {
    error: ErrorDetail,
}

#[derive(Debug, Serialize)]
struct ErrorDetail {
    message: String,
    #[serde(rename = "type")]
    kind: &'static str,
    param: Option<String>,
    code: u16,
}

impl ErrorBody {
    pub(super) fn new(code: u16, kind: &'static str, message: &str, param: Option<&str>) -> Self {
        let (message, param) = (message.to_owned(), param.map(str::to_owned));
        Self { error: ErrorDetail { message, kind, param, code } }
    }
}

/// What a dead engine core makes of every call.
pub(super) fn core_died() -> ErrorBody {
    let message = "EngineCore encountered an issue. See stack trace (above) for the root cause.";
    ErrorBody::new(500, "InternalServerError", message, None)
}

/// Reply of an abort.
#[derive(Serialize)]
pub(super) struct Aborted {
    pub(super) status: &'static str,
    pub(super) aborted: usize,
}

/// Reply to a new weights label.
#[derive(Serialize)]
pub(super) struct LabelTaken {
    pub(super) success: bool,
    pub(super) new_version: String,
}

/// Reply of `/v1/models`.
#[derive(Serialize)]
pub(super) struct ModelList {
    object: &'static str,
    data: [Model; 1],
}

#[derive(Serialize)]
struct Model {
    id: String,
    object: &'static str,
    created: i64,
    owned_by: &'static str,
    root: String,
    parent: Null,
    max_model_len: u32,
    permission: [Permission; 1],
}

#[derive(Serialize)]
struct Permission {
    id: &'static str,
    object: &'static str,
    created: i64,
    allow_create_engine: bool,
    allow_sampling: bool,
    allow_logprobs: bool,
    allow_search_indices: bool,
    allow_view: bool,
    allow_fine_tuning: bool,
    organization: &'static str,
    group: Null,
    is_blocking: bool,
}

impl ModelList {
    pub(super) fn of(config: &EngineConfig, created: i64) -> Self {
        let permission = Permission {
            id: "modelperm-0000000000000000",
            object: "model_permission",
            created,
            allow_create_engine: false,
            allow_sampling: true,
            allow_logprobs: true,
            allow_search_indices: false,
            allow_view: true,
            allow_fine_tuning: false,
            organization: "*",
            group: None,
            is_blocking: false,
        };
        let model = Model {
            id: config.model_name.clone(),
            object: "model",
            created,
            owned_by: "vllm",
            root: format!("/models/{}", config.model_name),
            parent: None,
            max_model_len: config.context_length,
            permission: [permission],
        };
        Self { object: "list", data: [model] }
    }
}
