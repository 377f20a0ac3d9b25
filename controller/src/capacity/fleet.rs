//! The `fleet` provider: EC2 CreateFleet of type `instant`, one for each replica.
//!
//! A replica is bought whole or not at all, in one zone, at once: the answer has the instances or
//! says why there are none. Nothing heals: what is lost is missing until it is asked for again, and
//! what was asked for is what lives. A call that is repeated while the pool is as it was has the
//! same token, so EC2 answers it with the same instances; those that it does not show yet are
//! remembered until it does.

mod launch;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use aws_sdk_ec2::types::{Instance, InstanceStateName};
use ebbtide_core::ids::RunId;
use ebbtide_core::observation::{
    Activities, FailureKind, InstanceId, InstanceState, InstanceView, LaunchFailure, PoolSize,
    PoolView, Signal,
};
use ebbtide_core::policy::{FleetLaunch, Pool, PoolName, Provider};
use ebbtide_core::time::UnixMillis;
use tokio::time::Instant;

use super::ec2::{Instances, filter, is_in, market_of, node_of};
use super::{Capacity, CapacityError, look_at_each};
use crate::aws::call;
use crate::metrics::ApiCalls;
use launch::{Bought, POOL_TAG, RUN_TAG, judge, request, token};

/// Longest time until EC2 shows what it launched (its answers are eventually consistent).
const SHOWN_WITHIN: Duration = Duration::from_secs(180);

/// Failures that a pool remembers.
const FAILURES_LIMIT: usize = 16;

/// Fleets of one run in one account and region.
pub struct FleetCapacity {
    instances: Instances,
    run: RunId,
    now: fn() -> UnixMillis,
    pools: Mutex<BTreeMap<PoolName, Memory>>,
}

/// What is remembered of a pool.
#[derive(Default)]
struct Memory {
    /// Launched, and not shown yet.
    launched: BTreeMap<InstanceId, Instant>,
    /// Answers so far: what was answered is asked for anew under another token.
    answers: u64,
    newest_at: Option<UnixMillis>,
    failures: VecDeque<LaunchFailure>,
}

impl FleetCapacity {
    /// Clients with this configuration, for the instances of one run. `now` is the clock of its
    /// activities. Nothing is called yet, so that AWS may be away.
    pub fn new(
        config: &aws_config::SdkConfig,
        run: RunId,
        calls: ApiCalls,
        now: fn() -> UnixMillis,
    ) -> Self {
        let client = aws_sdk_ec2::Client::new(config);
        Self { instances: Instances { client, calls }, run, now, pools: Mutex::default() }
    }

    fn memory(&self) -> MutexGuard<'_, BTreeMap<PoolName, Memory>> {
        self.pools.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The instances of a pool that are not gone, those included that EC2 does not show yet.
    async fn read(&self, pool: &Pool) -> Result<Vec<InstanceView>, CapacityError> {
        launch_of(pool)?;
        let alive = ["pending", "running", "shutting-down", "stopping", "stopped"];
        let filters = vec![
            filter(&format!("tag:{RUN_TAG}"), vec![self.run.to_string()]),
            filter(&format!("tag:{POOL_TAG}"), vec![pool.name.to_string()]),
            filter("instance-state-name", alive.map(str::to_owned).into()),
        ];
        let found = self.instances.filtered(filters).await?;
        let mut shown: Vec<InstanceView> = found.iter().filter_map(view).collect();
        let mut pools = self.memory();
        let memory = pools.entry(pool.name.clone()).or_default();
        memory.launched.retain(|id, at| {
            at.elapsed() < SHOWN_WITHIN && !shown.iter().any(|instance| instance.id == *id)
        });
        let hidden = memory.launched.keys().cloned();
        shown.extend(hidden.map(|id| InstanceView {
            zone: pool.zone.clone(),
            market: Some(pool.market),
            ..InstanceView::new(id, InstanceState::Pending)
        }));
        Ok(shown)
    }

    async fn look(&self, pool: &Pool) -> Result<PoolView, CapacityError> {
        let instances = self.read(pool).await?;
        let pools = self.memory();
        let memory = pools.get(&pool.name);
        let activities = memory.map_or_else(Activities::default, |memory| Activities {
            newest_at: memory.newest_at,
            failures: memory.failures.iter().cloned().collect(),
        });
        let size = PoolSize {
            desired: counted(&instances),
            instances,
            is_unmanaged: true,
            ..PoolSize::default()
        };
        let (size, activities) = (Signal::fresh(size), Signal::fresh(activities));
        Ok(PoolView { name: pool.name.clone(), size, activities })
    }

    /// Buys one replica.
    async fn buy(&self, pool: &Pool, nodes: u32, token: String) -> Result<(), CapacityError> {
        let launch = launch_of(pool)?;
        let fleet = request(pool, launch, &self.run, nodes, token);
        let created = call("CreateFleet", &self.instances.calls, || {
            fleet.clone().send_with(&self.instances.client)
        })
        .await;
        let outcome = match created {
            Ok(reply) => judge(&reply, nodes),
            Err(error) => Err((CapacityError::from(error), BTreeSet::new())),
        };
        match outcome {
            Ok(Bought(instances)) => {
                let mut pools = self.memory();
                let memory = pools.entry(pool.name.clone()).or_default();
                memory.newest_at = Some((self.now)());
                let now = Instant::now();
                memory.launched.extend(instances.into_iter().map(|id| (id, now)));
                Ok(())
            }
            Err((error, part)) => {
                self.note_failure(pool, &error);
                // Less than a replica is worth nothing.
                self.end(&part).await?;
                Err(error)
            }
        }
    }

    fn note_failure(&self, pool: &Pool, error: &CapacityError) {
        let CapacityError::Refused { code, message, .. } = error else { return };
        let message = format!("{code}: {message}");
        let kind = FailureKind::of_text(&message);
        let at = (self.now)();
        let mut pools = self.memory();
        let memory = pools.entry(pool.name.clone()).or_default();
        memory.newest_at = Some(at);
        memory.failures.truncate(FAILURES_LIMIT - 1);
        memory.failures.push_front(LaunchFailure { at, kind, message });
    }

    async fn end(&self, ids: &BTreeSet<InstanceId>) -> Result<(), CapacityError> {
        if ids.is_empty() {
            return Ok(());
        }
        let ids: Vec<String> = ids.iter().map(|id| id.0.clone()).collect();
        call("TerminateInstances", &self.instances.calls, || {
            self.instances.client.terminate_instances().set_instance_ids(Some(ids.clone())).send()
        })
        .await?;
        Ok(())
    }
}

fn launch_of(pool: &Pool) -> Result<&FleetLaunch, CapacityError> {
    match &pool.provider {
        Provider::Fleet(launch) => Ok(launch),
        _ => Err(CapacityError::foreign(pool)),
    }
}

fn counted(instances: &[InstanceView]) -> u32 {
    let counted = instances.iter().filter(|instance| instance.state.counts()).count();
    u32::try_from(counted).unwrap_or(u32::MAX)
}

fn view(instance: &Instance) -> Option<InstanceView> {
    let id = InstanceId(instance.instance_id()?.to_owned());
    let is = |state| is_in(instance, &state);
    let state = match () {
        () if is(InstanceStateName::Pending) => InstanceState::Pending,
        () if is(InstanceStateName::Running) => InstanceState::InService,
        () if is(InstanceStateName::ShuttingDown) => InstanceState::Terminating,
        () => InstanceState::Aside,
    };
    let zone = instance.placement().and_then(|placement| placement.availability_zone());
    Some(InstanceView {
        node: node_of(instance),
        zone: zone.and_then(|zone| zone.parse().ok()),
        market: Some(market_of(instance)),
        ..InstanceView::new(id, state)
    })
}

#[async_trait]
impl Capacity for FleetCapacity {
    async fn observe(&self, pools: &[&Pool]) -> Vec<PoolView> {
        look_at_each(pools, |pool| self.look(pool)).await
    }

    async fn find_gone(
        &self,
        _: &[&Pool],
        instances: &[InstanceId],
    ) -> Result<BTreeSet<InstanceId>, CapacityError> {
        self.instances.find_gone(instances).await
    }

    async fn raise(&self, pool: &Pool, from: u32, to: u32, gang: u32) -> Result<(), CapacityError> {
        let present = self.read(pool).await?;
        if counted(&present) != from || to <= from {
            return Err(CapacityError::moved(pool, from, counted(&present)));
        }
        let answers = self.memory().get(&pool.name).map_or(0, |memory| memory.answers);
        let gang = gang.max(1);
        let starts = (0..to - from).step_by(usize::try_from(gang).unwrap_or(usize::MAX));
        let bought = starts.map(|start| {
            let nodes = gang.min(to - from - start);
            self.buy(pool, nodes, token(&self.run, pool, &present, answers, start))
        });
        let bought = futures::future::join_all(bought).await;
        let is_answer = |outcome: &Result<(), CapacityError>| {
            !matches!(outcome, Err(CapacityError::Unavailable { .. }))
        };
        // Without an answer the same is asked for again.
        if bought.iter().all(is_answer) {
            self.memory().entry(pool.name.clone()).or_default().answers += 1;
        }
        bought.into_iter().collect()
    }

    async fn terminate(&self, pool: &Pool, instances: &[InstanceId]) -> Result<(), CapacityError> {
        let present = self.read(pool).await?;
        let own = present.iter().filter(|one| one.state.counts() && instances.contains(&one.id));
        let own = own.map(|instance| instance.id.clone()).collect();
        self.end(&own).await?;
        for id in &own {
            self.memory().entry(pool.name.clone()).or_default().launched.remove(id);
        }
        Ok(())
    }
}
