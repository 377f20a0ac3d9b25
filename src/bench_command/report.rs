//! The figures as a table of at most 100 columns; what could not be measured is a dash.

use super::advice::Advice;
use super::arguments::FleetArgs;
use super::latency::{CALLS, PERCENTILES};
use super::statistics::Figures;
use crate::words::thousands;

const LABEL_WIDTH: usize = 40;
const CELL_WIDTH: usize = 12;
/// Characters of a line of text.
const TEXT_WIDTH: usize = 96;

/// How a number is told.
#[derive(Clone, Copy)]
enum Form {
    /// In whole ones, with commas.
    Whole,
    /// With two decimals.
    Fine,
    /// In whole ones, with a percent sign.
    Percent,
}

/// Everything that was measured, one section for each part, an empty line between them.
pub fn text(figures: &Figures, advice: Option<&Advice>, fleet: &FleetArgs) -> String {
    let advice = advice.map(|advice| shards(advice, fleet)).unwrap_or_default();
    let sections =
        [throughput(figures), latency(figures), hand_back(figures), memory(figures), advice];
    let sections = sections.iter().filter(|lines| !lines.is_empty());
    let sections = sections.map(|lines| {
        let lines: Vec<&str> = lines.iter().map(|line| line.trim_end()).collect();
        lines.join("\n")
    });
    sections.collect::<Vec<_>>().join("\n\n")
}

fn throughput(figures: &Figures) -> Vec<String> {
    if !figures.has("batchedCyclesPerSecond") {
        return Vec::new();
    }
    let mut lines =
        vec![head("throughput", &["a second", "Redis µs", "Redis busy", "client busy"])];
    let mut queue = |label: &str, name: &str, suffix: &str| {
        lines.push(row(
            label,
            &[
                cell(figures, &format!("{name}CyclesPerSecond{suffix}"), Form::Whole),
                cell(figures, &format!("{name}RedisMicrosecondsPerCycle{suffix}"), Form::Fine),
                cell(figures, &format!("{name}RedisCpuPercent{suffix}"), Form::Percent),
                cell(figures, &format!("{name}ClientCpuPercent{suffix}"), Form::Percent),
            ],
        ));
    };
    queue("cycles, batched by 16, groups of 8", "batched", "GroupsOf8");
    queue("cycles, batched by 16, groups of 1", "batched", "GroupsOf1");
    queue("cycles, unbatched, groups of 8", "unbatched", "GroupsOf8");
    queue("cycles, unbatched, groups of 1", "unbatched", "GroupsOf1");
    queue("... with 8 KiB in 4 appends, batched", "partial", "");
    for (label, key) in [
        ("floor, batched by 16", "batchedFloorCyclesPerSecond"),
        ("floor, batched by 16, spec copied", "batchedFloorWithSpecCyclesPerSecond"),
        ("floor, unbatched", "unbatchedFloorCyclesPerSecond"),
        ("floor, unbatched, spec copied", "unbatchedFloorWithSpecCyclesPerSecond"),
        ("groups of 8 enqueued", "enqueuedGroupsPerSecondGroupsOf8"),
    ] {
        lines.push(row(label, &[cell(figures, key, Form::Whole)]));
    }
    lines
}

fn latency(figures: &Figures) -> Vec<String> {
    if !figures.has("latencyCallsPerSecond") {
        return Vec::new();
    }
    let rate = thousands(figures.value("latencyCallsPerSecond").unwrap_or(0.0) as u64);
    let title = format!("latency at {rate} calls a second, ms");
    let mut lines = vec![head(&title, &["p50", "p99", "p99.9"])];
    let names = ["lease", "append of 64 tokens", "complete", "hand back"];
    for (call, name) in CALLS.into_iter().zip(names) {
        let cells =
            PERCENTILES.map(|(_, suffix)| cell(figures, &format!("{call}{suffix}"), Form::Fine));
        lines.push(row(name, &cells));
    }
    lines
}

/// Depth, hand-back and recovery.
fn hand_back(figures: &Figures) -> Vec<String> {
    let rows = [
        ("cost of a cycle at 10^6 units over 10^3", "depthSlowdown1e6Over1e3", Form::Fine),
        ("cost of a cycle at 10^5 units over 10^3", "depthSlowdown1e5Over1e3", Form::Fine),
        ("512 units handed back, ms", "handBack512Ms", Form::Whole),
        ("... with all tokens in the tails, ms", "handBack512AllInTailMs", Form::Whole),
        ("125 x 64 units handed back at once, ms", "handBack125x64Ms", Form::Whole),
        ("... tokens of each that were stored", "handBack125x64StoredTokens", Form::Whole),
        ("lease time, ms", "leaseTtlMs", Form::Whole),
        ("units of a killed node leased again, ms", "recoveryAfterKillMs", Form::Whole),
    ];
    section("depth, hand-back, recovery", figures, &rows)
}

fn memory(figures: &Figures) -> Vec<String> {
    let rows = [
        ("bytes of a waiting unit, groups of 1", "bytesPerWaitingUnitGroupsOf1", Form::Whole),
        ("bytes of a waiting unit, groups of 8", "bytesPerWaitingUnitGroupsOf8", Form::Whole),
        ("bytes of a stored token", "bytesPerPartialToken", Form::Fine),
    ];
    section("memory", figures, &rows)
}

fn section(title: &str, figures: &Figures, rows: &[(&str, &str, Form)]) -> Vec<String> {
    let measured = rows.iter().filter(|(_, key, _)| figures.has(key));
    let rows: Vec<String> =
        measured.map(|(label, key, form)| row(label, &[cell(figures, key, *form)])).collect();
    if rows.is_empty() {
        return rows;
    }
    [vec![title.to_owned()], rows].concat()
}

fn head(title: &str, columns: &[&str]) -> String {
    let cells: String = columns.iter().map(|column| format!("{column:>CELL_WIDTH$}")).collect();
    format!("{title:<width$}{cells}", width = LABEL_WIDTH + 2)
}

fn row(label: &str, cells: &[String]) -> String {
    let cells: String = cells.iter().map(|cell| format!("{cell:>CELL_WIDTH$}")).collect();
    format!("  {label:<LABEL_WIDTH$}{cells}")
}

fn cell(figures: &Figures, key: &str, form: Form) -> String {
    match (figures.value(key), form) {
        (None, _) => "-".to_owned(),
        (Some(value), Form::Whole) => thousands(value.round() as u64),
        (Some(value), Form::Fine) => format!("{value:.2}"),
        (Some(value), Form::Percent) => format!("{value:.0} %"),
    }
}

/// What the operator may conclude, in words.
fn shards(advice: &Advice, fleet: &FleetArgs) -> Vec<String> {
    let whole = |number: f64| thousands(number.round() as u64);
    let micros = |seconds: f64| format!("{:.1} µs", seconds * 1e6);
    let calls = format!(
        "A fleet with {} units in flight and {} tokens a second makes {} appends, {} renewals and \
         {} completions a second, of which one Redis like this works {}, {} and {} each: it is \
         {:.0} % busy. Half is a good limit.",
        thousands(fleet.units_in_flight),
        thousands(fleet.tokens_per_second),
        whole(advice.appends),
        whole(advice.renewals),
        whole(advice.cycles),
        micros(advice.costs.append),
        micros(advice.costs.renewal),
        micros(advice.costs.cycle),
        advice.busy_percent,
    );
    let needs = if advice.servers == 1 {
        "It needs one server and 1 shard (spec.queue.shards: 1).".to_owned()
    } else {
        format!(
            "It needs a Cluster of {servers} masters and {shards} shards (spec.queue.shards: \
             {shards}); check with CLUSTER KEYSLOT that they are spread evenly. Appending less \
             often needs less.",
            servers = advice.servers,
            shards = advice.shards,
        )
    };
    let why = "Shards on one server only spread the keys: its one thread serves them all, and \
               calls get smaller. In a Cluster of m masters they do up to m times as much.";
    [vec!["shards".to_owned()], paragraph(&[&calls, &needs, why])].concat()
}

fn paragraph(texts: &[&str]) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for text in texts {
        let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        let flowed = crate::words::flow(&words, " ", TEXT_WIDTH);
        lines.extend(flowed.iter().map(|line| format!("  {line}")));
    }
    lines
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::bench_command::advice::Costs;

    #[test]
    fn rows_are_aligned_and_unknown_figures_are_dashes() {
        let mut figures = Figures::default();
        figures.set("handBack512Ms", 212.4);
        figures.set("depthSlowdown1e6Over1e3", 1.034);
        figures.set("bytesPerPartialToken", None);
        let expected = [
            "depth, hand-back, recovery",
            "  cost of a cycle at 10^6 units over 10^3         1.03",
            "  512 units handed back, ms                        212",
            "",
            "memory",
            "  bytes of a stored token                            -",
        ];
        assert_eq!(text(&figures, None, &fleet()).lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn no_line_is_wider_than_a_hundred_columns() {
        let mut figures = Figures::default();
        for key in ["batchedCyclesPerSecond", "latencyCallsPerSecond", "leaseTtlMs"] {
            figures.set(key, 123_456_789.0);
        }
        let advice = Advice {
            costs: Costs { cycle: 1.0, append: 1.0, renewal: 1.0 },
            appends: 1e7,
            renewals: 1e6,
            cycles: 1e5,
            busy_percent: 12_345.0,
            servers: 247,
            shards: 988,
        };
        let text = text(&figures, Some(&advice), &fleet());
        assert!(text.lines().count() > 20);
        for line in text.lines() {
            assert!(line.chars().count() <= 100, "{line}");
        }
    }

    fn fleet() -> FleetArgs {
        FleetArgs {
            units_in_flight: 10_000_000,
            tokens_per_second: 1_000_000_000,
            response_tokens: 4_000,
            checkpoint_interval: Duration::from_millis(500),
        }
    }
}
