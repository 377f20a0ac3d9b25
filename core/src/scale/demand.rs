//! How many replicas the run can use, judged from buffer, queue, trainer and measured pace.
//!
//! | buffer | wish |
//! |---|---|
//! | below its target | what the pace needs, as far as there is work, or replicas that run |
//! | target to maximum | what the pace needs; what runs, while the pace is not measured |
//! | at its maximum | what the pace needs; none, while the pace is not measured |
//!
//! *Useful* work is what the trainer can take before it grows too old: `(L + 1) × groups per step`
//! groups less what the trainer has before it (admission rule of AReaL). *Pace* is Little's law:
//! samples that must be in flight = samples per second that the trainer consumes × seconds that one
//! takes. A replica goes only when half a one less would do, so that noise moves nothing. A surplus
//! in the buffer makes it go sooner, never one that the pace needs: it would have to come back.
//!
//! Little work alone never lowers: an empty queue may hide an error, a step that ends, or a
//! producer that pauses. Only a full buffer, a measured pace or the end of the run lowers.

use std::time::Duration;

use super::pace::{MeasuredPace, Pace, count};
use super::reason::{Reason, SignalName};
use super::stock::Stock;
use super::terms::SizingTerms;
use crate::observation::{Observation, ReplicaState, Signal, TrainerPhase};

/// Updates over which a surplus in the buffer is worked off: fast enough to matter, slow enough
/// that the fleet need not come back.
const SURPLUS_STEPS: f64 = 4.0;

/// How much less than a smaller fleet must be needed before it is made smaller, in replicas, and as
/// a share of what is needed: measurements vary by a few per cent from one update to the next.
const SLACK_REPLICAS: f64 = 0.5;
const SLACK_SHARE: f64 = 0.05;

/// Largest number of replicas that arithmetic may answer, far above any policy's maximum.
const WISH_MAX: u32 = 1_000_000;

/// What the demand for rollouts is judged by.
const SIGNALS: [SignalName; 5] = [
    SignalName::Ready,
    SignalName::InFlight,
    SignalName::Buffer,
    SignalName::Trainer,
    SignalName::Replicas,
];

/// What the run can use.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Demand {
    /// Replicas, before minimum and maximum.
    pub wish: u32,
    /// Most replicas that the work at hand would occupy, if the run had a reason to be faster; none
    /// while more would be of no use.
    pub useful: u32,
    /// Whether the wish may lower the fleet and enters the stabilisation window.
    pub is_firm: bool,
    /// Why.
    pub reasons: Vec<Reason>,
}

/// Judges the demand, when `running` replicas are there or ordered.
pub(super) fn judge_demand(
    terms: &SizingTerms,
    observation: &Observation,
    pace: &Pace,
    progress: Option<f64>,
    is_sync: bool,
    running: u32,
) -> Demand {
    let mut reasons = unknown_signals(observation, &SIGNALS);
    let phase = observation.trainer.known().map(|trainer| trainer.phase);
    if phase == Some(TrainerPhase::Done) {
        reasons.push(Reason::RunEnded);
        return Demand { wish: 0, useful: 0, is_firm: reasons.len() == 1, reasons };
    }
    let is_known = reasons.is_empty();
    let step = Step::of(terms, observation, progress);
    let (wish, useful) = judge_buffer(terms, observation, pace, &step, running, &mut reasons);
    if !is_known {
        return Demand { wish: wish.max(running), useful: 0, is_firm: false, reasons };
    }
    if is_sync && running > 0 {
        let is_long = pace.sync_for() > terms.startup;
        reasons.push(Reason::WeightSync { lasted: pace.sync_for() });
        let wish = if is_long { wish.max(running) } else { running };
        return Demand { wish, useful: 0, is_firm: false, reasons };
    }
    Demand { wish, useful, is_firm: true, reasons }
}

/// Which of the signals that are needed are unknown, and why.
pub(super) fn unknown_signals(observation: &Observation, needed: &[SignalName]) -> Vec<Reason> {
    let why_unknown = |signal| match signal {
        SignalName::Ready => observation.ready.why_unknown(),
        SignalName::InFlight => observation.in_flight.why_unknown(),
        SignalName::Buffer => observation.buffer_groups.why_unknown(),
        SignalName::Trainer => observation.trainer.why_unknown(),
        SignalName::Replicas => observation.replicas.why_unknown(),
        // Without sizes there is no plan at all.
        SignalName::PoolSize => None,
    };
    let unknown = needed.iter().filter_map(|signal| Some((*signal, why_unknown(*signal)?)));
    unknown.map(|(signal, why)| Reason::SignalUnknown { signal, why: why.to_owned() }).collect()
}

/// The wish, and how many replicas would be of use.
fn judge_buffer(
    terms: &SizingTerms,
    observation: &Observation,
    pace: &Pace,
    step: &Step,
    running: u32,
    reasons: &mut Vec<Reason>,
) -> (u32, u32) {
    let by_work = replicas_for_work(terms, observation, step, reasons);
    let measured = pace.measured();
    let Some(stock) = step.stock else { return (by_work, 0) };
    let buffered = count(stock.total());
    let each = f64::from(samples_per_replica(terms, observation));
    let needs =
        |surplus: f64| measured.map(|pace| samples_for_pace(terms, step, pace, surplus) / each);
    let (target, max) = (step.target_groups, step.max_groups);
    if buffered >= max {
        reasons.push(Reason::BufferFull { stock, max: whole(max.ceil()) });
        let by_pace = needs(0.0).map_or(0, |needed| kept(needed, running));
        note_pace(measured, by_pace, reasons);
        return (by_pace.min(by_work), 0);
    }
    if buffered >= target {
        reasons.push(Reason::BufferInBand { stock, target: whole(target.ceil()) });
        let Some(needed) = needs(buffered - target) else {
            reasons.push(Reason::PaceUnmeasured);
            return (running, by_work);
        };
        let least = needs(0.0).map_or(0, |needed| kept(needed, running));
        let by_pace = settled(needed, running).max(least);
        note_pace(measured, by_pace, reasons);
        return (by_pace.min(by_work.max(running)), by_work);
    }
    reasons.push(Reason::BufferLow { stock, target: whole(target.ceil()) });
    let is_work_known =
        observation.ready.known().is_some() && observation.in_flight.known().is_some();
    let by_pace = needs(buffered - target).map(|needed| settled(needed, running));
    note_pace(measured, by_pace.unwrap_or(0), reasons);
    let wish = match by_pace {
        Some(by_pace) if is_work_known => by_pace.min(by_work),
        Some(by_pace) => by_pace,
        None => by_work,
    };
    // What the pace needs is evidence; that little work waits is none.
    let least = by_pace.unwrap_or(running).min(running);
    if wish < least && observation.ready.known() == Some(&0) {
        reasons.push(Reason::ZeroIsNoProof);
    }
    (wish.max(least), by_work)
}

/// Whole replicas for what is needed, when so many run: one more at once, one less only with some
/// slack.
pub(super) fn settled(needed: f64, running: u32) -> u32 {
    let with_slack = needed + SLACK_REPLICAS.max(SLACK_SHARE * needed);
    whole(needed.ceil()).max(whole(with_slack.ceil()).min(running))
}

/// Of so many that run, those that must stay for what is needed, measured with some error.
fn kept(needed: f64, running: u32) -> u32 {
    whole((needed * (1.0 + SLACK_SHARE)).ceil()).min(running)
}

/// Replicas that the useful part of the known work occupies.
fn replicas_for_work(
    terms: &SizingTerms,
    observation: &Observation,
    step: &Step,
    reasons: &mut Vec<Reason>,
) -> u32 {
    let ready = observation.ready.known().copied();
    let in_flight = observation.in_flight.known().copied();
    let sealed = [&observation.buffer_groups, &observation.buffer_taken];
    let sealed = sealed.into_iter().filter_map(Signal::known).sum();
    let useful_groups = step.ceiling_groups.saturating_sub(sealed);
    let useful = useful_groups.saturating_mul(u64::from(terms.group_size));
    let work = ready.unwrap_or(0).saturating_add(in_flight.unwrap_or(0));
    let each = u64::from(samples_per_replica(terms, observation));
    let replicas = u32::try_from(work.min(useful).div_ceil(each)).unwrap_or(WISH_MAX);
    if ready.is_some() || in_flight.is_some() {
        reasons.push(Reason::WorkOccupies { work, useful, replicas });
    }
    replicas
}

/// Whether the buffer holds what it should; unknown counts as no.
pub(super) fn is_buffer_filled(
    terms: &SizingTerms,
    observation: &Observation,
    progress: Option<f64>,
) -> bool {
    let step = Step::of(terms, observation, progress);
    step.stock.is_some_and(|stock| count(stock.total()) >= step.target_groups)
}

/// Rollout work of one step in seconds of one replica, at the measured pace.
pub(super) fn replica_seconds_per_step(
    terms: &SizingTerms,
    observation: &Observation,
    pace: MeasuredPace,
) -> f64 {
    let samples = count(Step::of(terms, observation, None).groups) * f64::from(terms.group_size);
    let each = f64::from(samples_per_replica(terms, observation));
    samples * pace.in_flight_seconds_per_sample / each
}

/// Samples that one replica has in flight at most: what the replicas in service are known to bear
/// on the average, which the policy bounds, and its number while none of them tells.
fn samples_per_replica(terms: &SizingTerms, observation: &Observation) -> u32 {
    let most = terms.concurrency_per_replica.max(1);
    let replicas = observation.replicas.known().map_or(&[][..], Vec::as_slice);
    let in_service = replicas.iter().filter(|replica| replica.state == ReplicaState::Ready);
    let told: Vec<u64> = in_service.filter_map(|replica| replica.capacity).map(u64::from).collect();
    let count = u64::try_from(told.len()).unwrap_or(u64::MAX);
    let mean = told.iter().sum::<u64>().checked_div(count);
    mean.map_or(most, |mean| u32::try_from(mean).unwrap_or(most).clamp(1, most))
}

/// Samples that have to be in flight to keep the trainer supplied while the buffer moves to its
/// target: up within the horizon of a start, down over a few updates.
fn samples_for_pace(
    terms: &SizingTerms,
    step: &Step,
    pace: MeasuredPace,
    surplus_groups: f64,
) -> f64 {
    let group_size = f64::from(terms.group_size);
    let busy = pace.busy_seconds_per_step;
    let horizon = if surplus_groups < 0.0 {
        terms.startup.max(Duration::from_secs(1)).as_secs_f64().max(busy)
    } else {
        terms.startup.as_secs_f64().max(SURPLUS_STEPS * busy)
    };
    let consumed = count(step.groups) * group_size / busy;
    let per_second = (consumed - surplus_groups * group_size / horizon).max(0.0);
    per_second * pace.in_flight_seconds_per_sample
}

fn note_pace(measured: Option<MeasuredPace>, replicas: u32, reasons: &mut Vec<Reason>) {
    match measured {
        Some(pace) => reasons.push(Reason::PaceNeeds {
            busy_ms: whole(pace.busy_seconds_per_step * 1000.0),
            in_flight_ms: whole(pace.in_flight_seconds_per_sample * 1000.0),
            replicas,
        }),
        None => reasons.push(Reason::PaceUnmeasured),
    }
}

/// The trainer's step in groups, and what it has before it.
struct Step {
    stock: Option<Stock>,
    groups: u64,
    ceiling_groups: u64,
    target_groups: f64,
    max_groups: f64,
}

impl Step {
    fn of(terms: &SizingTerms, observation: &Observation, progress: Option<f64>) -> Self {
        let reported = observation.trainer.known().map(|trainer| trainer.groups_per_step);
        let groups = reported.filter(|groups| *groups > 0).unwrap_or(terms.groups_per_step);
        let groups = u64::from(groups);
        // An empty buffer is always low and a policy may ask for none: one group at least.
        let target_groups = (terms.buffer_target_steps * count(groups)).max(1.0);
        Self {
            stock: Stock::of(observation, groups, progress),
            groups,
            ceiling_groups: (u64::from(terms.max_lag) + 1).saturating_mul(groups),
            target_groups,
            max_groups: (terms.buffer_max_steps * count(groups)).max(target_groups),
        }
    }
}

/// A number that is not negative as a whole one, bounded.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded just before")]
pub(super) fn whole(number: f64) -> u32 {
    number.clamp(0.0, f64::from(WISH_MAX)) as u32
}
