//! `ebbtide drain`: asks for the drain of a node's replica, takes it back, and tells what stands.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use ebbtide_core::ids::NodeName;
use ebbtide_core::policy::duration::parse_duration;
use ebbtide_queue::client::WorkQueue;
use ebbtide_queue::control::{
    ClosingReport, ControlView, DrainOutcome, DrainProgress, DrainReason, DrainRecord,
    DrainRequest, DrainState, NodeNames, NodeRecord, REPORTS_KEPT,
};
use serde_json::{Value, json};

use super::follow::{self, End, Followed};
use super::node::{find_node, silence};
use super::{refusal, report, standing, words};
use crate::place::{Answer, Place};
use crate::setup::{self, LogFormat};
use crate::words::{counted, span};

const EXAMPLES: &str = "\
Examples:
  ebbtide drain ip-10-0-1-12.ec2.internal --redis redis://10.0.0.5:6379 --run grpo-7b --wait
  ebbtide drain ip-10-0-1-12.ec2.internal --run grpo-7b --cancel
  ebbtide drain --list --run grpo-7b
  ebbtide drain --report --run grpo-7b --limit 5

The agents stop leasing, let finish what will be done before the deadline, hand everything else
back with its tokens, cordon and taint the node. It stays drained until --cancel. A node of an EP
group stops the whole group; only the named node is marked.

Exit code: 0 done; 1 it was refused, or with --wait something was still held at the deadline; 2 for
wrong usage, an unknown node or a run out of reach.";

/// How long after its deadline a node has outlived what AWS announced.
const OUTLIVED_AFTER: Duration = Duration::from_mins(10);

fn report_limit() -> clap::builder::RangedU64ValueParser<u64> {
    clap::value_parser!(u64).range(1..=REPORTS_KEPT as u64)
}

/// `ebbtide drain …`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct DrainArgs {
    /// The node, as Kubernetes calls it
    #[arg(required_unless_present_any = ["list", "report"], conflicts_with = "list")]
    node: Option<NodeName>,
    #[command(flatten)]
    place: Place,
    /// Time until the node must be empty
    #[arg(long, default_value = "10m", value_name = "TIME", value_parser = parse_duration)]
    deadline: Duration,
    /// Wait until the node is empty; progress goes to stderr
    #[arg(long, conflicts_with_all = ["cancel", "list", "report"])]
    wait: bool,
    /// Take back a drain that an operator asked for
    #[arg(long, conflicts_with_all = ["list", "report"])]
    cancel: bool,
    /// List all drains that stand
    #[arg(long, conflicts_with = "report")]
    list: bool,
    /// Show what drains came to, the newest first; of all nodes or of one
    #[arg(long)]
    report: bool,
    /// Most reports to show
    #[arg(long, default_value_t = 20, value_parser = report_limit(), requires = "report")]
    limit: u64,
}

/// Runs `ebbtide drain`.
///
/// # Errors
/// The run is not reachable or does not exist, or nothing is known of the node.
pub async fn run(args: DrainArgs) -> anyhow::Result<ExitCode> {
    setup::start_logging(LogFormat::Text, "off");
    let queue = args.place.connect().await?;
    let answer = match &args.node {
        node if args.report => report::show(&queue, node.as_ref(), args.limit as usize).await?,
        Some(node) if args.cancel => cancel(&queue, node).await?,
        Some(node) => ask(&queue, node, args.deadline, args.wait).await?,
        None => standing::list(&queue).await?,
    };
    Ok(answer.tell(args.place.output))
}

async fn ask(
    queue: &WorkQueue,
    node: &NodeName,
    deadline: Duration,
    waits: bool,
) -> anyhow::Result<Answer> {
    let view = queue.view().await?;
    let record = find_node(&view, node)?;
    let request = DrainRequest {
        replica: record.replica.clone(),
        request_id: format!("operator-{node}-{}", uuid::Uuid::new_v4()),
        generation: 0,
        reason: DrainReason::Operator,
        remaining: deadline,
        lost: NodeNames::from(node.clone()),
    };
    let request_id = request.request_id.clone();
    let drain = queue.request_drain(request).await?;
    let view = queue.view().await?;
    let asked = Asked { record, is_new: drain.request_id == request_id, drain, view: &view };
    if !waits {
        return Ok(asked.tell(None));
    }
    eprintln!("{}", asked.to_lines().join("\n"));
    let followed = Followed {
        replica: asked.drain.replica.clone(),
        request_id: asked.drain.request_id.clone(),
    };
    let end = follow::wait_until_over(queue, &followed).await?;
    let report = follow::closing_report(queue, &followed).await?;
    Ok(asked.tell(Some((end, report))))
}

/// A drain that was asked for.
struct Asked<'a> {
    record: &'a NodeRecord,
    /// What holds now.
    drain: DrainRecord,
    /// Whether it is of this request, not one that stood before.
    is_new: bool,
    view: &'a ControlView,
}

impl Asked<'_> {
    /// What was asked for, and what an operator may not expect.
    fn to_lines(&self) -> Vec<String> {
        let (node, drain) = (&self.record.node, &self.drain);
        let deadline = standing::deadline_words(drain, self.view);
        let mut lines = vec![if self.is_new {
            let held = counted(standing::held(self.view, &drain.replica), "unit");
            format!("drain of {node} asked for, {held} held, deadline {deadline}")
        } else {
            format!(
                "{} drains already ({}, {}), deadline {deadline}; {node} is part of that drain",
                drain.replica,
                words(&json!(drain.reason)),
                words(&json!(drain.state)),
            )
        }];
        if !self.is_new && drain.reason != DrainReason::Operator {
            lines.push("it ends when its own cause does; look again then".to_owned());
        }
        let nodes = self.view.nodes.iter().filter(|other| other.replica == drain.replica).count();
        if nodes > 1 {
            lines.push(format!("its replica {} has {nodes} nodes: all stop", drain.replica));
        }
        if let Some(silence) = silence(self.view, self.record) {
            lines.push(format!(
                "its agent was last heard {} ago: nobody drains it until that is back, and what \
                 it held comes back when its leases expire",
                span(silence)
            ));
        }
        lines
    }

    fn tell(&self, outcome: Option<(End, Option<ClosingReport>)>) -> Answer {
        let mut json = json!({
            "ok": true,
            "node": self.record.node,
            "isNew": self.is_new,
            "drain": standing::to_json(&self.drain, self.view),
            "agentSilentSeconds":
                self.view.now.since(self.record.heartbeat).as_secs_f64(),
        });
        let Some((end, report)) = outcome else {
            let mut lines = self.to_lines();
            lines.push(format!("take it back: ebbtide drain {} --cancel", self.record.node));
            return Answer { is_good: true, text: lines.join("\n"), json };
        };
        let (is_good, text) = conclude(&self.record.node, end, report.as_ref());
        json["ok"] = Value::Bool(is_good);
        json["end"] = Value::from(end.as_str());
        if let End::Overdue { held } = end {
            json["held"] = Value::from(held);
        }
        json["report"] = report.as_ref().map_or(Value::Null, report::to_json);
        Answer { is_good, text, json }
    }
}

/// How a drain that was waited for ended, in words, and whether that is what was wanted.
fn conclude(node: &NodeName, end: End, report: Option<&ClosingReport>) -> (bool, String) {
    let outcome = report.map(|report| report.outcome);
    let (is_good, head) = match (end, outcome) {
        (End::Drained, Some(DrainOutcome::Overdue)) => {
            (false, format!("{node} is drained, but held something when its deadline passed"))
        }
        (End::Drained, _) | (End::Gone, Some(DrainOutcome::Drained)) => {
            (true, format!("{node} is drained until ebbtide drain {node} --cancel"))
        }
        (End::Cancelled, _) => (false, format!("the drain of {node} was taken back")),
        (End::Overdue { held }, _) => (
            false,
            format!(
                "the deadline of {node} has passed and nobody said that it is empty: {} held by \
                 the last report; what it holds comes back when its leases expire",
                counted(held, "unit")
            ),
        ),
        (End::Gone, _) => {
            (false, format!("the drain of {node} is gone and nobody said that it is empty"))
        }
    };
    let mut lines = vec![head];
    match report {
        Some(report) => lines.extend(report::to_lines(report)),
        None => lines.push("  no agent has left a closing report".to_owned()),
    }
    (is_good, lines.join("\n"))
}

async fn cancel(queue: &WorkQueue, node: &NodeName) -> anyhow::Result<Answer> {
    let view = queue.view().await?;
    let record = find_node(&view, node)?;
    let Some(drain) = view.active_drain(&record.replica) else {
        let text = format!("no drain of {node} stands: nothing was done");
        let json = json!({ "ok": true, "node": node, "cancelled": false, "drain": null });
        return Ok(Answer { is_good: true, text, json });
    };
    if let Some(why) = why_not_cancel(drain, &view) {
        return Ok(refusal(format!("nothing was done: {why}")));
    }
    let progress = DrainProgress {
        replica: drain.replica.clone(),
        request_id: drain.request_id.clone(),
        generation: 0,
        state: DrainState::Cancelled,
    };
    let after = queue.report_drain(progress).await?;
    let after = after.filter(|after| after.request_id == drain.request_id);
    Ok(match after.filter(|after| after.state == DrainState::Cancelled) {
        Some(after) => Answer {
            is_good: true,
            text: format!("drain of {node} taken back: it returns to work"),
            json: json!({
                "ok": true,
                "node": node,
                "cancelled": true,
                "drain": standing::to_json(&after, &view),
            }),
        },
        None => refusal(format!(
            "the drain of {node} has moved on meanwhile and stands; see ebbtide drain --list"
        )),
    })
}

/// Why an operator may not take back a drain. What AWS announced may be taken back once it is long
/// past: an agent that still has its notice asks anew.
fn why_not_cancel(drain: &DrainRecord, view: &ControlView) -> Option<String> {
    let replica = &drain.replica;
    if drain.state == DrainState::Terminating {
        return Some(format!("the instances of {replica} are being terminated"));
    }
    let deadline = standing::deadline_words(drain, view);
    let is_outlived = view.now.since(drain.deadline) >= OUTLIVED_AFTER;
    let why = match drain.reason {
        DrainReason::Operator | DrainReason::Drill => return None,
        DrainReason::Notice | DrainReason::Maintenance | DrainReason::Lifecycle if is_outlived => {
            return None;
        }
        DrainReason::Notice => format!("AWS takes {replica}, deadline {deadline}"),
        DrainReason::Maintenance => {
            format!("AWS maintains the instance or its host, deadline {deadline}")
        }
        DrainReason::Lifecycle => {
            format!("its Auto Scaling group takes the instance out, deadline {deadline}")
        }
        DrainReason::Rebalance => format!(
            "it ends by itself after drain.rebalanceTtl; drain.rebalance of the fleet policy says \
             whether a recommendation drains {replica}"
        ),
        DrainReason::ScaleIn | DrainReason::Swap => format!(
            "the controller takes {replica} out of service ({}); ebbtide hold rollout keeps it \
             from doing more",
            words(&json!(drain.reason))
        ),
        DrainReason::Foreign => {
            format!("another handler empties {replica}; take its mark off the node or the pod")
        }
    };
    Some(why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operator_command::node::tests::{NOW, node};
    use crate::operator_command::report::tests::report;
    use crate::operator_command::standing::tests::drain;

    #[test]
    fn only_a_drain_of_an_operator_is_taken_back() {
        use DrainReason::*;
        let view = ControlView { now: NOW, ..ControlView::default() };
        let of = |reason| why_not_cancel(&DrainRecord { reason, ..drain("n1") }, &view);
        for reason in [Operator, Drill] {
            assert_eq!(of(reason), None);
        }
        for reason in [Notice, Rebalance, Maintenance, Lifecycle, ScaleIn, Swap, Foreign] {
            assert!(of(reason).is_some(), "{reason:?}");
        }
        let terminating = DrainRecord { state: DrainState::Terminating, ..drain("n1") };
        assert!(why_not_cancel(&terminating, &view).is_some());
    }

    /// A notice that joined an operator's drain bears the operator's name: nobody else ends it.
    #[test]
    fn what_aws_announced_is_taken_back_once_the_node_has_outlived_it() {
        use DrainReason::*;
        let of = |reason, age| {
            let deadline = NOW.minus(Duration::from_secs(age));
            let view = ControlView { now: NOW, ..ControlView::default() };
            why_not_cancel(&DrainRecord { reason, deadline, ..drain("n1") }, &view)
        };
        for reason in [Notice, Maintenance, Lifecycle] {
            assert!(of(reason, 599).is_some(), "{reason:?}");
            assert_eq!(of(reason, 600), None, "{reason:?}");
        }
        assert!(of(ScaleIn, 600).is_some() && of(Foreign, 600).is_some());
    }

    #[test]
    fn drain_that_was_asked_for_is_told_with_what_may_surprise() {
        let silent =
            NodeRecord { heartbeat: NOW.minus(Duration::from_secs(42)), ..node("a1", "ep-0") };
        let view = ControlView {
            now: NOW,
            nodes: vec![silent.clone(), node("a2", "ep-0")],
            ..ControlView::default()
        };
        let asked = Asked { record: &silent, drain: drain("ep-0"), is_new: true, view: &view };
        assert_eq!(
            asked.to_lines(),
            [
                "drain of a1 asked for, 8 units held, deadline in 10 min",
                "its replica ep-0 has 2 nodes: all stop",
                "its agent was last heard 42 s ago: nobody drains it until that is back, and what \
                 it held comes back when its leases expire",
            ]
        );
        let notice = DrainRecord { reason: DrainReason::Notice, ..drain("n1") };
        let record = node("n1", "n1");
        let asked = Asked { record: &record, drain: notice, is_new: false, view: &view };
        assert_eq!(
            asked.to_lines(),
            [
                "n1 drains already (notice, draining), deadline in 10 min; n1 is part of that \
                 drain",
                "it ends when its own cause does; look again then",
            ]
        );
    }

    #[test]
    fn wait_is_good_only_when_the_node_is_known_to_be_empty() {
        let node: NodeName = "n1".parse().expect("valid");
        let drained = report("n1");
        let overdue = ClosingReport { outcome: DrainOutcome::Overdue, ..report("n1") };
        let table = [
            (End::Drained, Some(&drained), true),
            (End::Drained, None, true),
            (End::Drained, Some(&overdue), false),
            (End::Gone, Some(&drained), true),
            (End::Gone, None, false),
            (End::Overdue { held: 3 }, None, false),
            (End::Cancelled, None, false),
        ];
        for (end, report, expected) in table {
            let (is_good, text) = conclude(&node, end, report);
            assert_eq!(is_good, expected, "{end:?}: {text}");
        }
        let (_, text) = conclude(&node, End::Overdue { held: 3 }, None);
        assert!(text.contains("nobody said that it is empty: 3 units held"), "{text}");
    }
}
