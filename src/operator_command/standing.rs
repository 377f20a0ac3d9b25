//! `ebbtide drain --list`: the drains that stand, one of them in words and as JSON, and the nodes
//! that stand idle because of them.

use std::time::Duration;

use ebbtide_core::ids::ReplicaId;
use ebbtide_core::scale::SILENCE_LIMIT;
use ebbtide_queue::client::WorkQueue;
use ebbtide_queue::control::{ControlView, DrainRecord, DrainState, NodeRecord};
use serde_json::{Value, json};

use super::words;
use crate::place::Answer;
use crate::table::Table;
use crate::words::{span, thousands};

/// Idle nodes that are named; further ones are counted.
const IDLE_NAMED: usize = 20;

/// Lists the drains that were not taken back, the one that must be over first at the top.
///
/// # Errors
/// The queue does not answer.
pub async fn list(queue: &WorkQueue) -> anyhow::Result<Answer> {
    let view = queue.view().await?;
    Ok(tell(&view))
}

fn tell(view: &ControlView) -> Answer {
    let is_standing = |drain: &&DrainRecord| drain.state != DrainState::Cancelled;
    let mut drains: Vec<&DrainRecord> = view.drains.iter().filter(is_standing).collect();
    drains.sort_by_key(|drain| (drain.deadline, &drain.replica));
    let mut table = Table::new(["REPLICA", "GOES", "WHY", "STATE", ">HELD", "DEADLINE", "ASKED"]);
    for drain in &drains {
        let whole = if drain.lost.is_empty() { "-".to_owned() } else { drain.lost.to_string() };
        table.row([
            drain.replica.to_string(),
            whole,
            words(&json!(drain.reason)),
            words(&json!(drain.state)),
            thousands(held(view, &drain.replica)),
            deadline_words(drain, view),
            format!("{} ago", span(view.now.since(drain.requested_at))),
        ]);
    }
    let json: Vec<Value> = drains.iter().map(|drain| to_json(drain, view)).collect();
    let mut lines = match drains.is_empty() {
        true => vec!["no drain stands".to_owned()],
        false => table.to_lines(),
    };
    lines.extend(idle_lines(view));
    let json = json!({ "ok": true, "drains": json, "idleNodes": idle_json(view) });
    Answer { is_good: true, text: lines.join("\n"), json }
}

/// Capacity that can be used again: nodes that stay although their EP group lost another one.
fn idle_lines(view: &ControlView) -> Vec<String> {
    let idle = view.idle_survivors(SILENCE_LIMIT);
    let named = idle.iter().take(IDLE_NAMED).map(|(node, time)| {
        let (node, replica) = (&node.node, &node.replica);
        format!("{node} has stood idle for {}: its replica {replica} lost a node", span(*time))
    });
    let rest = idle.len().saturating_sub(IDLE_NAMED);
    named.chain((rest > 0).then(|| format!("{rest} more stand idle"))).collect()
}

fn idle_json(view: &ControlView) -> Vec<Value> {
    let idle = view.idle_survivors(SILENCE_LIMIT).into_iter();
    let json = |(node, time): (&NodeRecord, Duration)| {
        json!({
            "node": node.node,
            "replica": node.replica,
            "idleSeconds": time.as_secs_f64(),
        })
    };
    idle.map(json).collect()
}

/// Units that the nodes of a replica said they hold.
pub fn held(view: &ControlView, replica: &ReplicaId) -> u64 {
    let nodes = view.nodes.iter().filter(|node| node.replica == *replica);
    nodes.map(|node| u64::from(node.in_flight)).sum()
}

/// When a replica must be empty: `in 80 s`, or how long ago that was.
pub fn deadline_words(drain: &DrainRecord, view: &ControlView) -> String {
    if drain.deadline >= view.now {
        format!("in {}", span(drain.deadline.remaining(view.now)))
    } else {
        format!("{} ago", span(view.now.since(drain.deadline)))
    }
}

/// For machines.
pub fn to_json(drain: &DrainRecord, view: &ControlView) -> Value {
    json!({
        "replica": drain.replica,
        "requestId": drain.request_id,
        "reason": drain.reason,
        "state": drain.state,
        "lost": drain.lost.0,
        "unitsHeld": held(view, &drain.replica),
        "deadlineMs": drain.deadline,
        "secondsLeft": drain.deadline.remaining(view.now).as_secs_f64(),
        "requestedAtMs": drain.requested_at,
    })
}

#[cfg(test)]
pub mod tests {
    use ebbtide_queue::control::{DrainReason, NodeNames};

    use super::*;
    use crate::operator_command::node::tests::{NOW, node};

    /// A drain that an operator asked for, under way.
    pub fn drain(replica: &str) -> DrainRecord {
        DrainRecord {
            replica: replica.parse().expect("valid"),
            request_id: format!("operator-{replica}-1"),
            generation: 0,
            reason: DrainReason::Operator,
            deadline: NOW.plus(Duration::from_secs(600)),
            state: DrainState::Draining,
            requested_at: NOW.minus(Duration::from_secs(4)),
            lost: NodeNames::default(),
        }
    }

    #[test]
    fn drains_that_stand_are_listed_and_cancelled_ones_are_not() {
        let notice = DrainRecord {
            reason: DrainReason::Notice,
            deadline: NOW.minus(Duration::from_secs(3)),
            lost: NodeNames::from("a2".parse::<ebbtide_core::ids::NodeName>().expect("valid")),
            ..drain("ep-0")
        };
        let cancelled = DrainRecord { state: DrainState::Cancelled, ..drain("n9") };
        let view = ControlView {
            now: NOW,
            nodes: vec![node("a1", "ep-0"), node("a2", "ep-0"), node("n1", "n1")],
            drains: vec![drain("n1"), notice, cancelled],
            ..ControlView::default()
        };
        let answer = tell(&view);
        assert_eq!(
            answer.text,
            "\
REPLICA  GOES  WHY       STATE     HELD  DEADLINE   ASKED
ep-0     a2    notice    draining     8  3.0 s ago  4.0 s ago
n1       -     operator  draining     4  in 10 min  4.0 s ago"
        );
        assert_eq!(answer.json["drains"][0]["lost"], json!(["a2"]));
        assert_eq!(answer.json["drains"][1]["secondsLeft"], 600.0);
        assert_eq!(tell(&ControlView::default()).text, "no drain stands");
    }

    #[test]
    fn nodes_that_stand_idle_are_named_with_their_time_and_many_are_counted() {
        let idle = |number: u64| NodeRecord {
            idle_since: Some(NOW.minus(Duration::from_secs(100 - number))),
            ..node(&format!("a{number:02}"), "ep-0")
        };
        let of = |count| ControlView {
            now: NOW,
            nodes: (0..count).map(idle).collect(),
            ..ControlView::default()
        };
        let answer = tell(&of(1));
        assert_eq!(
            answer.text,
            "no drain stands\na00 has stood idle for 100 s: its replica ep-0 lost a node"
        );
        assert_eq!(answer.json["idleNodes"][0]["idleSeconds"], 100.0);
        let text = tell(&of(25)).text;
        assert_eq!(text.lines().count(), 1 + IDLE_NAMED + 1);
        assert!(text.ends_with("\n5 more stand idle"), "{text}");
    }
}
