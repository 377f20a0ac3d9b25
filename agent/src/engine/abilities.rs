//! Abilities that an engine may have been started without, and what to do about each.

/// An ability that an engine lacks. It works all the same, unless it does not tell its weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lack {
    /// vLLM: generation by `/inference/v1/generate`.
    ScaleOut,
    /// vLLM: the control routes, and with them the weights label.
    DevMode,
    /// SGLang: streams that carry new tokens alone.
    IncrementalStreaming,
}

impl Lack {
    /// The flag to set, and what it costs to go without.
    pub fn advice(self) -> &'static str {
        match self {
            Self::ScaleOut => {
                "start vLLM with --enable-scale-out: without it work goes by /v1/completions, \
                 which does not tell which weights made which token"
            }
            Self::DevMode => "it does not tell its weights: start vLLM with VLLM_SERVER_DEV_MODE=1",
            Self::IncrementalStreaming => {
                "start SGLang with --incremental-streaming-output: without it every event repeats \
                 all tokens of its response"
            }
        }
    }
}
