//! Any goals: prices, a budget, a deadline, a reservation.

use std::time::Duration;

use proptest::prelude::*;

use super::world::{ON_DEMAND, World};
use crate::policy::{Reservation, ReservationKind, UpdateDeadline};
use crate::scale::BudgetTerms;

const MINUTE: Duration = Duration::from_mins(1);

/// What a world may be given beside its work.
#[derive(Debug, Clone)]
pub struct Goals {
    /// Dollars per hour of the trainer, of Spot and of on-demand.
    prices: Option<(f64, f64, f64)>,
    /// Dollars per hour of all.
    budget: Option<f64>,
    /// Updates, and minutes for them.
    deadline: Option<(u32, u32)>,
    /// Minutes to the end of the Capacity Block that the on-demand pool is.
    block: Option<u32>,
}

/// With or without each of them.
pub fn any_goals() -> impl Strategy<Value = Goals> {
    let prices = proptest::option::of((10..200_u32, 1..40_u32, 20..80_u32));
    let budget = proptest::option::of(20..800_u32);
    let deadline = proptest::option::of((1..300_u32, 1..300_u32));
    let block = proptest::option::of(30..200_u32);
    (prices, budget, deadline, block).prop_map(|(prices, budget, deadline, block)| Goals {
        prices: prices.map(|(trainer, spot, on_demand)| {
            (f64::from(trainer), f64::from(spot), f64::from(on_demand))
        }),
        budget: budget.map(f64::from),
        deadline,
        block,
    })
}

impl Goals {
    pub fn set_in(&self, mut world: World) -> World {
        if let Some((trainer, spot, on_demand)) = self.prices {
            world = world.with_prices(trainer, spot, on_demand);
        }
        world.terms.budget = self.budget.map(|dollars_per_hour| BudgetTerms {
            dollars_per_hour,
            others_dollars_per_hour: world.terms.trainer_dollars_per_hour,
        });
        let now = world.seen.now;
        world.terms.deadline = self
            .deadline
            .map(|(updates, minutes)| UpdateDeadline { updates, by: now.plus(MINUTE * minutes) });
        world.terms.pools[ON_DEMAND].reservation = self.block.map(|minutes| Reservation {
            id: "cr-0a".parse().expect("valid"),
            kind: ReservationKind::CapacityBlock,
            starts_at: None,
            ends_at: now.plus(MINUTE * minutes),
        });
        world
    }
}

/// Dollars per hour of all that was asked for; `None` while a price is unknown.
pub fn spent(world: &World) -> Option<f64> {
    let pools = world.terms.pools.iter().zip(&world.seen.pools);
    let replicas = pools.map(|(terms, view)| {
        let size = view.size.known()?;
        let nodes = size.instances.len().max(usize::try_from(size.desired).ok()?);
        Some(terms.dollars_per_node_hour? * f64::from(u32::try_from(nodes).ok()?))
    });
    Some(replicas.sum::<Option<f64>>()? + world.terms.trainer_dollars_per_hour?)
}
