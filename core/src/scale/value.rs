//! The value rule: on-demand fallback only as long as it lowers the cost of an update.
//!
//! With `n` replicas at work an update takes T(n) and costs (trainer + replicas) × T(n), all
//! prices per hour. What fallback adds to both is compared for every size; the cheapest wins, the
//! smallest among equals. T(n) is convex, so what is cheapest does not depend on how many are
//! bought at a time.
//!
//! Source: closed forms of the autoscaling reference, section 4. W is the rollout work of one step
//! in seconds of one replica, τ + p the time that the trainer is busy with training and weights.
//!
//! | staleness | T(n) |
//! |---|---|
//! | `maxLag` > 0, rollouts and training overlap | max(τ + p, W / n) |
//! | `maxLag` = 0, one after the other | τ + p + W / n |

use super::census::{Census, PoolCount};
use super::demand::replica_seconds_per_step;
use super::pace::Pace;
use super::reason::Unjudged;
use super::terms::SizingTerms;
use crate::observation::Observation;

/// How long an update takes, and what the trainer costs meanwhile.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct UpdateCost {
    /// τ + p.
    busy_seconds: f64,
    /// W.
    replica_seconds: f64,
    is_serial: bool,
    trainer_dollars_per_hour: f64,
}

impl UpdateCost {
    /// What is known of an update.
    ///
    /// # Errors
    /// The pace is not measured yet, or nobody knows what the trainer costs.
    pub fn of(
        terms: &SizingTerms,
        observation: &Observation,
        pace: &Pace,
    ) -> Result<Self, Unjudged> {
        let pace = pace.measured().ok_or(Unjudged::Pace)?;
        Ok(Self {
            busy_seconds: pace.busy_seconds_per_step,
            replica_seconds: replica_seconds_per_step(terms, observation, pace),
            is_serial: terms.max_lag == 0,
            trainer_dollars_per_hour: terms
                .trainer_dollars_per_hour
                .ok_or(Unjudged::TrainerPrice)?,
        })
    }

    fn update_seconds(&self, replicas: u32) -> f64 {
        if replicas == 0 {
            return f64::INFINITY;
        }
        let rollout_seconds = self.replica_seconds / f64::from(replicas);
        if self.is_serial {
            self.busy_seconds + rollout_seconds
        } else {
            self.busy_seconds.max(rollout_seconds)
        }
    }

    /// How many of up to `wanted` more replicas for `price` per hour each make an update cheapest
    /// when `running` replicas for `running_price` are there.
    fn cheapest(&self, running: u32, running_price: f64, price: f64, wanted: u32) -> u32 {
        let cost = |added: u32| {
            let replicas_price = running_price + f64::from(added) * price;
            let seconds = self.update_seconds(running.saturating_add(added));
            (self.trainer_dollars_per_hour + replicas_price) * seconds
        };
        let best = (0..=wanted).map(|added| (added, cost(added)));
        best.reduce(|best, next| if next.1 < best.1 { next } else { best }).map_or(0, |best| best.0)
    }
}

/// How many of `wanted` replicas of a pool are worth buying when `running` replicas of each pool of
/// the census will run.
///
/// # Errors
/// The price of a pool that counts is unknown.
pub(super) fn worth_buying(
    terms: &SizingTerms,
    census: &Census<'_>,
    cost: &UpdateCost,
    running: &[u32],
    pool: &PoolCount<'_>,
    wanted: u32,
) -> Result<u32, Unjudged> {
    let mut dollars_per_hour = 0.0;
    for (pool, replicas) in census.pools.iter().zip(running).filter(|(_, running)| **running > 0) {
        dollars_per_hour += f64::from(*replicas) * replica_price(terms, pool)?;
    }
    let price = replica_price(terms, pool)?;
    Ok(cost.cheapest(running.iter().sum(), dollars_per_hour, price, wanted))
}

/// Dollars per hour of one replica of the pool.
fn replica_price(terms: &SizingTerms, pool: &PoolCount<'_>) -> Result<f64, Unjudged> {
    let price = pool.terms.dollars_per_node_hour;
    let price = price.ok_or_else(|| Unjudged::PoolPrice { pool: pool.terms.name.clone() })?;
    Ok(price * f64::from(terms.gang()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The published example: trainer 83.79 dollars per hour, 406 s of training, 2130
    /// replica-seconds of rollout work.
    fn example(is_serial: bool) -> UpdateCost {
        UpdateCost {
            busy_seconds: 406.0,
            replica_seconds: 2130.0,
            is_serial,
            trainer_dollars_per_hour: 83.79,
        }
    }

    #[test]
    fn optimum_of_the_serial_form_is_the_closed_one() {
        // sqrt(P_T × W / (P_g × τ)): 9.1 as Spot, 4.6 as on-demand.
        assert_eq!(example(true).cheapest(0, 0.0, 5.32, 20), 9);
        assert_eq!(example(true).cheapest(0, 0.0, 20.95, 20), 5);
    }

    #[test]
    fn optimum_of_the_overlapped_form_is_beside_the_knee_whatever_the_price() {
        // W / τ = 5.2: the sixth replica shortens an update a little, the seventh not at all.
        assert_eq!(example(false).cheapest(0, 0.0, 20.95, 20), 5);
        assert_eq!(example(false).cheapest(0, 0.0, 5.32, 20), 6);
        assert_eq!(example(false).cheapest(0, 0.0, 0.0, 20), 6);
    }

    #[test]
    fn dear_replicas_beside_cheap_ones_pay_only_for_a_dear_trainer() {
        // Beside n Spot replicas another pays while P_T > n × (P_od − P_s) = n × 15.63.
        let worth =
            |running: u32| example(false).cheapest(running, 5.32 * f64::from(running), 20.95, 20);
        assert_eq!((worth(1), worth(4), worth(6)), (4, 1, 0));
        let cheap_trainer = UpdateCost { trainer_dollars_per_hour: 20.0, ..example(false) };
        assert_eq!(cheap_trainer.cheapest(2, 2.0 * 5.32, 20.95, 20), 0);
    }

    #[test]
    fn what_is_cheapest_does_not_depend_on_how_many_are_bought_at_a_time() {
        for is_serial in [false, true] {
            let cost = example(is_serial);
            let at_once = cost.cheapest(1, 5.32, 20.95, 20);
            let (mut running, mut dollars) = (1, 5.32);
            while cost.cheapest(running, dollars, 20.95, 1) == 1 {
                (running, dollars) = (running + 1, dollars + 20.95);
            }
            assert_eq!(running - 1, at_once);
        }
    }
}
