//! The measured pace of trainer and rollouts: what one update takes, how long a sample is in
//! flight.
//!
//! Both are sums over the last so many updates and samples, fed by one observation after another:
//! old evidence fades as new evidence comes, not as time passes, so that a run of long samples is
//! measured as well as one of short ones. A counter that falls begins anew; an unknown signal or a
//! long gap is left out.
//!
//! While weights spread, engines stand still, or some of them do. That time says nothing about how
//! fast samples are made and is left out of both sums, but for the share of it in which samples are
//! made all the same: their rate meanwhile as a part of their rate at other times.

use std::time::Duration;

use crate::bottleneck::GAP_MAX;
use crate::observation::{Observation, TrainerPhase};
use crate::time::UnixMillis;

/// Updates that the length of an update is averaged over: follows a run that changes its lengths,
/// and spans a few of its irregularities.
const STEPS_WINDOW: f64 = 16.0;

/// Samples that their time in flight is averaged over, at least; and times that the units in
/// flight are replaced meanwhile, at least.
const SAMPLES_WINDOW: f64 = 512.0;
const TURNOVERS_WINDOW: f64 = 16.0;

/// Fewest updates before their length is believed.
const STEPS_MIN: f64 = 3.0;

/// Fewest completed samples before their time in flight is believed.
const SAMPLES_MIN: f64 = 32.0;

/// Fewest times that the units in flight must have been replaced: a sum that began with an empty
/// fleet overstates the time in flight by one part in this many.
const TURNOVERS_MIN: f64 = 4.0;

/// What has been measured so far.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Pace {
    last: Option<Reading>,
    counted: Duration,
    sync_for: Duration,
    busy_seconds: f64,
    sync_seconds: f64,
    steps: f64,
    in_flight_seconds: f64,
    samples: f64,
    /// The same two while weights are spread.
    sync_in_flight_seconds: f64,
    sync_samples: f64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Reading {
    at: UnixMillis,
    phase: Option<TrainerPhase>,
    /// Weights spread.
    is_sync: bool,
    step: Option<u64>,
    in_flight: Option<u64>,
    completed: Option<u64>,
    is_counted: bool,
}

/// A pace that has been measured well enough to act on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MeasuredPace {
    /// Seconds in which samples are made while the trainer is busy with one update; its waiting
    /// for them is left out.
    pub busy_seconds_per_step: f64,
    /// Seconds that one sample is in flight.
    pub in_flight_seconds_per_sample: f64,
}

impl Pace {
    /// The pace after one more observation; `is_sync` says whether weights spread, `is_counted`
    /// whether its time counts for stabilisation.
    #[must_use]
    pub(super) fn advance(
        &self,
        observation: &Observation,
        is_sync: bool,
        is_counted: bool,
    ) -> Self {
        let trainer = observation.trainer.known();
        let reading = Reading {
            at: observation.now,
            phase: trainer.map(|trainer| trainer.phase),
            is_sync,
            step: trainer.map(|trainer| trainer.step),
            in_flight: observation.in_flight.known().copied(),
            completed: observation.completed.known().copied(),
            is_counted,
        };
        let mut next = Self { last: Some(reading), ..self.clone() };
        let gap = self.last.map(|last| reading.at.since(last.at)).filter(|gap| *gap <= GAP_MAX);
        if let (Some(last), Some(gap)) = (self.last, gap) {
            next.add_step_time(last, reading, gap);
            next.add_flight_time(last, reading, gap);
            if is_counted && last.is_counted {
                next.counted += gap;
            }
            next.sync_for = match last.is_sync && is_sync {
                true => self.sync_for + gap,
                false => Duration::ZERO,
            };
        }
        next
    }

    /// Time that counted for stabilisation so far.
    pub(super) fn counted(&self) -> Duration {
        self.counted
    }

    /// How long the weight sync that goes on has lasted.
    pub(super) fn sync_for(&self) -> Duration {
        self.sync_for
    }

    /// The measured pace, once there is enough evidence.
    pub fn measured(&self) -> Option<MeasuredPace> {
        let in_flight_seconds_per_sample = self.seconds_in_flight()?;
        let pace = MeasuredPace {
            busy_seconds_per_step: (self.busy_seconds + self.sync_share() * self.sync_seconds)
                / self.steps,
            in_flight_seconds_per_sample,
        };
        (self.steps >= STEPS_MIN && pace.busy_seconds_per_step > 0.0).then_some(pace)
    }

    /// Seconds that one sample is in flight, once there is enough evidence.
    pub fn seconds_in_flight(&self) -> Option<f64> {
        let in_flight = self.last.and_then(|last| last.in_flight).unwrap_or(0);
        let samples_min = SAMPLES_MIN.max(TURNOVERS_MIN * count(in_flight));
        (self.samples >= samples_min).then_some(self.in_flight_seconds / self.samples)
    }

    /// The rate at which samples are made while weights spread, as a share of the rate at other
    /// times.
    fn sync_share(&self) -> f64 {
        let during = self.sync_samples / self.sync_in_flight_seconds;
        let other = self.samples / self.in_flight_seconds;
        let share = during / other;
        if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 }
    }

    fn add_step_time(&mut self, last: Reading, reading: Reading, gap: Duration) {
        let (Some(phase), Some(before), Some(step)) = (last.phase, last.step, reading.step) else {
            return;
        };
        if step < before {
            (self.busy_seconds, self.sync_seconds, self.steps) = (0.0, 0.0, 0.0);
            return;
        }
        match phase {
            TrainerPhase::Wait | TrainerPhase::Done => {}
            _ if last.is_sync => self.sync_seconds += gap.as_secs_f64(),
            _ => self.busy_seconds += gap.as_secs_f64(),
        }
        self.steps += count(step - before);
        fade([&mut self.busy_seconds, &mut self.sync_seconds], &mut self.steps, STEPS_WINDOW);
    }

    fn add_flight_time(&mut self, last: Reading, reading: Reading, gap: Duration) {
        let (Some(before), Some(completed)) = (last.completed, reading.completed) else { return };
        let Some(in_flight) = last.in_flight else { return };
        if completed < before {
            (self.in_flight_seconds, self.samples) = (0.0, 0.0);
            (self.sync_in_flight_seconds, self.sync_samples) = (0.0, 0.0);
            return;
        }
        let (seconds, samples) = match (last.is_sync, reading.is_sync) {
            (false, false) => (&mut self.in_flight_seconds, &mut self.samples),
            (true, true) => (&mut self.sync_in_flight_seconds, &mut self.sync_samples),
            // Nobody knows how much of it was.
            _ => return,
        };
        *seconds += count(in_flight) * gap.as_secs_f64();
        *samples += count(completed - before);
        let window = SAMPLES_WINDOW.max(TURNOVERS_WINDOW * count(in_flight));
        fade([seconds], samples, window);
    }
}

/// Keeps the ratios of sums to the last one and bounds that.
fn fade<const N: usize>(seconds: [&mut f64; N], events: &mut f64, window: f64) {
    if *events > window {
        for seconds in seconds {
            *seconds *= window / *events;
        }
        *events = window;
    }
}

/// A count as a real number; exact below 2^53.
#[expect(clippy::cast_precision_loss, reason = "counts of units and updates stay below 2^53")]
pub(crate) fn count(number: u64) -> f64 {
    number as f64
}
