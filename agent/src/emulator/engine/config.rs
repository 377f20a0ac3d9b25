//! How an emulated engine is set up.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use crate::engine::EngineKind;

/// Smallest vocabulary in which the engine can recognise its own writing (see `response`).
pub const SMALLEST_VOCABULARY: u32 = 64;

/// Set-up of an [`super::EngineEmulator`]; [`Default`] gives a small engine that is ready at once.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Whose HTTP interface it has. Default vLLM's.
    pub kind: EngineKind,
    /// Where to listen; port 0 takes a free one. Default `127.0.0.1:0`.
    pub listen: SocketAddr,
    /// Name of the served model. Default `tiny`.
    pub model_name: String,
    /// Token ids are below this; at least [`SMALLEST_VOCABULARY`]. Default 32,000.
    pub vocabulary: u32,
    /// Id that ends a response. Default 2.
    pub eos_token_id: u32,
    /// Longest prompt and response together, in tokens. Default 8,192.
    pub context_length: u32,
    /// Speed of one stream when it runs alone. Default 50.
    pub tokens_per_second: f64,
    /// How much slower each further running stream makes all of them: with n running, a stream
    /// makes `tokens_per_second / (1 + slowdown_per_stream × (n − 1))`. Default 0.
    pub slowdown_per_stream: f64,
    /// Streams that run at once; others wait, first come first served. Default 16.
    pub max_running: usize,
    /// How often tokens are sent. Default 20 ms.
    pub tick: Duration,
    /// Tokens in one SSE chunk at most. More than one is legal, and is what a busy engine does.
    /// Default 16.
    pub chunk_tokens_max: usize,
    /// How long connections are refused after the start. Default 0.
    pub start_after: Duration,
    /// How long it takes to load weights. Default 0.
    pub load_takes: Duration,
    /// How long responses are. Default mean 256, spread 0.6.
    pub lengths: ResponseLengths,
    /// Changes every response. Default 0.
    pub seed: u64,
    /// Weights label at the start. Default `default`, as both engines have it.
    pub weights_label: String,
    /// vLLM: whether the control routes (abort by list, pause, weights label) exist. Default true.
    pub dev_mode: bool,
    /// vLLM: whether token-in token-out generation is allowed; 403 otherwise. Default true.
    pub scale_out: bool,
    /// vLLM: whether there is `/v1/completions`. Default true.
    pub completions: bool,
    /// SGLang: whether the events of a stream carry new tokens alone, as with
    /// `--incremental-streaming-output`; otherwise each repeats all. Default false.
    pub incremental_streaming: bool,
    /// A failure that comes by itself. Default none.
    pub fail_after: Option<FailAfter>,
}

/// Lengths of responses that end by themselves: log-normal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ResponseLengths {
    /// Mean, in tokens.
    pub mean: f64,
    /// Standard deviation of the logarithm; 0 makes all responses equally long.
    pub spread: f64,
}

/// A failure after a number of tokens, counted over all streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailAfter {
    /// Tokens generated before it comes.
    pub tokens: u64,
    /// What comes.
    pub failure: Failure,
}

/// Ways for an engine to end in mid-stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The node is gone: every connection is reset, nothing answers any more.
    NodeLoss,
    /// The engine core dies: streams end with an error event, health fails, then the server exits.
    CoreDeath,
    /// No token comes any more, although health stays good.
    Hang,
    /// All streams end with an error event; the engine lives on.
    ErrorEvents,
    /// All streams are closed without a finish; the engine lives on.
    BrokenStreams,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            kind: EngineKind::Vllm,
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            model_name: "tiny".to_owned(),
            vocabulary: 32_000,
            eos_token_id: 2,
            context_length: 8_192,
            tokens_per_second: 50.0,
            slowdown_per_stream: 0.0,
            max_running: 16,
            tick: Duration::from_millis(20),
            chunk_tokens_max: 16,
            start_after: Duration::ZERO,
            load_takes: Duration::ZERO,
            lengths: ResponseLengths { mean: 256.0, spread: 0.6 },
            seed: 0,
            weights_label: "default".to_owned(),
            dev_mode: true,
            scale_out: true,
            completions: true,
            incremental_streaming: false,
            fail_after: None,
        }
    }
}

impl EngineConfig {
    /// Refuses values with which the engine could not run.
    pub(super) fn check(&self) -> io::Result<()> {
        let is_speed = |value: f64| value.is_finite() && value >= 0.0;
        let lengths = self.lengths;
        let problem = if self.vocabulary < SMALLEST_VOCABULARY {
            format!("vocabulary must be at least {SMALLEST_VOCABULARY}, got {}", self.vocabulary)
        } else if self.eos_token_id >= self.vocabulary {
            format!("the end token must be below {}, got {}", self.vocabulary, self.eos_token_id)
        } else if self.context_length < 2 {
            format!("context length must be at least 2, got {}", self.context_length)
        } else if !is_speed(self.tokens_per_second) || !is_speed(self.slowdown_per_stream) {
            "speed and slowdown must be finite and not negative".to_owned()
        } else if !(lengths.mean.is_finite() && lengths.mean >= 1.0 && is_speed(lengths.spread)) {
            format!("mean length must be at least 1 with a spread of 0 or more, got {lengths:?}")
        } else if self.max_running == 0 || self.chunk_tokens_max == 0 || self.tick.is_zero() {
            "running streams, tokens per chunk and tick must be above 0".to_owned()
        } else {
            return Ok(());
        };
        Err(io::Error::new(io::ErrorKind::InvalidInput, problem))
    }
}
