//! `/metrics` of the emulated engine: the families of SGLang 0.5.23 that an agent or a scaler
//! reads. The real server has them with `--enable-metrics` alone.

use super::super::EngineCounts;
use super::super::exposition::Page;
use super::super::first_tokens::FirstTokens;

/// The exposition text. `throughput`: tokens per second now.
pub(super) fn text(
    counts: &EngineCounts,
    first_tokens: &FirstTokens,
    throughput: f64,
    model: &str,
) -> String {
    let mut page = Page::new("sglang:", format!("model_name=\"{model}\""));
    let usage = counts.kv_cache_usage;
    let held_by_pause = if counts.is_frozen { counts.running } else { 0 };
    let gauges = [
        ("num_running_reqs", "The number of running requests.", counts.running as f64),
        ("num_queue_reqs", "The number of requests in the waiting queue.", counts.waiting as f64),
        (
            "num_paused_reqs",
            "The number of paused requests by async weight sync.",
            held_by_pause as f64,
        ),
        ("num_retracted_reqs", "The number of retracted requests.", 0.0),
        ("num_used_tokens", "The number of used tokens.", counts.tokens_held as f64),
        ("gen_throughput", "The generation throughput (token/s).", throughput),
        ("cache_hit_rate", "The prefix cache hit rate.", 0.0),
        ("token_usage", "The token usage.", usage),
        ("full_token_usage", "The token usage for full attention layers.", usage),
    ];
    for (name, help, value) in gauges {
        page.single(name, "gauge", help, "", value);
    }
    let aborted = counts.abort_ids as f64;
    let counters = [
        ("num_aborted_requests_total", "Number of requests aborted.", aborted),
        ("prompt_tokens_total", "Number of prefill tokens processed.", counts.prompt_tokens as f64),
        (
            "generation_tokens_total",
            "Number of generation tokens processed.",
            counts.tokens_generated as f64,
        ),
        ("num_requests_total", "Number of requests processed.", counts.requests as f64),
        ("num_retracted_requests_total", "Number of retracted requests.", 0.0),
    ];
    for (name, help, value) in counters {
        page.single(name, "counter", help, "", value);
    }
    page.first_tokens("time_to_first_token_seconds", "", first_tokens);
    page.into_text()
}
