//! `/metrics` of the emulated engine: the families of vLLM 0.32 that an agent or a scaler reads.

use jiff::Timestamp;

use super::super::EngineCounts;
use super::super::exposition::Page;
use super::super::first_tokens::FirstTokens;

/// Labels are in alphabetical order: this one comes before the others.
const ENGINE: &str = "engine=\"0\",";

/// The exposition text. While everything is held by a pause, running and waiting read 0, as
/// recorded.
pub(super) fn text(
    counts: &EngineCounts,
    first_tokens: &FirstTokens,
    model: &str,
    started_at: Timestamp,
) -> String {
    let held = |value: usize| if counts.is_frozen { 0.0 } else { value as f64 };
    let mut page = Page::new("vllm:", format!("model_name=\"{model}\""));
    let waiting = held(counts.waiting);

    page.family("num_requests_running", "gauge", "Number of requests in model execution batches.");
    page.value("num_requests_running", ENGINE, held(counts.running));
    page.family("num_requests_waiting", "gauge", "Number of requests waiting to be processed.");
    page.value("num_requests_waiting", ENGINE, waiting);
    page.family("num_requests_waiting_by_reason", "gauge", "Number of waiting requests by reason.");
    for (reason, value) in [("capacity", waiting), ("deferred", 0.0)] {
        let reason = format!("reason=\"{reason}\"");
        page.trailing("num_requests_waiting_by_reason", ENGINE, &reason, value);
    }
    page.family("kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage.");
    let usage = if counts.is_frozen { 0.0 } else { counts.kv_cache_usage };
    page.value("kv_cache_usage_perc", ENGINE, usage);

    let created = started_at.as_millisecond() as f64 / 1000.0;
    page.family("generation_tokens_total", "counter", "Number of generation tokens processed.");
    page.value("generation_tokens_total", ENGINE, counts.tokens_generated as f64);
    page.value("generation_tokens_created", ENGINE, created);
    page.family("request_success_total", "counter", "Count of successfully processed requests.");
    // Aborts by id and hang-ups do not raise the counter; a pause in mode abort does.
    let ends = [
        ("stop", counts.finished_stop),
        ("length", counts.finished_length),
        ("abort", counts.paused_aborts),
        ("error", 0),
        ("repetition", 0),
    ];
    for (reason, count) in ends {
        let reason = format!("{ENGINE}finished_reason=\"{reason}\",");
        page.value("request_success_total", &reason, count as f64);
    }
    for (reason, _) in ends {
        let reason = format!("{ENGINE}finished_reason=\"{reason}\",");
        page.value("request_success_created", &reason, created);
    }
    page.family("num_preemptions_total", "counter", "Cumulative number of preemptions.");
    page.value("num_preemptions_total", ENGINE, 0.0);
    page.first_tokens("time_to_first_token_seconds", ENGINE, first_tokens);
    page.into_text()
}
