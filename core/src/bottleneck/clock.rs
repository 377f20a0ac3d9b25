//! What the trainer did over the last updates, and where work was while it waited.

use std::collections::VecDeque;
use std::time::Duration;

use super::{IterationPhases, PhaseSeconds, UPDATES_MIN, WaitPicture};
use crate::observation::{Observation, ReplicaState, TrainerPhase};
use crate::time::UnixMillis;

/// Updates that are looked back on: enough to even out, few enough to follow a change.
pub(crate) const UPDATES_KEPT: usize = 4;

/// Longest time between two observations that is believed to have been alike throughout.
pub(crate) const GAP_MAX: Duration = Duration::from_secs(600);

/// What the trainer did during the last updates and the one under way, fed by one observation after
/// another. Time with an unknown trainer, or between two looks too far apart, is left out.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct IterationClock {
    last: Option<Reading>,
    /// When the update under way was first seen; `None` when nobody saw it begin.
    step_since: Option<UnixMillis>,
    /// The updates before, the newest at the back.
    finished: VecDeque<Sums>,
    under_way: Sums,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Reading {
    at: UnixMillis,
    phase: TrainerPhase,
    step: u64,
    picture: WaitPicture,
}

/// What was seen during an update.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Sums {
    /// Updates that it was: several, when nobody looked in between.
    updates: u64,
    seconds: PhaseSeconds,
    /// Units × seconds over the time that the trainer waited.
    waited: WaitPicture,
}

impl IterationClock {
    /// What is known after one more observation; `places` is what one replica works on at a time,
    /// where it does not say.
    #[must_use]
    pub fn advance(&self, observation: &Observation, places: u32) -> Self {
        let Some(trainer) = observation.trainer.known() else {
            return Self { last: None, step_since: None, ..self.clone() };
        };
        let reading = Reading {
            at: observation.now,
            phase: trainer.phase,
            step: trainer.step,
            picture: picture_of(observation, places),
        };
        let mut next = Self { last: Some(reading), ..self.clone() };
        let Some(last) = self.last else { return next };
        if reading.step < last.step {
            return Self { last: Some(reading), ..Self::default() };
        }
        let gap = reading.at.since(last.at);
        if gap <= GAP_MAX {
            next.under_way.add(&last, gap.as_secs_f64());
        }
        if reading.step > last.step {
            next.step_since = Some(reading.at);
            let under_way = std::mem::take(&mut next.under_way);
            let updates = reading.step - last.step;
            next.finished.push_back(Sums { updates, ..under_way });
            if next.finished.len() > UPDATES_KEPT {
                next.finished.pop_front();
            }
        }
        next
    }

    /// How long the update under way is expected to go on, from the mean of those before; zero
    /// once it has lasted longer.
    pub fn step_remaining(&self, now: UnixMillis) -> Option<Duration> {
        Some(self.update_length()?.saturating_sub(now.since(self.step_since?)))
    }

    /// How long an update takes, the mean of the last ones; `None` before there are enough.
    pub fn update_length(&self) -> Option<Duration> {
        let finished = self.finished.iter().fold(Sums::default(), Sums::plus);
        let updates = crate::scale::count(finished.updates);
        let mean = finished.seconds.total() / updates;
        Duration::try_from_secs_f64(mean).ok().filter(|_| updates >= UPDATES_MIN)
    }

    /// Share of the update under way that is over, 0 to 1, by the time that those before took to
    /// train; `None` before there are any.
    pub fn update_progress(&self) -> Option<f64> {
        let finished = self.finished.iter().fold(Sums::default(), Sums::plus);
        let mean = finished.seconds.train / crate::scale::count(finished.updates);
        let progress = self.under_way.seconds.train / mean;
        progress.is_finite().then(|| progress.clamp(0.0, 1.0))
    }

    /// The evidence of a judgement.
    pub fn phases(&self, is_overlapped: bool, is_buffer_filled: bool) -> IterationPhases {
        let Sums { updates, seconds, waited } =
            self.finished.iter().fold(self.under_way, Sums::plus);
        let wait = seconds.wait;
        let while_waiting = if wait > 0.0 { waited.times(1.0 / wait) } else { waited };
        let updates = crate::scale::count(updates);
        IterationPhases { updates, is_overlapped, is_buffer_filled, seconds, while_waiting }
    }
}

impl Sums {
    fn add(&mut self, last: &Reading, seconds: f64) {
        match last.phase {
            TrainerPhase::Train => self.seconds.train += seconds,
            TrainerPhase::Sync => self.seconds.sync += seconds,
            TrainerPhase::Checkpoint => self.seconds.checkpoint += seconds,
            TrainerPhase::Wait => {
                self.seconds.wait += seconds;
                self.waited = self.waited.plus(&last.picture.times(seconds));
            }
            TrainerPhase::Done => {}
        }
    }

    fn plus(self, other: &Self) -> Self {
        Self {
            updates: self.updates + other.updates,
            seconds: PhaseSeconds {
                train: self.seconds.train + other.seconds.train,
                sync: self.seconds.sync + other.seconds.sync,
                wait: self.seconds.wait + other.seconds.wait,
                checkpoint: self.seconds.checkpoint + other.seconds.checkpoint,
            },
            waited: self.waited.plus(&other.waited),
        }
    }
}

fn picture_of(observation: &Observation, places: u32) -> WaitPicture {
    let of = |signal: &crate::observation::Signal<u64>| {
        signal.known().map_or(0.0, |value| crate::scale::count(*value))
    };
    let replicas = observation.replicas.known().map_or(&[][..], Vec::as_slice);
    let in_service = replicas.iter().filter(|replica| replica.state == ReplicaState::Ready);
    let all_places: u64 =
        in_service.map(|replica| u64::from(replica.capacity.unwrap_or(places).min(places))).sum();
    WaitPicture {
        ready: of(&observation.ready),
        in_flight: of(&observation.in_flight),
        environment: of(&observation.environment_waiting),
        reward_ready: of(&observation.reward_ready),
        reward_in_flight: of(&observation.reward_in_flight),
        places: crate::scale::count(all_places),
    }
}

impl WaitPicture {
    fn times(&self, factor: f64) -> Self {
        Self {
            ready: self.ready * factor,
            in_flight: self.in_flight * factor,
            environment: self.environment * factor,
            reward_ready: self.reward_ready * factor,
            reward_in_flight: self.reward_in_flight * factor,
            places: self.places * factor,
        }
    }

    fn plus(&self, other: &Self) -> Self {
        Self {
            ready: self.ready + other.ready,
            in_flight: self.in_flight + other.in_flight,
            environment: self.environment + other.environment,
            reward_ready: self.reward_ready + other.reward_ready,
            reward_in_flight: self.reward_in_flight + other.reward_in_flight,
            places: self.places + other.places,
        }
    }
}
