//! Rules about pools: who may use which, what fits into them and what they cost.

use std::collections::BTreeMap;

use super::FleetSpec;
use super::near::nearest;
use super::pool::{Market, Pool, PoolName};
use super::report::Report;
use super::rules::{ROLLOUT, ScaledRole, scaled_roles};
use super::worker_group::{BUFFER_OFF_SPOT, TRAINER_OFF_SPOT};
use crate::scale::Role;

/// Asks every rule about pools. The first complaint about a path is the only one, so the order is
/// from what explains most to what explains least.
pub(super) fn check(spec: &FleetSpec, report: &mut Report) {
    pools_are_distinct(spec, report);
    reservations_hold_for_a_time(spec, report);
    roles_name_defined_pools(spec, report);
    trainer_and_buffer_stay_off_spot(spec, report);
    roles_share_no_pool(spec, report);
    replicas_fit_their_pools(spec, report);
    trainer_sizes_fit_their_pool(spec, report);
    budget_pays_for_the_minimum(spec, report);
}

fn pools_are_distinct(spec: &FleetSpec, report: &mut Report) {
    let mut names: BTreeMap<&str, usize> = BTreeMap::new();
    let mut owned: BTreeMap<(&str, String), usize> = BTreeMap::new();
    for (index, pool) in spec.pools.iter().enumerate() {
        let name = pool.name.as_str();
        let first = *names.entry(name).or_insert(index);
        let (path, first_path) = (pool_path(index, "name"), pool_path(first, "name"));
        report.demand(first == index, &path, &[&first_path], || {
            format!("must be unique, got \"{name}\" as in spec.pools[{first}]")
        });
        let Some((key, own)) = pool.provider.own() else { continue };
        let what = if key == "autoScalingGroup" { "a group" } else { "an object" };
        let first = *owned.entry((key, own.clone())).or_insert(index);
        let (path, first_path) = (pool_path(index, key), pool_path(first, key));
        report.demand(first == index, &path, &[&first_path], || {
            format!("must be {what} of its own, got \"{own}\" as in spec.pools[{first}]")
        });
    }
}

/// Spot cannot be reserved, and what is reserved has a beginning before its end.
fn reservations_hold_for_a_time(spec: &FleetSpec, report: &mut Report) {
    for (index, pool) in spec.pools.iter().enumerate() {
        let Some(reservation) = &pool.reservation else { continue };
        let (path, market) = (pool_path(index, "reservation"), pool_path(index, "market"));
        report.demand(pool.market == Market::OnDemand, &path, &[&market], || {
            "is for market: onDemand only, got spot".to_owned()
        });
        let Some(starts_at) = reservation.starts_at else { continue };
        let (ends, starts) = (format!("{path}.endsAt"), format!("{path}.startsAt"));
        report.demand(starts_at < reservation.gone_by(), &ends, &[&starts], || {
            format!("must leave time to work in after startsAt ({starts_at})")
        });
    }
}

fn roles_name_defined_pools(spec: &FleetSpec, report: &mut Report) {
    let defined: Vec<&str> = spec.pools.iter().map(|pool| pool.name.as_str()).collect();
    let names = pool_paths(0..spec.pools.len(), "name");
    let mut used = vec!["spec.pools"];
    used.extend(names.iter().map(String::as_str));
    for (path, name) in pool_references(spec) {
        report.demand(defined.contains(&name.as_str()), &path, &used, || {
            let advice = match nearest(name.as_str(), &defined) {
                Some(meant) => format!("did you mean {meant}?"),
                None => format!("defined are: {}", defined.join(", ")),
            };
            format!("names a pool that spec.pools does not define, got \"{name}\"; {advice}")
        });
    }
}

fn trainer_and_buffer_stay_off_spot(spec: &FleetSpec, report: &mut Report) {
    let roles = [
        ("spec.trainer.pool", &spec.trainer.pool, TRAINER_OFF_SPOT),
        ("spec.buffer.pool", &spec.buffer.pool, BUFFER_OFF_SPOT),
    ];
    for (path, name, reason) in roles {
        let Some((index, pool)) = name.as_ref().and_then(|name| find_pool(spec, name)) else {
            continue;
        };
        let market = pool_path(index, "market");
        report.demand(pool.market != Market::Spot, path, &[&market], || {
            format!("must name a pool of market onDemand, got \"{}\" on Spot: {reason}", pool.name)
        });
    }
}

fn roles_share_no_pool(spec: &FleetSpec, report: &mut Report) {
    let mut users: BTreeMap<&PoolName, String> = BTreeMap::new();
    for (path, name) in pool_references(spec) {
        if let Some(first) = users.get(name) {
            report.demand(false, &path, &[first], || {
                format!("must name a pool of its own, got \"{name}\" as in {first}")
            });
        } else {
            users.insert(name, path);
        }
    }
}

fn replicas_fit_their_pools(spec: &FleetSpec, report: &mut Report) {
    let nodes_path = "spec.rollout.nodesPerReplica";
    let nodes = u32::from(spec.rollout.nodes_per_replica);
    let pools = spec.rollout.pools.iter().filter_map(|name| find_pool(spec, name));
    if let Some((index, smallest)) = pools.min_by_key(|(_, pool)| pool.max_nodes) {
        let most = smallest.max_nodes;
        let used = pool_path(index, "maxNodes");
        report.demand(nodes <= most, nodes_path, &["spec.rollout.pools", &used], || {
            let name = &smallest.name;
            format!("must be at most {most}, the maxNodes of pool \"{name}\", got {nodes}")
        });
    }
    for role in scaled_roles(spec) {
        let found = || role.pools.iter().filter_map(|name| find_pool(spec, name));
        let most: u32 = found().map(|(_, pool)| pool.max_nodes / role.nodes_per_replica).sum();
        let own = (0..role.pools.len()).map(|index| role.path(&format!("pools[{index}]")));
        let mut used: Vec<String> = own.collect();
        used.extend(pool_paths(found().map(|(index, _)| index), "maxNodes"));
        used.extend(pool_paths(0..spec.pools.len(), "name"));
        used.extend([role.path("pools"), "spec.pools".to_owned(), nodes_path.to_owned()]);
        let used: Vec<&str> = used.iter().map(String::as_str).collect();
        let path = role.path("maxReplicas");
        report.demand(role.max_replicas <= most, &path, &used, || {
            let got = role.max_replicas;
            format!("must be at most {most}, which is what its pools hold, got {got}")
        });
    }
}

fn trainer_sizes_fit_their_pool(spec: &FleetSpec, report: &mut Report) {
    let sizes = &spec.trainer.legal_sizes;
    let pool_key = "spec.trainer.pool";
    let has_pool = sizes.is_empty() || spec.trainer.pool.is_some();
    report.demand(has_pool, "spec.trainer.legalSizes", &[pool_key], || {
        "needs spec.trainer.pool: without a pool nobody can resize the trainer".to_owned()
    });
    let pool = spec.trainer.pool.as_ref().and_then(|name| find_pool(spec, name));
    for (index, size) in sizes.iter().enumerate() {
        let path = format!("spec.trainer.legalSizes[{index}]");
        if let Some((pool_index, pool)) = pool {
            let most = pool.max_nodes;
            let used = pool_path(pool_index, "maxNodes");
            report.demand(*size <= most, &path, &[pool_key, &used], || {
                format!(
                    "must be at most {most}, the maxNodes of pool \"{}\", got {size}",
                    pool.name
                )
            });
        }
        let Some(before) = index.checked_sub(1) else { continue };
        let before_path = format!("spec.trainer.legalSizes[{before}]");
        report.demand(*size > sizes[before], &path, &[&before_path], || {
            format!("must be more than the size before it ({}), got {size}", sizes[before])
        });
    }
}

/// A budget below the cost of the minimum could only be kept by breaking the minimum.
fn budget_pays_for_the_minimum(spec: &FleetSpec, report: &mut Report) {
    let Some(budget) = spec.budget else { return };
    let path = "spec.budget.dollarsPerHour";
    let used: Vec<&PoolName> = pool_references(spec).into_iter().map(|(_, name)| name).collect();
    let is_used = |pool: &&Pool| used.contains(&&pool.name);
    let unpriced: Vec<&str> = spec
        .pools
        .iter()
        .filter(is_used)
        .filter(|pool| pool.dollars_per_node_hour.is_none())
        .map(|pool| pool.name.as_str())
        .collect();
    let mut paths = pool_paths(0..spec.pools.len(), "dollarsPerNodeHour");
    for role in scaled_roles(spec) {
        paths.extend([role.path("minReplicas"), role.path("pools"), role.path("nodesPerReplica")]);
    }
    let mut paths: Vec<&str> = paths.iter().map(String::as_str).collect();
    paths.extend(["spec.pools", "spec.trainer.pool", "spec.trainer.legalSizes"]);
    report.demand(unpriced.is_empty(), path, &paths, || {
        format!(
            "needs the dollarsPerNodeHour of every pool in use, missing: {}",
            unpriced.join(", ")
        )
    });
    let least = least_dollars_per_hour(spec).unwrap_or(0.0);
    report.demand(budget.dollars_per_hour >= least, path, &paths, || {
        let got = budget.dollars_per_hour;
        format!("must be at least {least:.2}, the cost of the smallest fleet allowed, got {got}")
    });
}

/// The cost of every minimum in its cheapest pool, and of the smallest trainer; `None` while a
/// price is unknown.
fn least_dollars_per_hour(spec: &FleetSpec) -> Option<f64> {
    let rollout = scaled_roles(spec).into_iter().find(|role| role.name == ROLLOUT);
    let rollout = rollout.map_or(Some(0.0), |role| least_of_role(spec, &role));
    Some(rollout? + spec.least_dollars_per_hour_beside(Role::Rollout)?)
}

fn least_of_role(spec: &FleetSpec, role: &ScaledRole<'_>) -> Option<f64> {
    let prices = role.pools.iter().map(|name| spec.pool(name)?.dollars_per_node_hour);
    let cheapest = prices.reduce(|a, b| Some(a?.min(b?))).unwrap_or(Some(0.0))?;
    Some(f64::from(role.min_replicas) * f64::from(role.nodes_per_replica) * cheapest)
}

impl FleetSpec {
    /// What all worker groups beside this one cost at least, in dollars per hour: groups that are
    /// sized with their minimum in their cheapest pool, the trainer with its smallest legal size,
    /// the buffer with all nodes of its pool. `None` while a price is unknown.
    pub fn least_dollars_per_hour_beside(&self, role: Role) -> Option<f64> {
        self.dollars_per_hour_beside(role, |_| 0.0)
    }

    /// The same, with what groups that are sized cost now where that is more.
    pub fn dollars_per_hour_beside(&self, role: Role, cost: impl Fn(Role) -> f64) -> Option<f64> {
        let others = Role::ALL.into_iter().filter(|other| *other != role);
        let groups = scaled_roles(self);
        let others: Option<f64> = others
            .filter_map(|other| {
                let group = groups.iter().find(|group| group.name == other.as_str())?;
                Some(least_of_role(self, group).map(|least| least.max(cost(other))))
            })
            .sum();
        let nodes = self.trainer.legal_sizes.first().copied().unwrap_or(0);
        let buffer = self.buffer.pool.as_ref().and_then(|name| self.pool(name));
        let fixed = [
            (self.trainer.pool.as_ref().and_then(|name| self.pool(name)), nodes),
            (buffer, buffer.map_or(0, |pool| pool.max_nodes)),
        ];
        let fixed = fixed.into_iter().map(|(pool, nodes)| match pool {
            Some(pool) => Some(pool.dollars_per_node_hour? * f64::from(nodes)),
            None => Some(0.0),
        });
        Some(others? + fixed.sum::<Option<f64>>()?)
    }
}

/// Every place that names a pool, with its path.
fn pool_references(spec: &FleetSpec) -> Vec<(String, &PoolName)> {
    let mut references = Vec::new();
    for role in scaled_roles(spec) {
        let items = role.pools.iter().enumerate();
        references.extend(items.map(|(i, name)| (role.path(&format!("pools[{i}]")), name)));
    }
    let single = [("trainer", &spec.trainer.pool), ("buffer", &spec.buffer.pool)];
    for (role, name) in single {
        references.extend(name.iter().map(|name| (format!("spec.{role}.pool"), name)));
    }
    references
}

fn find_pool<'spec>(spec: &'spec FleetSpec, name: &PoolName) -> Option<(usize, &'spec Pool)> {
    spec.pools.iter().enumerate().find(|(_, pool)| pool.name == *name)
}

fn pool_path(index: usize, key: &str) -> String {
    format!("spec.pools[{index}].{key}")
}

fn pool_paths(indexes: impl Iterator<Item = usize>, key: &str) -> Vec<String> {
    indexes.map(|index| pool_path(index, key)).collect()
}
