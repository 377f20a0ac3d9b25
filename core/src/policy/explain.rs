//! A fleet policy in words: every value in force, defaults included, and what the values imply.

use std::time::Duration;

use super::drain::{BlockedEviction, RebalanceAction, UnknownInstances};
use super::duration::Written;
use super::kinds::Named;
use super::pool::{Pool, Provider};
use super::queue::Durability;
use super::reservation::{Reservation, ReservationKind};
use super::signal::ServiceSignal;
use super::worker_group::{JoinPoint, ServicePolicy};
use super::{FleetPolicy, FleetSpec, Mode};
use crate::scale::Role;
use crate::work::{OnDeadSlot, ResumePolicy};

impl FleetPolicy {
    /// The policy in words, one statement a line, indented under its heading.
    pub fn explain(&self) -> String {
        let sections = [
            ("trainer", trainer(self)),
            ("rollout", rollout(self)),
            ("reward", service(self, Role::Reward)),
            ("environment", service(self, Role::Environment)),
            ("buffer", buffer(self)),
            ("staleness", staleness(self)),
            ("queue", queue(self)),
            ("drain", drain(self)),
            ("pools", self.pools.iter().map(pool).collect()),
            ("goals", goals(self)),
        ];
        let mut lines = vec![format!("run {}, {}", self.run, mode(self.mode))];
        for (heading, statements) in sections {
            if statements.is_empty() {
                continue;
            }
            lines.extend([String::new(), heading.to_owned()]);
            lines.extend(statements.iter().map(|statement| format!("  {statement}")));
        }
        lines.join("\n")
    }
}

fn mode(mode: Mode) -> &'static str {
    match mode {
        Mode::Observe => "mode observe: decisions are made and shown, no capacity is changed",
        Mode::Act => "mode act: decisions are carried out",
    }
}

fn trainer(spec: &FleetSpec) -> Vec<String> {
    let trainer = &spec.trainer;
    let nodes = match (&trainer.pool, &trainer.legal_sizes[..]) {
        (None, _) => "its nodes are sized by somebody else".to_owned(),
        (Some(pool), []) => format!("nodes from pool {pool}, in the number it has"),
        (Some(pool), sizes) => {
            let sizes: Vec<String> = sizes.iter().map(u32::to_string).collect();
            format!("nodes from pool {pool}, one of these numbers: {}", sizes.join(", "))
        }
    };
    let (groups, size) = (trainer.groups_per_step, trainer.group_size);
    let mut lines = vec![
        format!("a step takes {groups} groups × {size} samples = {}", samples(spec, groups.into())),
        format!("on demand; {nodes}"),
    ];
    if spec.resized_trainer_pool().is_some() {
        let after = Written(trainer.resize_after);
        lines.push(format!(
            "asked to run on the next of them once it has been too slow, or too fast, for {after}"
        ));
    }
    lines
}

fn rollout(spec: &FleetSpec) -> Vec<String> {
    let rollout = &spec.rollout;
    let (min, max) = (rollout.min_replicas, rollout.max_replicas);
    let nodes = u32::from(rollout.nodes_per_replica);
    let most = u64::from(max) * u64::from(rollout.concurrency_per_replica);
    let target = (rollout.buffer_target_steps, spec.buffer_target_groups());
    let limit = (rollout.buffer_max_steps, spec.buffer_max_groups());
    let in_groups = |(steps, groups)| {
        let noun = if steps == 1.0 { "step" } else { "steps" };
        format!("{steps} {noun} = {groups} groups = {}", samples(spec, groups))
    };
    let mut lines = vec![
        format!("{min} to {max} replicas of {}, pools {}", count(nodes, "node"), preference(spec)),
        format!("up to {} in flight on a replica, {most} in all", rollout.concurrency_per_replica),
        format!("buffer target = {}", in_groups(target)),
        format!("buffer limit = {}", in_groups(limit)),
        format!(
            "decides every {}, at most {} at a time; starts take {} until measured",
            Written(rollout.tick),
            count(rollout.max_changes_per_tick, "replica"),
            Written(rollout.startup_estimate),
        ),
        stabilization(rollout.stabilization_up, rollout.stabilization_down),
    ];
    if rollout.join_at == JoinPoint::StepEnd {
        lines.push("a new replica gets work from the next update on".to_owned());
    }
    if nodes > 1 {
        let timeout = Written(rollout.gang_timeout);
        lines.push(format!("a replica that lacks a node is released after {timeout}"));
    }
    if let Some(after) = rollout.delete_wedged_engine_after {
        lines.push(format!("the pod of an engine that hangs for {} is deleted", Written(after)));
    }
    lines
}

/// The pools from the most preferred on; those that are filled evenly are joined by `=`.
fn preference(spec: &FleetSpec) -> String {
    let pools: Vec<&Pool> = spec.rollout_pools().collect();
    let even = pools.chunk_by(|a, b| a.is_like(b));
    let even = even.map(|pools| {
        let names: Vec<&str> = pools.iter().map(|pool| pool.name.as_str()).collect();
        names.join(" = ")
    });
    even.collect::<Vec<_>>().join(" > ")
}

fn service(spec: &FleetSpec, role: Role) -> Vec<String> {
    let Some(service) = spec.service(role) else { return Vec::new() };
    let pools: Vec<&str> = service.pools.iter().map(|name| name.as_str()).collect();
    let (min, max) = (service.min_replicas, service.max_replicas);
    vec![
        format!("{min} to {max} replicas, pools {}", pools.join(" > ")),
        format!(
            "{} at a time on a replica; starts take {} until measured",
            count(service.items_per_replica, "item"),
            Written(service.startup_estimate),
        ),
        stabilization(service.stabilization_up, service.stabilization_down),
        format!("what it has to do: {}", signal(service, role)),
    ]
}

fn signal(service: &ServicePolicy, role: Role) -> String {
    let does_not_tell = "; what is worked on is not told";
    match (&service.signal, role) {
        (None, Role::Environment) => "units in flight that wait for their environment".to_owned(),
        (None, _) => "responses that wait for their score or are being scored".to_owned(),
        (Some(ServiceSignal::RedisList(list)), _) => match &list.in_flight_key {
            Some(taken) => {
                format!("Redis lists {} (waits) and {} (in work)", list.key, taken)
            }
            None => format!("Redis list {}{does_not_tell}", list.key),
        },
        (Some(ServiceSignal::RedisStream(stream)), _) => {
            format!("group {} of Redis stream {}", stream.group, stream.key)
        }
        (Some(ServiceSignal::Sqs(url)), _) => format!("SQS queue {url}"),
        (Some(ServiceSignal::Prometheus(queries)), _) => match &queries.in_flight {
            Some(working) => {
                format!("Prometheus: {} (waits) and {working} (in work)", queries.waiting)
            }
            None => format!("Prometheus: {}{does_not_tell}", queries.waiting),
        },
    }
}

fn stabilization(up: Duration, down: Duration) -> String {
    let lasting = |window: Duration| match window.is_zero() {
        true => "at once".to_owned(),
        false => format!("after {}", Written(window)),
    };
    format!("when more is needed it grows {}, when less {}", lasting(up), lasting(down))
}

fn buffer(spec: &FleetSpec) -> Vec<String> {
    let place = match &spec.buffer.pool {
        Some(pool) => format!("in pool {pool}"),
        None => "in no pool of this policy".to_owned(),
    };
    let percent = spec.buffer.memory_alarm_percent;
    vec![format!("{place}, never scaled; alarm at {percent} % of its memory")]
}

fn staleness(spec: &FleetSpec) -> Vec<String> {
    let max_lag = spec.staleness.max_lag;
    let bound = match max_lag {
        0 => "strictly on-policy: only tokens of the current weights are trained on".to_owned(),
        _ => format!("tokens may be {} old when taken", count(max_lag.into(), "policy version")),
    };
    let resume = match spec.staleness.resume_policy {
        ResumePolicy::ContinueMixed => "partials go on under newer weights until they are too old",
        ResumePolicy::RestartIfNewer => "partials start again when the weights have changed",
        ResumePolicy::MaskOld => "partials go on, and what is too old gets no loss",
    };
    let groups = spec.admission_ceiling_groups();
    vec![
        bound,
        resume.to_owned(),
        format!("so at most {groups} groups = {} are useful at a time", samples(spec, groups)),
    ]
}

fn queue(spec: &FleetSpec) -> Vec<String> {
    let queue = &spec.queue;
    let stages: Vec<&str> = queue.stages.iter().map(|stage| stage.name()).collect();
    let leased = match queue.max_leased {
        Some(limit) => format!("a lease ends after {} in any case", Written(limit)),
        None => "a lease may last as long as tokens come".to_owned(),
    };
    let lost = match queue.max_infra_attempts {
        0 => "any number of lost holders".to_owned(),
        most => count(most.into(), "lost holder"),
    };
    let dead = match queue.on_dead_slot {
        OnDeadSlot::Fail => "fails its group".to_owned(),
        OnDeadSlot::Shrink { min_samples } => {
            format!("is left out while {min_samples} samples remain")
        }
    };
    let durability = match queue.durability {
        Durability::Fast => "fast: a fail-over of Redis may lose the last writes",
        Durability::Safe => "safe: an acknowledged write survives a fail-over",
    };
    vec![
        format!("stages {}, {}", stages.join(" → "), count(queue.shards.into(), "shard")),
        format!("leases of {}, renewed every {}", Written(queue.lease), Written(queue.renew_every)),
        format!("{leased}; without a token for {} it ends", Written(queue.progress_limit)),
        format!(
            "a pause for weights may last {}, a wait for the environment {}",
            Written(queue.pause_limit),
            Written(queue.environment_wait_limit),
        ),
        format!(
            "a unit survives {lost} and is dead after {} of model or engine",
            count(queue.max_attempts.into(), "fault"),
        ),
        format!("a dead or expired unit {dead}"),
        format!("finished groups are remembered for {}", Written(queue.dedup_window)),
        format!("durability {durability}"),
    ]
}

fn drain(spec: &FleetSpec) -> Vec<String> {
    let drain = &spec.drain;
    let ttl = Written(drain.rebalance_ttl);
    let rebalance = match drain.rebalance {
        RebalanceAction::StopLeases => format!("takes no work for {ttl}, running work goes on"),
        RebalanceAction::Drain => "is drained at once".to_owned(),
        RebalanceAction::Ignore => "carries on".to_owned(),
    };
    let degraded = match drain.leave_degraded {
        true => "a node whose hardware is degraded is drained when AWS says so",
        false => "a node whose hardware is degraded is drained as for any maintenance",
    };
    let extra = drain.extra_taint.as_ref().map(|taint| format!(" (also {taint})"));
    let extra = extra.unwrap_or_default();
    let evicted = match (drain.evict, drain.on_blocked_eviction) {
        (false, _) => "its pods are left alone",
        (true, BlockedEviction::Delete) => "its pods are evicted, at the end against budgets",
        (true, BlockedEviction::Wait) => "its pods are evicted as far as budgets let them go",
    };
    let unknown = match drain.unknown_instances {
        UnknownInstances::Acknowledge => "acknowledged",
        UnknownInstances::Keep => "left in the queue",
    };
    vec![
        format!(
            "units that finish {} before the deadline go on, the rest is handed back at once",
            Written(drain.reserve)
        ),
        format!("the engine is evicted {} before the deadline at the latest", Written(drain.grace)),
        format!(
            "deadlines: {} without a notice, {} for a lifecycle action, maintenance {} ahead",
            Written(drain.request_deadline),
            Written(drain.asg_deadline),
            Written(drain.maintenance_lead),
        ),
        match &drain.lifecycle_hook {
            Some(hook) => format!("lifecycle hook {hook} is completed, others are left alone"),
            None => {
                "the only lifecycle hook of a group is completed, one of several never".to_owned()
            }
        },
        format!("a node with a rebalance recommendation {rebalance}"),
        degraded.to_owned(),
        format!("a node that goes is cordoned and tainted{extra}, {evicted}"),
        format!("messages about instances that no node has are {unknown}"),
    ]
}

fn pool(pool: &Pool) -> String {
    let provider = match &pool.provider {
        Provider::Asg(group) => format!("Auto Scaling group {group}"),
        Provider::Fleet(fleet) => format!("EC2 fleets of launch template {}", fleet.template),
        Provider::Scale(target) => {
            let patience = patience(target.unschedulable_timeout);
            format!("{} {}{patience}", target.kind, target.name)
        }
        Provider::Workers(workers) => {
            let patience = patience(workers.unschedulable_timeout);
            format!("LeaderWorkerSets as {}{patience}", workers.template)
        }
        Provider::Local => "local world".to_owned(),
    };
    let kind = pool.instance_type.as_ref().map(|kind| format!(" {kind}")).unwrap_or_default();
    let zone = pool.zone.as_ref().map(|zone| format!(" in {zone}")).unwrap_or_default();
    let price = match pool.dollars_per_node_hour {
        Some(dollars) => format!("{dollars} dollars per node and hour"),
        None => "price unknown".to_owned(),
    };
    let (name, market, most) = (&pool.name, pool.market.name(), pool.max_nodes);
    let reserved = pool.reservation.as_ref().map(reservation).unwrap_or_default();
    format!("{name}: {market}{kind}{zone}, {provider}, at most {most} nodes, {price}{reserved}")
}

fn patience(unschedulable_timeout: Duration) -> String {
    format!(" (failed when none of its pods finds a node for {})", Written(unschedulable_timeout))
}

fn reservation(reservation: &Reservation) -> String {
    let what = match reservation.kind {
        ReservationKind::CapacityBlock => "Capacity Block",
        ReservationKind::OnDemand => "reservation",
    };
    let since = reservation.starts_at.map(|at| format!(" from {at}")).unwrap_or_default();
    format!(", {what} {}{since}, empty by {}", reservation.id, reservation.gone_by())
}

fn goals(spec: &FleetSpec) -> Vec<String> {
    let budget = spec.budget.map(|budget| {
        format!("at most {} dollars per hour for all worker groups", budget.dollars_per_hour)
    });
    let deadline = spec
        .deadline
        .map(|deadline| format!("{} policy updates by {}", deadline.updates, deadline.by));
    budget.into_iter().chain(deadline).collect()
}

fn samples(spec: &FleetSpec, groups: u64) -> String {
    format!("{} samples", groups * u64::from(spec.trainer.group_size))
}

fn count(number: u32, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}
