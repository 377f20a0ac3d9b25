//! The savings ledger of a run: what it has cost since it began, for how many verified updates, and
//! what a fleet of fixed size would have cost on the same record. All of it are estimates, by the
//! prices of the policy; what has no price is counted in node-seconds beside them, never as zero.
//!
//! An update counts as verified when the trainer has reported it and the queue has seen as many
//! groups acknowledged as it takes: the queue gives no group out that breaks its invariants or the
//! lag bound, and keeps the fabric verdict with every run of tokens. Groups that fail as too old
//! after they were sealed look like acknowledged ones from here: the count is an upper bound where
//! the trainer also learns from elsewhere.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::observation::{InstanceState, Observation, PoolSize, PoolView};
use crate::policy::Market;
use crate::scale::SizingTerms;
use crate::time::UnixMillis;

/// A longer time between two looks is told: what the fleet was meanwhile is not known.
const WATCHED_LIMIT: Duration = Duration::from_mins(6);

/// Most time that one look makes up for: a clock may be wrong for a moment, by years.
const MADE_UP_LIMIT: Duration = Duration::from_hours(24);

/// What a run has come to. Flat, so that it lies in Redis as a record of plain fields.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Ledger {
    /// When the first look was, on the controller's clock.
    pub began_at: UnixMillis,
    /// Up to when it is counted.
    pub counted_to: UnixMillis,
    /// Seconds for which nobody looked; they are counted with the fleet that was found after them.
    pub unwatched_seconds: f64,
    /// Dollars of rollout nodes on Spot.
    pub spot_dollars: f64,
    /// Dollars of rollout nodes on demand.
    pub on_demand_dollars: f64,
    /// Dollars of the trainer, while its price and size are known.
    pub trainer_dollars: f64,
    /// Dollars of the nodes of scorers and environments.
    #[serde(default)]
    pub service_dollars: f64,
    /// Up to when these are counted; none before there was a look.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub services_counted_to: Option<UnixMillis>,
    /// Seconds of nodes whose price is unknown, the trainer's left out.
    pub unpriced_node_seconds: f64,
    /// Seconds for which the trainer's price or size was unknown.
    pub unpriced_trainer_seconds: f64,
    /// The highest step that the trainer has reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// Updates since the ledger began.
    pub updates: u64,
    /// Those among them that are verified.
    pub verified_updates: u64,
    /// Groups ever acknowledged, as the queue had it last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acknowledged_groups: Option<u64>,
    /// Acknowledged groups that no verified update has been made of yet.
    pub spare_groups: u64,
    /// Most rollout nodes that were desired at a time: what a fleet of fixed size would need.
    pub peak_nodes: u32,
    /// Dollars of one node of the cheapest Spot pool, kept since the ledger began.
    pub spot_node_dollars: f64,
    /// Dollars of one node of the cheapest on-demand pool, kept since the ledger began.
    pub on_demand_node_dollars: f64,
    /// Seconds for which no Spot pool had a price.
    pub unpriced_spot_seconds: f64,
    /// Seconds for which no on-demand pool had a price.
    pub unpriced_on_demand_seconds: f64,
}

impl Ledger {
    /// A ledger that begins now.
    pub fn begin(now: UnixMillis) -> Self {
        Self { began_at: now, counted_to: now, ..Self::default() }
    }

    /// Counts up to the moment of an observation. `desired` is the planned size in replicas,
    /// `acknowledged` the groups that the trainer has ever acknowledged.
    ///
    /// While the size of a pool is unknown nothing is counted; the time is made up for with the
    /// next look.
    pub fn count(
        &mut self,
        terms: &SizingTerms,
        seen: &Observation,
        desired: Option<u32>,
        acknowledged: Option<u64>,
    ) {
        self.count_updates(terms, seen, acknowledged);
        let nodes = desired
            .map_or(0, |replicas| replicas.saturating_mul(u32::from(terms.nodes_per_replica)));
        self.peak_nodes = self.peak_nodes.max(nodes);
        let sizes: Option<Vec<&PoolSize>> =
            seen.pools.iter().map(|pool| pool.size.known()).collect();
        let Some(sizes) = sizes else { return };
        let passed = count_to(&mut self.counted_to, seen.now);
        let seconds = passed.as_secs_f64();
        if passed > WATCHED_LIMIT {
            self.unwatched_seconds += seconds;
        }
        for (view, size) in seen.pools.iter().zip(sizes) {
            let pool = terms.pools.iter().find(|pool| pool.name == view.name);
            let Some(pool) = pool else { continue };
            let node_seconds = paid_nodes(size) * seconds;
            match (pool.dollars_per_node_hour, pool.market) {
                (Some(price), Market::Spot) => self.spot_dollars += price * hours(node_seconds),
                (Some(price), Market::OnDemand) => {
                    self.on_demand_dollars += price * hours(node_seconds);
                }
                (None, _) => self.unpriced_node_seconds += node_seconds,
            }
        }
        match terms.trainer_dollars_per_hour {
            Some(price) => self.trainer_dollars += price * hours(seconds),
            None => self.unpriced_trainer_seconds += seconds,
        }
        match cheapest(terms, Market::Spot) {
            Some(price) => self.spot_node_dollars += price * hours(seconds),
            None => self.unpriced_spot_seconds += seconds,
        }
        match cheapest(terms, Market::OnDemand) {
            Some(price) => self.on_demand_node_dollars += price * hours(seconds),
            None => self.unpriced_on_demand_seconds += seconds,
        }
    }

    /// Counts the pools of scorers and environments up to this moment, each with its price. As
    /// above, an unknown size is made up for with the next look.
    pub fn count_services(&mut self, pools: &[(Option<f64>, &PoolView)], now: UnixMillis) {
        let sized = pools.iter().map(|(price, view)| Some((*price, view.size.known()?)));
        let Some(sized) = sized.collect::<Option<Vec<_>>>() else { return };
        let counted_to = self.services_counted_to.get_or_insert(now);
        let seconds = count_to(counted_to, now).as_secs_f64();
        for (price, size) in sized {
            let node_seconds = paid_nodes(size) * seconds;
            match price {
                Some(price) => self.service_dollars += price * hours(node_seconds),
                None => self.unpriced_node_seconds += node_seconds,
            }
        }
    }

    /// A step that was reached before counts once, however often a trainer comes back to it.
    fn count_updates(
        &mut self,
        terms: &SizingTerms,
        seen: &Observation,
        acknowledged: Option<u64>,
    ) {
        if let Some(now) = acknowledged {
            let before = self.acknowledged_groups.unwrap_or(now);
            self.spare_groups += now.saturating_sub(before);
            self.acknowledged_groups = Some(before.max(now));
        }
        let Some(trainer) = seen.trainer.known() else { return };
        let before = self.step.unwrap_or(trainer.step);
        self.updates += trainer.step.saturating_sub(before);
        self.step = Some(before.max(trainer.step));
        // The word of an update may come before its groups are acknowledged, and after.
        let groups = match trainer.groups_per_step {
            0 => terms.groups_per_step,
            groups => groups,
        };
        let groups = u64::from(groups.max(1));
        let waiting = self.updates.saturating_sub(self.verified_updates);
        let verified = waiting.min(self.spare_groups / groups);
        self.verified_updates += verified;
        self.spare_groups -= verified * groups;
    }

    /// Dollars of all nodes that are sized, and of the trainer as far as they are known.
    pub fn dollars(&self) -> f64 {
        self.spot_dollars + self.on_demand_dollars + self.beside_rollouts()
    }

    /// What stands beside the rollouts, whatever fleet these are.
    fn beside_rollouts(&self) -> f64 {
        self.trainer_dollars + self.service_dollars
    }

    /// Whether every node that is sized had a price.
    pub fn is_priced(&self) -> bool {
        self.unpriced_node_seconds == 0.0
    }

    /// Whether the trainer had a price.
    pub fn is_trainer_priced(&self) -> bool {
        self.unpriced_trainer_seconds == 0.0
    }

    /// Dollars of one verified update; none before the first, and none while a node has no price.
    pub fn dollars_per_verified_update(&self) -> Option<f64> {
        self.per_update(self.is_priced().then(|| self.dollars()))
    }

    /// What a fleet of the largest size that was desired would have cost on demand, trainer and
    /// services included as above; none without a price.
    pub fn static_on_demand_dollars(&self) -> Option<f64> {
        let is_priced = self.unpriced_on_demand_seconds == 0.0 && self.peak_nodes > 0;
        let rollouts = f64::from(self.peak_nodes) * self.on_demand_node_dollars;
        is_priced.then_some(rollouts + self.beside_rollouts())
    }

    /// The same on Spot, as if Spot had always been there.
    pub fn static_spot_dollars(&self) -> Option<f64> {
        let is_priced = self.unpriced_spot_seconds == 0.0 && self.peak_nodes > 0;
        let rollouts = f64::from(self.peak_nodes) * self.spot_node_dollars;
        is_priced.then_some(rollouts + self.beside_rollouts())
    }

    /// Dollars of one verified update, had all of them cost so much.
    pub fn per_update(&self, dollars: Option<f64>) -> Option<f64> {
        dollars.filter(|_| self.verified_updates > 0).map(|dollars| {
            #[expect(clippy::cast_precision_loss, reason = "updates stay below 2^53")]
            let updates = self.verified_updates as f64;
            dollars / updates
        })
    }

    /// What it says, one statement a line.
    pub fn to_lines(&self) -> Vec<String> {
        let estimate = |dollars: Option<f64>| match (dollars, self.per_update(dollars)) {
            (None, _) => "unknown, for want of a price".to_owned(),
            (Some(dollars), None) => format!("${dollars:.2}"),
            (Some(dollars), Some(each)) => format!("${dollars:.2}, ${each:.4} per verified update"),
        };
        let trainer = if self.is_trainer_priced() {
            format!("the trainer ${:.2}", self.trainer_dollars)
        } else {
            "the trainer left out (its price or size is unknown)".to_owned()
        };
        let services = match self.service_dollars {
            0.0 => String::new(),
            dollars => format!("scorers and environments ${dollars:.2}, "),
        };
        let least = if self.is_priced() { "" } else { "at least " };
        let each = self.dollars_per_verified_update();
        let each = each.map_or(String::new(), |each| format!(", ${each:.4} per verified update"));
        let (updates, verified) = (self.updates, self.verified_updates);
        let mut lines = vec![
            format!("estimated {least}${:.2}{each}", self.dollars()),
            format!(
                "Spot ${:.2}, on demand ${:.2}, {services}{trainer}",
                self.spot_dollars, self.on_demand_dollars
            ),
            format!("{updates} updates, {verified} verified, since {}", self.began_at),
        ];
        if !self.is_priced() {
            let hours = hours(self.unpriced_node_seconds);
            lines.push(format!("{hours:.1} node-hours have no price: set dollarsPerNodeHour"));
        }
        let nodes = self.peak_nodes;
        if nodes > 0 {
            let (on_demand, spot) = (self.static_on_demand_dollars(), self.static_spot_dollars());
            lines.push(format!(
                "a fixed fleet of {nodes} nodes, the most desired at a time: on demand {}",
                estimate(on_demand)
            ));
            lines.push(format!("the same on Spot, never interrupted: {}", estimate(spot)));
        }
        if self.unwatched_seconds > 0.0 {
            let minutes = self.unwatched_seconds / 60.0;
            lines.push(format!("nobody looked for {minutes:.0} min: counted as found after them"));
        }
        lines
    }
}

fn cheapest(terms: &SizingTerms, market: Market) -> Option<f64> {
    let pools = terms.pools.iter().filter(|pool| pool.market == market);
    pools.filter_map(|pool| pool.dollars_per_node_hour).reduce(f64::min)
}

/// How much time there is to count at `now`; what it was counted to before is moved there. A clock
/// that has gone far back, or ahead, adds no more than a day.
fn count_to(counted_to: &mut UnixMillis, now: UnixMillis) -> Duration {
    let passed = now.since(*counted_to).min(MADE_UP_LIMIT);
    if now > *counted_to || counted_to.since(now) > WATCHED_LIMIT {
        *counted_to = now;
    }
    passed
}

/// Nodes that cost something.
fn paid_nodes(size: &PoolSize) -> f64 {
    let is_paid = |state| state != InstanceState::Aside;
    as_f64(size.instances.iter().filter(|instance| is_paid(instance.state)).count())
}

fn hours(seconds: f64) -> f64 {
    seconds / 3600.0
}

fn as_f64(count: usize) -> f64 {
    u32::try_from(count).map_or(f64::from(u32::MAX), f64::from)
}

#[cfg(test)]
mod tests;
