//! `/metrics` of the emulated engine: the families of vLLM 0.32 that an agent or a scaler reads.

use std::fmt::Write;

use jiff::Timestamp;

use super::super::EngineCounts;

/// The exposition text. While everything is held by a pause, running and waiting read 0, as
/// recorded.
pub(super) fn text(counts: &EngineCounts, model: &str, started_at: Timestamp) -> String {
    let held = |value: usize| if counts.is_frozen { 0.0 } else { value as f64 };
    let mut page = Page { text: String::new(), labels: format!("model_name=\"{model}\"") };
    let waiting = held(counts.waiting);

    page.family("num_requests_running", "gauge", "Number of requests in model execution batches.");
    page.value("num_requests_running", "", held(counts.running));
    page.family("num_requests_waiting", "gauge", "Number of requests waiting to be processed.");
    page.value("num_requests_waiting", "", waiting);
    page.family("num_requests_waiting_by_reason", "gauge", "Number of waiting requests by reason.");
    page.trailing("num_requests_waiting_by_reason", "reason=\"capacity\"", waiting);
    page.trailing("num_requests_waiting_by_reason", "reason=\"deferred\"", 0.0);
    page.family("kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage.");
    page.value(
        "kv_cache_usage_perc",
        "",
        if counts.is_frozen { 0.0 } else { counts.kv_cache_usage },
    );

    let created = started_at.as_millisecond() as f64 / 1000.0;
    page.family("generation_tokens_total", "counter", "Number of generation tokens processed.");
    page.value("generation_tokens_total", "", counts.tokens_generated as f64);
    page.value("generation_tokens_created", "", created);
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
        let reason = format!("finished_reason=\"{reason}\",");
        page.value("request_success_total", &reason, count as f64);
    }
    for (reason, _) in ends {
        let reason = format!("finished_reason=\"{reason}\",");
        page.value("request_success_created", &reason, created);
    }
    page.text
}

struct Page {
    text: String,
    labels: String,
}

impl Page {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "# HELP vllm:{name} {help}\n# TYPE vllm:{name} {kind}");
    }

    /// Labels are in alphabetical order: `before` comes between `engine` and `model_name`.
    fn value(&mut self, name: &str, before: &str, value: f64) {
        let labels = &self.labels;
        let _ = writeln!(self.text, "vllm:{name}{{engine=\"0\",{before}{labels}}} {value:?}");
    }

    fn trailing(&mut self, name: &str, after: &str, value: f64) {
        let labels = &self.labels;
        let _ = writeln!(self.text, "vllm:{name}{{engine=\"0\",{labels},{after}}} {value:?}");
    }
}
