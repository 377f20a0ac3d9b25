//! A page of metrics in the text format of Prometheus.

use std::fmt::Write;

use super::first_tokens::FirstTokens;

/// A page; every family of it has the same prefix, and every series the same last labels.
pub(super) struct Page {
    text: String,
    prefix: &'static str,
    labels: String,
}

impl Page {
    /// An empty page whose series end with `labels`, such as `model_name="tiny"`.
    pub(super) fn new(prefix: &'static str, labels: String) -> Self {
        Self { text: String::new(), prefix, labels }
    }

    pub(super) fn family(&mut self, name: &str, kind: &str, help: &str) {
        let prefix = self.prefix;
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "# HELP {prefix}{name} {help}\n# TYPE {prefix}{name} {kind}");
    }

    /// A value; `before` are labels that stand before the others, each with a comma behind it.
    pub(super) fn value(&mut self, name: &str, before: &str, value: f64) {
        let (prefix, labels) = (self.prefix, &self.labels);
        let _ = writeln!(self.text, "{prefix}{name}{{{before}{labels}}} {value:?}");
    }

    /// A value with one more label behind the others.
    pub(super) fn trailing(&mut self, name: &str, before: &str, after: &str, value: f64) {
        let (prefix, labels) = (self.prefix, &self.labels);
        let _ = writeln!(self.text, "{prefix}{name}{{{before}{labels},{after}}} {value:?}");
    }

    /// A family of one value.
    pub(super) fn single(&mut self, name: &str, kind: &str, help: &str, before: &str, value: f64) {
        self.family(name, kind, help);
        self.value(name, before, value);
    }

    /// A histogram of the times to first tokens.
    pub(super) fn first_tokens(&mut self, name: &str, before: &str, times: &FirstTokens) {
        self.family(name, "histogram", "Histogram of time to first token in seconds.");
        for (bound, count) in times.cumulative() {
            let bound = bound.map_or("+Inf".to_owned(), |bound| format!("{bound:?}"));
            let series = format!("{before}le=\"{bound}\",");
            self.value(&format!("{name}_bucket"), &series, count as f64);
        }
        self.value(&format!("{name}_count"), before, times.count() as f64);
        self.value(&format!("{name}_sum"), before, times.seconds());
    }

    pub(super) fn into_text(self) -> String {
        self.text
    }
}
