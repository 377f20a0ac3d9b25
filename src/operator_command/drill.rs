//! `ebbtide drill`: rehearses a Spot notice on a node in service, and judges what came of it.
//!
//! The agents hand back as they would for a notice of that length, mark nothing, leave a closing
//! report and return to work by themselves, also when this command has gone away.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use ebbtide_core::drain::DrainWindow;
use ebbtide_core::ids::NodeName;
use ebbtide_core::policy::duration::parse_duration;
use ebbtide_core::time::whole_millis;
use ebbtide_queue::client::WorkQueue;
use ebbtide_queue::control::{
    ClosingReport, ControlView, DrainOutcome, DrainProgress, DrainReason, DrainRequest, DrainState,
    NodeNames, NodeRecord, NodeState,
};
use serde_json::{Value, json};

use super::follow::{self, DEADLINE_MARGIN, Followed};
use super::node::{find_node, silence};
use super::{refusal, report, words};
use crate::place::{Answer, Place};
use crate::setup::{self, LogFormat};
use crate::words::{counted, span};

/// What a hand-back that begins at deadline − reserve may take: it is what the reserve is for.
const HAND_BACK_LIMIT: Duration = Duration::from_secs(1);

const EXAMPLES: &str = "\
Examples:
  ebbtide drill ip-10-0-1-12.ec2.internal --redis redis://10.0.0.5:6379 --run grpo-7b
  ebbtide drill ip-10-0-1-12.ec2.internal --run grpo-7b --notice 40s --output json

The node, with its EP group, hands its work back as for a Spot notice of that length and then
returns to work. It is not cordoned or tainted, and no pod is evicted. What that costs is the time
until the units run again, here or elsewhere. Real notices were seen to leave 120s, 108s and 39s.

Exit code: 0 the node would have made it; 1 it would not, it was refused, or no report came; 2 for
wrong usage, an unknown node or a run out of reach.";

/// `ebbtide drill …`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct DrillArgs {
    /// The node, as Kubernetes calls it
    node: NodeName,
    #[command(flatten)]
    place: Place,
    /// Time that the notice gives
    #[arg(long, default_value = "120s", value_name = "TIME", value_parser = parse_duration)]
    notice: Duration,
    /// `drain.reserve` of the run's fleet policy
    #[arg(long, default_value = "10s", value_name = "TIME", value_parser = parse_duration)]
    reserve: Duration,
}

/// Runs `ebbtide drill`.
///
/// # Errors
/// The notice is no longer than the reserve, the run is not reachable or does not exist, or nothing
/// is known of the node.
pub async fn run(args: DrillArgs) -> anyhow::Result<ExitCode> {
    setup::start_logging(LogFormat::Text, "off");
    let (notice, reserve) = (args.notice, args.reserve);
    anyhow::ensure!(
        notice > reserve,
        "--notice must be longer than --reserve, got {} and {}",
        span(notice),
        span(reserve)
    );
    let queue = args.place.connect().await?;
    let window = DrainWindow { remaining: notice, reserve };
    Ok(rehearse(&queue, &args.node, window).await?.tell(args.place.output))
}

async fn rehearse(
    queue: &WorkQueue,
    node: &NodeName,
    window: DrainWindow,
) -> anyhow::Result<Answer> {
    let view = queue.view().await?;
    let record = find_node(&view, node)?;
    if let Some(why) = why_not(&view, record) {
        return Ok(refusal(format!("nothing was done: {why}")));
    }
    let request = DrainRequest {
        replica: record.replica.clone(),
        request_id: format!("drill-{node}-{}", uuid::Uuid::new_v4()),
        generation: 0,
        reason: DrainReason::Drill,
        remaining: window.remaining,
        lost: NodeNames::default(),
    };
    let followed =
        Followed { replica: request.replica.clone(), request_id: request.request_id.clone() };
    let drain = queue.request_drain(request).await?;
    if drain.request_id != followed.request_id {
        return Ok(refusal(format!(
            "{} drains since a moment ago ({}): no rehearsal",
            followed.replica,
            words(&json!(drain.reason))
        )));
    }
    eprintln!(
        "rehearsing a notice of {} on {node}: {} held",
        span(window.remaining),
        counted(record.in_flight.into(), "unit")
    );
    let limit = window.remaining + DEADLINE_MARGIN;
    let report = follow::report_within(queue, &followed, limit).await?;
    if report.is_none() {
        // Nobody has led it: nothing else would let the replica return to work.
        take_back(queue, &followed).await?;
    }
    let after = queue.view().await?;
    let overtaken_by = after
        .active_drain(&followed.replica)
        .filter(|drain| drain.request_id != followed.request_id)
        .map(|drain| drain.reason);
    let verdict = Verdict::of(report.as_ref(), overtaken_by, window);
    Ok(tell(node, &followed, window, (verdict, report.as_ref())))
}

/// Why a node cannot rehearse now.
fn why_not(view: &ControlView, record: &NodeRecord) -> Option<String> {
    let (node, replica) = (&record.node, &record.replica);
    if let Some(drain) = view.active_drain(replica) {
        let (reason, state) = (words(&json!(drain.reason)), words(&json!(drain.state)));
        return Some(format!("{replica} drains already ({reason}, {state})"));
    }
    if let Some(silence) = silence(view, record) {
        let silence = span(silence);
        return Some(format!("the agent of {node} was last heard {silence} ago"));
    }
    (record.state != NodeState::Ready).then(|| {
        let state = words(&json!(record.state));
        format!("{node} is {state}; a rehearsal needs a node in service")
    })
}

async fn take_back(queue: &WorkQueue, followed: &Followed) -> anyhow::Result<()> {
    let progress = DrainProgress {
        replica: followed.replica.clone(),
        request_id: followed.request_id.clone(),
        generation: 0,
        state: DrainState::Cancelled,
    };
    queue.report_drain(progress).await?;
    Ok(())
}

/// What a rehearsal showed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// Everything was back before deadline − reserve; this is what was left until then.
    InTime(Duration),
    /// Nothing was held, so nothing was shown.
    NothingHeld,
    /// The last hand-back came this long after deadline − reserve.
    TooLate(Duration),
    /// Units were still held at the deadline.
    LeftBehind(u64),
    /// Somebody took the rehearsal back.
    TakenBack,
    /// A notice or another request came meanwhile; the node goes.
    Overtaken(DrainReason),
    /// No agent said what it came to.
    NoReport,
}

impl Verdict {
    fn is_good(self) -> bool {
        matches!(self, Self::InTime(_) | Self::NothingHeld)
    }

    /// `overtaken_by`: why the replica drains by now, if somebody else has asked for it.
    fn of(
        report: Option<&ClosingReport>,
        overtaken_by: Option<DrainReason>,
        window: DrainWindow,
    ) -> Self {
        let unfinished = |otherwise| overtaken_by.map_or(otherwise, Self::Overtaken);
        let Some(report) = report else { return unfinished(Self::NoReport) };
        if report.reason != DrainReason::Drill {
            return Self::Overtaken(report.reason);
        }
        match report.outcome {
            DrainOutcome::Cancelled => return unfinished(Self::TakenBack),
            DrainOutcome::Overdue => return Self::LeftBehind(report.units_left),
            DrainOutcome::Drained if report.units_held == 0 => return Self::NothingHeld,
            DrainOutcome::Drained => {}
        }
        let last = Duration::from_millis(report.last_hand_back_ms.unwrap_or(0));
        let usable = window.usable();
        if last > usable + HAND_BACK_LIMIT {
            return Self::TooLate(last - usable);
        }
        Self::InTime(usable.saturating_sub(last))
    }

    fn to_text(self, node: &NodeName, notice: Duration) -> String {
        let notice = span(notice);
        match self {
            Self::InTime(spare) => format!(
                "{node} makes it within a notice of {notice}, with {} to spare before the reserve",
                span(spare)
            ),
            Self::NothingHeld => format!(
                "{node} held nothing, so this shows only that its agent answers; rehearse while it \
                 works"
            ),
            Self::TooLate(by) => format!(
                "{node} does NOT make it within a notice of {notice}: its last hand-back came {} \
                 into the reserve",
                span(by)
            ),
            Self::LeftBehind(units) => format!(
                "{node} does NOT make it within a notice of {notice}: {} still held at the \
                 deadline",
                counted(units, "unit")
            ),
            Self::TakenBack => format!("the rehearsal of {node} was taken back before its end"),
            Self::Overtaken(reason) => format!(
                "no rehearsal any more: {node} drains in earnest ({}); see ebbtide drain --list",
                words(&json!(reason))
            ),
            Self::NoReport => format!(
                "no agent of {node} has reported within {notice} and {} more: would it see a \
                 notice? The rehearsal was taken back",
                span(DEADLINE_MARGIN)
            ),
        }
    }
}

fn tell(
    node: &NodeName,
    followed: &Followed,
    window: DrainWindow,
    (verdict, report): (Verdict, Option<&ClosingReport>),
) -> Answer {
    let text = verdict.to_text(node, window.remaining);
    let spare_ms = match verdict {
        Verdict::InTime(spare) => Value::from(whole_millis(spare)),
        _ => Value::Null,
    };
    let json = json!({
        "ok": verdict.is_good(),
        "node": node,
        "replica": followed.replica,
        "requestId": followed.request_id,
        "noticeMs": whole_millis(window.remaining),
        "reserveMs": whole_millis(window.reserve),
        "spareMs": spare_ms,
        "verdict": text,
        "report": report.map(report::to_json),
    });
    let mut lines = vec![text];
    lines.extend(report.map(report::to_lines).unwrap_or_default());
    Answer { is_good: verdict.is_good(), text: lines.join("\n"), json }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operator_command::node::tests::{NOW, node};
    use crate::operator_command::report::tests::report;
    use crate::operator_command::standing::tests::drain;

    const WINDOW: DrainWindow =
        DrainWindow { remaining: Duration::from_secs(120), reserve: Duration::from_secs(10) };

    fn drill() -> ClosingReport {
        ClosingReport { reason: DrainReason::Drill, kind: None, ..report("n1") }
    }

    #[test]
    fn node_makes_it_when_its_last_hand_back_comes_before_the_reserve() {
        let last = |ms| ClosingReport { last_hand_back_ms: ms, ..drill() };
        let ended = |outcome| ClosingReport { outcome, units_left: 3, ..drill() };
        let table = [
            (last(Some(870)), Verdict::InTime(Duration::from_millis(109_130)), true),
            (last(None), Verdict::InTime(Duration::from_secs(110)), true),
            // Handed back at deadline − reserve, as the plan says at the latest.
            (last(Some(110_300)), Verdict::InTime(Duration::ZERO), true),
            (last(Some(112_000)), Verdict::TooLate(Duration::from_secs(2)), false),
            (ClosingReport { units_held: 0, ..drill() }, Verdict::NothingHeld, true),
            (ended(DrainOutcome::Overdue), Verdict::LeftBehind(3), false),
            (ended(DrainOutcome::Cancelled), Verdict::TakenBack, false),
            (report("n1"), Verdict::Overtaken(DrainReason::Notice), false),
        ];
        for (report, expected, is_good) in table {
            let verdict = Verdict::of(Some(&report), None, WINDOW);
            assert_eq!((verdict, verdict.is_good()), (expected, is_good), "{report:?}");
        }
        assert!(!Verdict::of(None, None, WINDOW).is_good());
    }

    #[test]
    fn rehearsal_that_another_drain_has_overtaken_shows_nothing_unless_it_was_over() {
        let of =
            |report: Option<&ClosingReport>| Verdict::of(report, Some(DrainReason::Notice), WINDOW);
        let cancelled = ClosingReport { outcome: DrainOutcome::Cancelled, ..drill() };
        assert_eq!(of(None), Verdict::Overtaken(DrainReason::Notice));
        assert_eq!(of(Some(&cancelled)), Verdict::Overtaken(DrainReason::Notice));
        assert!(of(Some(&drill())).is_good());
    }

    #[test]
    fn only_a_node_in_service_rehearses() {
        let view = |after, drains| ControlView {
            now: NOW.plus(Duration::from_secs(after)),
            drains,
            ..ControlView::default()
        };
        let loading = NodeRecord { state: NodeState::Loading, ..node("n1", "n1") };
        let cancelled =
            ebbtide_queue::control::DrainRecord { state: DrainState::Cancelled, ..drain("n1") };
        let table = [
            (view(0, vec![]), node("n1", "n1"), ""),
            (view(0, vec![cancelled]), node("n1", "n1"), ""),
            (
                view(0, vec![drain("n1")]),
                node("n1", "n1"),
                "n1 drains already (operator, draining)",
            ),
            (view(30, vec![]), node("n1", "n1"), "the agent of n1 was last heard 30 s ago"),
            (view(0, vec![]), loading, "n1 is loading; a rehearsal needs a node in service"),
        ];
        for (view, record, expected) in table {
            assert_eq!(why_not(&view, &record).unwrap_or_default(), expected);
        }
    }
}
