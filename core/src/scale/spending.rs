//! The budget: most that all worker groups together may cost.
//!
//! Nothing is launched that could not be paid, the minimum included. What a pool was asked for is
//! paid as if it were there: an Auto Scaling group may fill its size at any moment. Where a price
//! is unknown, no budget can be guaranteed, and nothing is launched.
//!
//! When more runs than can be paid, because the budget or a price has changed, replicas drain down
//! to the minimum, the dearest first.

use super::census::{Census, PoolCount};
use super::demand::whole;
use super::leaving::choose_victims;
use super::plan::{Action, LeaveReason};
use super::reason::{CapacityReason, Reason};
use super::terms::SizingTerms;
use super::value::replica_price;
use crate::observation::ReplicaView;

/// What may still be spent.
pub(super) struct Spending {
    left: Option<Left>,
    /// Whether something was too dear.
    has_refused: bool,
    problem: Option<CapacityReason>,
}

/// Dollars per hour that a budget leaves.
struct Left {
    /// Beside all that was asked for so far.
    to_launch: f64,
    /// Beside all that stays, what drains left out.
    to_keep: f64,
}

impl Spending {
    /// What the budget leaves.
    pub fn of(terms: &SizingTerms, census: &Census<'_>) -> Self {
        let Some(budget) = terms.budget else {
            return Self { left: None, has_refused: false, problem: None };
        };
        let mut problem = match budget.others_dollars_per_hour {
            Some(_) => None,
            None => Some(CapacityReason::BudgetUnknown { pool: None }),
        };
        let all = budget.dollars_per_hour - budget.others_dollars_per_hour.unwrap_or(0.0);
        let mut left = Left { to_launch: all, to_keep: all };
        for pool in &census.pools {
            let nodes = pool.size.committed();
            let leaving = pool.leaving.saturating_mul(terms.gang());
            match pool.terms.dollars_per_node_hour {
                Some(price) => {
                    left.to_launch -= price * f64::from(nodes);
                    left.to_keep -= price * f64::from(nodes.saturating_sub(leaving));
                }
                None if nodes > 0 => {
                    let pool = Some(pool.terms.name.clone());
                    problem.get_or_insert(CapacityReason::BudgetUnknown { pool });
                }
                None => {}
            }
        }
        Self { left: Some(left), has_refused: false, problem }
    }

    /// Whether one more replica of the pool can be paid.
    pub fn affords(&mut self, terms: &SizingTerms, pool: &PoolCount<'_>) -> bool {
        let Some(left) = self.left.as_ref().map(|left| left.to_launch) else { return true };
        self.is_within(left, terms, pool)
    }

    /// Whether a replica of the pool that drains can be paid when it stays.
    pub fn affords_to_keep(&mut self, terms: &SizingTerms, pool: &PoolCount<'_>) -> bool {
        let Some(left) = self.left.as_ref().map(|left| left.to_keep) else { return true };
        self.is_within(left, terms, pool)
    }

    fn is_within(&mut self, left: f64, terms: &SizingTerms, pool: &PoolCount<'_>) -> bool {
        let price = replica_price(terms, pool.terms);
        let is_paid = self.problem.is_none() && price.as_ref().is_ok_and(|price| *price <= left);
        self.has_refused |= !is_paid;
        if price.is_err() {
            let pool = Some(pool.terms.name.clone());
            self.problem.get_or_insert(CapacityReason::BudgetUnknown { pool });
        }
        is_paid
    }

    /// One more replica of the pool is launched.
    pub fn launch(&mut self, terms: &SizingTerms, pool: &PoolCount<'_>) {
        if let (Some(left), Ok(price)) = (&mut self.left, replica_price(terms, pool.terms)) {
            left.to_launch -= price;
            left.to_keep -= price;
        }
    }

    /// A replica of the pool that drains stays.
    pub fn keep(&mut self, terms: &SizingTerms, pool: &PoolCount<'_>) {
        if let (Some(left), Ok(price)) = (&mut self.left, replica_price(terms, pool.terms)) {
            left.to_keep -= price;
        }
    }

    /// Why something was not bought, if so.
    pub fn reason(self) -> Option<Reason> {
        if !self.has_refused {
            return None;
        }
        let left = self.left.map_or(0.0, |left| left.to_launch);
        let reason =
            self.problem.unwrap_or(CapacityReason::BudgetSpent { left_cents: cents(left) });
        Some(reason.into())
    }
}

/// Asks replicas to drain while more runs than can be paid, as many as one plan may change.
pub(super) fn drain_unpaid(
    terms: &SizingTerms,
    census: &Census<'_>,
    actions: &mut Vec<Action>,
    reasons: &mut Vec<Reason>,
) {
    let leaving = dollars_leaving(terms, census, actions);
    let over = overspent(terms, census).map(|over| over - leaving);
    let Some(mut over) = over.filter(|over| *over > 0.0) else { return };
    reasons.push(CapacityReason::BudgetExceeded { over_cents: cents(over) }.into());
    let is_drain = |action: &&Action| matches!(action, Action::RequestDrain { .. });
    let asked = u32::try_from(actions.iter().filter(is_drain).count()).unwrap_or(u32::MAX);
    let spared = census.running_present().saturating_sub(asked).saturating_sub(terms.clamp(0));
    let mut most = spared.min(terms.max_changes_per_tick.saturating_sub(asked));
    let mut pools: Vec<&PoolCount<'_>> = census.pools.iter().collect();
    let price = |pool: &PoolCount<'_>| replica_price(terms, pool.terms).unwrap_or(0.0);
    pools.sort_by(|a, b| price(b).total_cmp(&price(a)));
    for pool in pools.into_iter().filter(|pool| price(pool) > 0.0) {
        let wanted = whole((over / price(pool)).ceil()).min(most);
        let is_here = |replica: &ReplicaView| {
            let is_asked = actions.iter().any(|action| action.asks_to_drain(&replica.id));
            replica.pool.as_ref() == Some(&pool.terms.name) && !is_asked
        };
        let victims = choose_victims(terms, census, wanted, is_here);
        most -= u32::try_from(victims.len()).unwrap_or(most).min(most);
        over -= price(pool) * f64::from(u32::try_from(victims.len()).unwrap_or(u32::MAX));
        let why = LeaveReason::Budget;
        actions.extend(
            victims.into_iter().map(|it| Action::RequestDrain { replica: it.id.clone(), why }),
        );
        if over <= 0.0 {
            return;
        }
    }
}

/// What the replicas cost that these actions ask to drain, in dollars per hour.
fn dollars_leaving(terms: &SizingTerms, census: &Census<'_>, actions: &[Action]) -> f64 {
    let is_asked = |it: &&ReplicaView| actions.iter().any(|action| action.asks_to_drain(&it.id));
    let leaving = census.replicas.iter().filter(is_asked);
    let pools = leaving.filter_map(|it| census.pools.get(census.rank(it.pool.as_ref())));
    pools.filter_map(|pool| replica_price(terms, pool.terms).ok()).sum()
}

/// What runs and stays beyond the budget, in dollars per hour; `None` without a budget, or while a
/// price is unknown.
fn overspent(terms: &SizingTerms, census: &Census<'_>) -> Option<f64> {
    let budget = terms.budget?;
    let replicas: Option<f64> = census
        .pools
        .iter()
        .map(|pool| (pool, pool.staying()))
        .filter(|(_, stay)| *stay > 0)
        .map(|(pool, stay)| Some(f64::from(stay) * replica_price(terms, pool.terms).ok()?))
        .sum();
    Some(replicas? + budget.others_dollars_per_hour? - budget.dollars_per_hour)
}

fn cents(dollars: f64) -> u32 {
    whole(dollars.max(0.0) * 100.0)
}
