//! The value rule: on-demand fallback only as long as it lowers the cost of an update.
//!
//! With `n` replicas at work an update takes T(n) and costs (trainer + replicas) × T(n), all
//! prices per hour. T(n) is convex and so is that cost: replicas are added as long as the next one
//! lowers it, and the sum does not depend on how many are bought at a time.
//!
//! Source: closed forms of the autoscaling reference, section 4. W is the rollout work of one step
//! in seconds of one replica, τ + p the time that the trainer is busy with training and weights.
//!
//! | staleness | T(n) |
//! |---|---|
//! | `maxLag` > 0, rollouts and training overlap | max(τ + p, W / n) |
//! | `maxLag` = 0, one after the other | τ + p + W / n |

use super::demand::replica_seconds_per_step;
use super::pace::Pace;
use super::reason::Unjudged;
use super::terms::{PoolTerms, SizingTerms};
use crate::observation::Observation;

/// How long an update takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct UpdateTime {
    /// τ + p.
    busy_seconds: f64,
    /// W.
    replica_seconds: f64,
    is_serial: bool,
}

impl UpdateTime {
    #[cfg(test)]
    pub fn new(busy_seconds: f64, replica_seconds: f64, is_serial: bool) -> Self {
        Self { busy_seconds, replica_seconds, is_serial }
    }

    /// What is known of an update; `None` while the pace is not measured.
    pub fn of(terms: &SizingTerms, observation: &Observation, pace: &Pace) -> Option<Self> {
        let pace = pace.measured()?;
        Some(Self {
            busy_seconds: pace.busy_seconds_per_step,
            replica_seconds: replica_seconds_per_step(terms, observation, pace),
            is_serial: terms.max_lag == 0,
        })
    }

    /// T(n), of at least one replica.
    pub fn seconds(&self, replicas: u32) -> f64 {
        let rollout_seconds = self.replica_seconds / f64::from(replicas.max(1));
        if self.is_serial {
            self.busy_seconds + rollout_seconds
        } else {
            self.busy_seconds.max(rollout_seconds)
        }
    }

    /// With how many replicas an update takes that long; `None` when the trainer alone takes
    /// longer.
    pub fn replicas_within(&self, seconds: f64) -> Option<f64> {
        let for_rollouts = if self.is_serial { seconds - self.busy_seconds } else { seconds };
        let is_possible = for_rollouts > 0.0 && seconds >= self.busy_seconds;
        is_possible.then_some(self.replica_seconds / for_rollouts)
    }
}

/// What an update costs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct UpdateCost {
    time: UpdateTime,
    trainer_dollars_per_hour: f64,
}

impl UpdateCost {
    /// What an update costs that takes so long.
    ///
    /// # Errors
    /// The pace is not measured yet, or nobody knows what the trainer costs.
    pub fn of(terms: &SizingTerms, time: Option<UpdateTime>) -> Result<Self, Unjudged> {
        let trainer_dollars_per_hour = terms.trainer_dollars_per_hour;
        Ok(Self {
            time: time.ok_or(Unjudged::Pace)?,
            trainer_dollars_per_hour: trainer_dollars_per_hour.ok_or(Unjudged::TrainerPrice)?,
        })
    }

    /// Whether one more replica for `price` per hour lowers the cost of an update when `running`
    /// replicas for `running_price` are there. The first one always does.
    pub fn is_lowered(&self, running: u32, running_price: f64, price: f64) -> bool {
        if running == 0 {
            return true;
        }
        let cost = |replicas: u32, replicas_price: f64| {
            (self.trainer_dollars_per_hour + replicas_price) * self.time.seconds(replicas)
        };
        cost(running.saturating_add(1), running_price + price) < cost(running, running_price)
    }
}

/// Dollars per hour of one replica of the pool.
///
/// # Errors
/// The price is unknown.
pub(super) fn replica_price(terms: &SizingTerms, pool: &PoolTerms) -> Result<f64, Unjudged> {
    let price = pool.dollars_per_node_hour;
    let price = price.ok_or_else(|| Unjudged::PoolPrice { pool: pool.name.clone() })?;
    Ok(price * f64::from(terms.gang()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The published example: trainer 83.79 dollars per hour, 406 s of training, 2130
    /// replica-seconds of rollout work.
    fn example(is_serial: bool) -> UpdateCost {
        let time = UpdateTime::new(406.0, 2130.0, is_serial);
        UpdateCost { time, trainer_dollars_per_hour: 83.79 }
    }

    /// How many replicas are bought one by one, all at this price, beside `running`.
    fn bought(cost: &UpdateCost, running: u32, running_price: f64, price: f64) -> u32 {
        let mut added = 0;
        while cost.is_lowered(running + added, running_price + f64::from(added) * price, price) {
            added += 1;
        }
        added
    }

    #[test]
    fn optimum_of_the_serial_form_is_the_closed_one() {
        // sqrt(P_T × W / (P_g × τ)): 9.1 as Spot, 4.6 as on-demand.
        assert_eq!(bought(&example(true), 0, 0.0, 5.32), 9);
        assert_eq!(bought(&example(true), 0, 0.0, 20.95), 5);
    }

    #[test]
    fn optimum_of_the_overlapped_form_is_beside_the_knee_whatever_the_price() {
        // W / τ = 5.2: the sixth replica shortens an update a little, the seventh not at all.
        assert_eq!(bought(&example(false), 0, 0.0, 20.95), 5);
        assert_eq!(bought(&example(false), 0, 0.0, 5.32), 6);
        assert_eq!(bought(&example(false), 0, 0.0, 0.0), 6);
    }

    #[test]
    fn dear_replicas_beside_cheap_ones_pay_only_for_a_dear_trainer() {
        // Beside n Spot replicas another pays while P_T > n × (P_od − P_s) = n × 15.63.
        let worth = |cost, running| bought(cost, running, 5.32 * f64::from(running), 20.95);
        let example = example(false);
        assert_eq!((worth(&example, 1), worth(&example, 4), worth(&example, 6)), (4, 1, 0));
        let cheap_trainer = UpdateCost { trainer_dollars_per_hour: 20.0, ..example };
        assert_eq!(worth(&cheap_trainer, 2), 0);
    }

    #[test]
    fn replicas_of_a_given_time_are_those_that_take_it() {
        let (overlapped, serial) = (example(false).time, example(true).time);
        assert_eq!(overlapped.replicas_within(710.0), Some(3.0));
        assert_eq!(overlapped.replicas_within(405.0), None, "the trainer alone takes longer");
        assert_eq!(serial.replicas_within(406.0), None, "no time is left for rollouts");
        assert_eq!(serial.replicas_within(406.0 + 213.0), Some(10.0));
    }

    #[test]
    fn one_by_one_is_as_good_as_all_at_once() {
        for is_serial in [false, true] {
            let cost = example(is_serial);
            let dollars = |added: u32| {
                let price = 83.79 + 5.32 + 20.95 * f64::from(added);
                price * cost.time.seconds(1 + added)
            };
            let best = (0..20).min_by(|a, b| dollars(*a).total_cmp(&dollars(*b)));
            assert_eq!(Some(bought(&cost, 1, 5.32, 20.95)), best);
        }
    }
}
