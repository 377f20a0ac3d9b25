//! Rules between keys: what each key allows by itself may still contradict another.
//!
//! A rule names every path it uses; it is not asked when one of them has a mistake of its own.

use super::duration::Written;
use super::pool::PoolName;
use super::queue::Stage;
use super::report::Report;
use super::{FleetSpec, pool_rules};
use crate::work::OnDeadSlot;

/// Asks every rule.
pub(super) fn check(spec: &FleetSpec, report: &mut Report) {
    queue_times_fit_the_lease(spec, report);
    stages_and_reward_agree(spec, report);
    min_samples_fit_the_group(spec, report);
    drain_times_nest(spec, report);
    buffer_stays_within_the_lag(spec, report);
    replicas_min_to_max(spec, report);
    pool_rules::check(spec, report);
}

fn queue_times_fit_the_lease(spec: &FleetSpec, report: &mut Report) {
    let queue = &spec.queue;
    let lease = Written(queue.lease);
    report.demand(
        queue.renew_every <= queue.lease / 2,
        "spec.queue.renewEvery",
        &["spec.queue.lease"],
        || {
            let most = Written(queue.lease / 2);
            let got = Written(queue.renew_every);
            format!(
                "must be at most {most}, half of spec.queue.lease, so that one lost renewal \
                 loses no lease, got {got}"
            )
        },
    );
    let limits = [
        ("spec.queue.progressLimit", Some(queue.progress_limit)),
        ("spec.queue.maxLeased", queue.max_leased),
    ];
    for (path, limit) in limits {
        let Some(limit) = limit else { continue };
        report.demand(limit >= queue.lease, path, &["spec.queue.lease"], || {
            format!("must be at least spec.queue.lease ({lease}), got {}", Written(limit))
        });
    }
}

fn stages_and_reward_agree(spec: &FleetSpec, report: &mut Report) {
    let stages = "spec.queue.stages";
    let is_known_order =
        matches!(spec.queue.stages[..], [Stage::Generate] | [Stage::Generate, Stage::Reward]);
    report.demand(
        is_known_order,
        stages,
        &["spec.queue.stages[0]", "spec.queue.stages[1]"],
        || "must be [generate] or [generate, reward]".to_owned(),
    );
    let has_stage = spec.has_reward_stage();
    let has_section = spec.reward.is_some();
    report.demand(!has_stage || has_section, stages, &["spec.reward"], || {
        "has reward, which needs a spec.reward section".to_owned()
    });
    let has_signal = report.position("spec.reward.signal").is_some();
    report.demand(!has_section || has_stage || has_signal, "spec.reward", &[stages], || {
        "needs the stage: spec.queue.stages must be [generate, reward]; or a signal".to_owned()
    });
}

fn min_samples_fit_the_group(spec: &FleetSpec, report: &mut Report) {
    let OnDeadSlot::Shrink { min_samples } = spec.queue.on_dead_slot else { return };
    let size = spec.trainer.group_size;
    report.demand(
        min_samples <= size,
        "spec.queue.minSamples",
        &["spec.trainer.groupSize"],
        || format!("must be at most spec.trainer.groupSize ({size}), got {min_samples}"),
    );
}

fn drain_times_nest(spec: &FleetSpec, report: &mut Report) {
    let drain = &spec.drain;
    let reserve = Written(drain.reserve);
    report.demand(
        drain.grace <= drain.reserve,
        "spec.drain.grace",
        &["spec.drain.reserve"],
        || {
            let got = Written(drain.grace);
            format!("must be at most spec.drain.reserve ({reserve}), got {got}")
        },
    );
    let deadlines = [
        ("spec.drain.requestDeadline", drain.request_deadline),
        ("spec.drain.asgDeadline", drain.asg_deadline),
    ];
    for (path, deadline) in deadlines {
        report.demand(deadline > drain.reserve, path, &["spec.drain.reserve"], || {
            format!("must be more than spec.drain.reserve ({reserve}), got {}", Written(deadline))
        });
    }
}

fn buffer_stays_within_the_lag(spec: &FleetSpec, report: &mut Report) {
    let target = "spec.rollout.bufferTargetSteps";
    let max = "spec.rollout.bufferMaxSteps";
    let max_lag = "spec.staleness.maxLag";
    let (target_steps, max_steps) =
        (spec.rollout.buffer_target_steps, spec.rollout.buffer_max_steps);
    let most = f64::from(spec.staleness.max_lag) + 1.0;
    for (path, steps) in [(target, target_steps), (max, max_steps)] {
        let is_default = report.position(path).is_none();
        report.demand(is_default || steps <= most, path, &[max_lag], || {
            format!(
                "must be at most {most}, one more than spec.staleness.maxLag: what stands behind \
                 that is too old when the trainer takes it, got {steps}"
            )
        });
    }
    report.demand(target_steps <= max_steps, max, &[target], || {
        format!("must be at least spec.rollout.bufferTargetSteps ({target_steps}), got {max_steps}")
    });
}

fn replicas_min_to_max(spec: &FleetSpec, report: &mut Report) {
    for role in scaled_roles(spec) {
        let (min, max) = (role.path("minReplicas"), role.path("maxReplicas"));
        report.demand(role.min_replicas <= role.max_replicas, &min, &[&max], || {
            format!("must be at most {max} ({}), got {}", role.max_replicas, role.min_replicas)
        });
    }
}

/// A worker group between two bounds.
pub(super) struct ScaledRole<'spec> {
    pub name: &'static str,
    pub min_replicas: u32,
    pub max_replicas: u32,
    pub nodes_per_replica: u32,
    pub pools: &'spec [PoolName],
}

impl ScaledRole<'_> {
    /// The path of one of its keys.
    pub fn path(&self, key: &str) -> String {
        format!("spec.{}.{key}", self.name)
    }
}

/// What the rollout group is called.
pub(super) const ROLLOUT: &str = "rollout";

/// The worker groups that are sized between two bounds.
pub(super) fn scaled_roles(spec: &FleetSpec) -> Vec<ScaledRole<'_>> {
    let rollout = ScaledRole {
        name: ROLLOUT,
        min_replicas: spec.rollout.min_replicas,
        max_replicas: spec.rollout.max_replicas,
        nodes_per_replica: u32::from(spec.rollout.nodes_per_replica),
        pools: &spec.rollout.pools,
    };
    let services = [("reward", &spec.reward), ("environment", &spec.environment)];
    let services = services.into_iter().filter_map(|(name, service)| {
        service.as_ref().map(|service| ScaledRole {
            name,
            min_replicas: service.min_replicas,
            max_replicas: service.max_replicas,
            nodes_per_replica: 1,
            pools: &service.pools,
        })
    });
    std::iter::once(rollout).chain(services).collect()
}
