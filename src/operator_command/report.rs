//! `ebbtide drain --report`: what drains came to, as the agents that led them kept it.

use std::time::Duration;

use ebbtide_core::ids::{NodeName, ReplicaId};
use ebbtide_core::time::UnixMillis;
use ebbtide_queue::client::WorkQueue;
use ebbtide_queue::control::{ClosingReport, ControlView, DrainOutcome, REPORTS_KEPT};
use serde_json::{Value, json};

use super::node::find_node;
use super::words;
use crate::place::Answer;
use crate::table::Table;
use crate::words::{counted, span, thousands};

/// Shows the newest reports, all or those of a node, the newest first.
///
/// # Errors
/// The queue does not answer, or there is neither a report of the node nor a node of that name.
pub async fn show(
    queue: &WorkQueue,
    node: Option<&NodeName>,
    limit: usize,
) -> anyhow::Result<Answer> {
    let view = queue.view().await?;
    // Which reports are a node's is only known once they are read.
    let read = if node.is_some() { REPORTS_KEPT } else { limit };
    let mut reports = queue.reports(read).await?;
    if let Some(node) = node {
        let replica = replica_of(&view, node);
        reports.retain(|report| report.node == *node || report.replica == replica);
        reports.truncate(limit);
        if reports.is_empty() {
            find_node(&view, node)?;
        }
    }
    let json: Vec<Value> = reports.iter().map(to_json).collect();
    let text = to_text(&reports, node, view.now);
    Ok(Answer { is_good: true, text, json: json!({ "ok": true, "reports": json }) })
}

/// The replica that a node belongs to; one of its own name when nothing is known of the node.
fn replica_of(view: &ControlView, node: &NodeName) -> ReplicaId {
    let record = view.nodes.iter().find(|record| record.node == *node);
    record.map_or_else(|| node.into(), |record| record.replica.clone())
}

fn to_text(reports: &[ClosingReport], node: Option<&NodeName>, now: UnixMillis) -> String {
    if reports.is_empty() {
        let of = node.map_or(String::new(), |node| format!(" of {node}"));
        return format!("no closing report{of} is kept");
    }
    let mut lines = table(reports, now).to_lines();
    lines.push(String::new());
    lines.push(sums(reports));
    lines.join("\n")
}

/// Columns that would say the same nothing in every line are left out.
fn table(reports: &[ClosingReport], now: UnixMillis) -> Table {
    let some = |is_worth_it: fn(&ClosingReport) -> bool| reports.iter().any(is_worth_it);
    let always = true;
    type Cell = Box<dyn Fn(&ClosingReport) -> String>;
    let columns: [(&str, bool, Cell); 15] = [
        (">ENDED", always, Box::new(move |r| format!("{} ago", span(now.since(r.at))))),
        ("NODE", always, Box::new(|r| r.node.to_string())),
        (
            "REPLICA",
            some(|r| r.replica.as_str() != r.node.as_str()),
            Box::new(|r| r.replica.to_string()),
        ),
        ("WHY", always, Box::new(why)),
        ("OUTCOME", always, Box::new(|r| words(&json!(r.outcome)))),
        (">LEAD", always, Box::new(|r| time(r.lead_ms))),
        (">HELD", always, Box::new(|r| thousands(r.units_held))),
        (">DONE", always, Box::new(|r| thousands(r.units_finished))),
        (">BACK", always, Box::new(|r| thousands(r.units_handed_back))),
        (">LEFT", some(|r| r.units_left > 0), Box::new(|r| thousands(r.units_left))),
        (">TOKENS KEPT", always, Box::new(|r| thousands(r.tokens_preserved))),
        (">WASTED", some(|r| r.tokens_wasted > 0), Box::new(|r| thousands(r.tokens_wasted))),
        (
            ">LAST BACK",
            always,
            Box::new(|r| r.last_hand_back_ms.map_or_else(|| "-".to_owned(), time)),
        ),
        (">TOOK", always, Box::new(|r| time(r.duration_ms))),
        (">COST", some(|r| r.dollars.is_some()), Box::new(cost)),
    ];
    let shown: Vec<&(&str, bool, Cell)> = columns.iter().filter(|(_, shown, _)| *shown).collect();
    let mut table = Table::new(shown.iter().map(|(title, ..)| *title));
    for report in reports {
        table.row(shown.iter().map(|(_, _, cell)| cell(report)));
    }
    table
}

/// The notice behind a drain, or else its reason.
fn why(report: &ClosingReport) -> String {
    let kind = report.kind.as_ref().map(|kind| kind.replace('_', " "));
    kind.unwrap_or_else(|| words(&json!(report.reason)))
}

fn cost(report: &ClosingReport) -> String {
    let nodes = if report.nodes > 1 { format!(" ({} nodes)", report.nodes) } else { String::new() };
    report.dollars.map_or_else(|| "-".to_owned(), |dollars| format!("${dollars:.2}{nodes}"))
}

fn sums(reports: &[ClosingReport]) -> String {
    let sum = |of: fn(&ClosingReport) -> u64| reports.iter().map(of).sum::<u64>();
    format!(
        "{}: {} finished, {} handed back with {}; {} left behind, {} wasted",
        counted(reports.len() as u64, "drain"),
        counted(sum(|r| r.units_finished), "unit"),
        thousands(sum(|r| r.units_handed_back)),
        counted(sum(|r| r.tokens_preserved), "token"),
        counted(sum(|r| r.units_left), "unit"),
        counted(sum(|r| r.tokens_wasted), "token"),
    )
}

fn time(ms: u64) -> String {
    span(Duration::from_millis(ms))
}

/// One report in a few lines.
pub fn to_lines(report: &ClosingReport) -> Vec<String> {
    let left = match report.outcome {
        DrainOutcome::Overdue => format!(", {} still held at the deadline", report.units_left),
        _ => String::new(),
    };
    let last = report.last_hand_back_ms.map_or_else(
        || "no hand-back".to_owned(),
        |ms| format!("last hand-back after {}", time(ms)),
    );
    let cost = report.dollars.map_or(String::new(), |dollars| format!(", ${dollars:.2} meanwhile"));
    let mut table = Table::new(["", ""]);
    let mut row = |title: &str, text: String| table.row([format!("  {title}"), text]);
    row(
        "units",
        format!(
            "{} held: {} finished, {} handed back{left}",
            thousands(report.units_held),
            thousands(report.units_finished),
            thousands(report.units_handed_back),
        ),
    );
    row(
        "tokens",
        format!(
            "{} went back with their units, {} wasted",
            thousands(report.tokens_preserved),
            thousands(report.tokens_wasted),
        ),
    );
    row(
        "time",
        format!(
            "{} given, {last}, {} after {}",
            time(report.lead_ms),
            words(&json!(report.outcome)),
            time(report.duration_ms)
        ),
    );
    row("cost", format!("{}{cost}", counted(report.nodes.into(), "node")));
    table.to_lines()
}

/// For machines.
pub fn to_json(report: &ClosingReport) -> Value {
    json!({
        "requestId": report.request_id,
        "replica": report.replica,
        "node": report.node,
        "reason": report.reason,
        "kind": report.kind,
        "outcome": report.outcome,
        "begunAtMs": report.begun_at,
        "writtenAtMs": report.at,
        "leadMs": report.lead_ms,
        "unitsHeld": report.units_held,
        "unitsFinished": report.units_finished,
        "unitsHandedBack": report.units_handed_back,
        "unitsLeft": report.units_left,
        "tokensPreserved": report.tokens_preserved,
        "tokensWasted": report.tokens_wasted,
        "lastHandBackMs": report.last_hand_back_ms,
        "durationMs": report.duration_ms,
        "nodes": report.nodes,
        "dollars": report.dollars,
    })
}

#[cfg(test)]
pub mod tests {
    use ebbtide_queue::control::DrainReason;

    use super::*;
    use crate::operator_command::node::tests::NOW;

    /// A drain of 64 units for a Spot notice, over in time.
    pub fn report(node: &str) -> ClosingReport {
        ClosingReport {
            request_id: format!("notice-{node}-1"),
            replica: node.parse().expect("valid"),
            node: node.parse().expect("valid"),
            reason: DrainReason::Notice,
            kind: Some("spot_terminate".to_owned()),
            outcome: DrainOutcome::Drained,
            begun_at: NOW,
            lead_ms: 118_000,
            units_held: 64,
            units_finished: 12,
            units_handed_back: 52,
            units_left: 0,
            tokens_preserved: 412_000,
            tokens_wasted: 0,
            last_hand_back_ms: Some(870),
            duration_ms: 31_400,
            nodes: 1,
            dollars: None,
            at: NOW.plus(Duration::from_secs(32)),
        }
    }

    #[test]
    fn table_is_read_at_a_glance() {
        let overdue = ClosingReport {
            reason: DrainReason::Operator,
            kind: None,
            outcome: DrainOutcome::Overdue,
            replica: "ep-0".parse().expect("valid"),
            units_left: 3,
            last_hand_back_ms: None,
            nodes: 4,
            dollars: Some(1.239),
            ..report("ip-10-0-1-12.ec2.internal")
        };
        let now = NOW.plus(Duration::from_secs(752));
        assert_eq!(
            to_text(&[report("n1"), report("n2")], None, now),
            [
                "     ENDED  NODE  WHY             OUTCOME   LEAD  HELD  DONE  BACK  TOKENS KEPT  \
                 LAST BACK  TOOK",
                "12 min ago  n1    spot terminate  drained  118 s    64    12    52  \
                 \x20   412,000      0.9 s  31 s",
                "12 min ago  n2    spot terminate  drained  118 s    64    12    52  \
                 \x20   412,000      0.9 s  31 s",
                "",
                "2 drains: 24 units finished, 104 handed back with 824,000 tokens; 0 units left \
                 behind, 0 tokens wasted",
            ]
            .join("\n")
        );
        let text = to_text(&[overdue], None, now);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].contains("REPLICA") && lines[0].contains("LEFT"), "{text}");
        assert!(lines[1].contains("operator  overdue") && lines[1].contains(" - "), "{text}");
        assert!(lines[1].ends_with("$1.24 (4 nodes)"), "{text}");
        assert_eq!(to_text(&[], None, now), "no closing report is kept");
    }

    #[test]
    fn one_report_tells_units_tokens_time_and_cost() {
        let report = ClosingReport { dollars: Some(0.314), ..report("n1") };
        assert_eq!(
            to_lines(&report).join("\n"),
            "  units   64 held: 12 finished, 52 handed back
  tokens  412,000 went back with their units, 0 wasted
  time    118 s given, last hand-back after 0.9 s, drained after 31 s
  cost    1 node, $0.31 meanwhile"
        );
    }
}
