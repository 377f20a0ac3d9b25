//! The `fleet` provider: EC2 CreateFleet of type `instant`, one for each replica.
//!
//! A replica is bought whole or not at all, in one zone, at once: the answer has the instances or
//! says why there are none. Nothing heals: what is lost is missing until it is asked for again, and
//! what was asked for is what lives. Each purchase has a name that the run's store knows before it
//! is made (`books`), so that no answer is lost for good; an instance is the run's own by the name
//! of that store (`shown`), since other runs may have the same name and pools.

mod books;
mod launch;
mod shown;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use ebbtide_core::ids::RunId;
use ebbtide_core::observation::{
    Activities, FailureKind, InstanceId, InstanceState, InstanceView, LaunchFailure, PoolSize,
    PoolView, Signal,
};
use ebbtide_core::policy::{FleetLaunch, Pool, PoolName, Provider};
use ebbtide_core::time::UnixMillis;
use ebbtide_queue::control::{InstanceIds, PurchaseRecord};
use futures::future::join_all;

use super::ec2::{Instances, filter};
use super::{Capacity, CapacityError, Desk, look_at_each};
use crate::aws::call;
use crate::metrics::ApiCalls;
use books::{Books, Page, new_purchase};
use launch::{Bought, Order, POOL_TAG, RUN_TAG, judge, request, terms};
use shown::{Shown, Sorted, remark};

/// Failures that a pool remembers.
const FAILURES_LIMIT: usize = 16;

/// Fleets of one run in one account and region.
pub struct FleetCapacity {
    instances: Instances,
    run: RunId,
    now: fn() -> UnixMillis,
    books: Books,
    pools: Mutex<BTreeMap<PoolName, Memory>>,
}

/// What is remembered of a pool.
#[derive(Default)]
struct Memory {
    newest_at: Option<UnixMillis>,
    failures: VecDeque<LaunchFailure>,
}

/// One look at a pool.
struct Look {
    /// Its own instances that are not gone, those included that EC2 does not show yet.
    instances: Vec<InstanceView>,
    strangers: Vec<InstanceId>,
    shown: Shown,
    page: Page,
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
        let instances = Instances { client, calls };
        Self { instances, run, now, books: Books::default(), pools: Mutex::default() }
    }

    fn memory(&self) -> MutexGuard<'_, BTreeMap<PoolName, Memory>> {
        self.pools.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn read(&self, pool: &Pool) -> Result<Look, CapacityError> {
        launch_of(pool)?;
        let filters = vec![
            filter(&format!("tag:{RUN_TAG}"), vec![self.run.to_string()]),
            filter(&format!("tag:{POOL_TAG}"), vec![pool.name.to_string()]),
        ];
        let found = self.instances.filtered(filters);
        let (page, found) = tokio::try_join!(self.books.read(), found)?;
        let shown = Shown::read(&found);
        let recorded = match shown.has_others(&page.store) {
            true => self.books.recorded().await?,
            false => BTreeSet::new(),
        };
        let Sorted { own: mut instances, strangers } = shown.sort(&page.store, &recorded);
        if page.is_new && !strangers.is_empty() {
            // What a store that was lost knew is bought anew only when nobody has told of it.
            let (what, count) = (format!("pool {}", pool.name), strangers.len());
            let problem = format!(
                "the store of the run is new, and {count} instances that may be its own have not \
                 reported to it yet"
            );
            return Err(CapacityError::Unavailable { what, problem });
        }
        let bought = page.fresh_of(&pool.name).flat_map(|record| &record.instances.0);
        let hidden = bought.filter(|id| !shown.has(id)).cloned();
        instances.extend(hidden.map(|id| InstanceView {
            zone: pool.zone.clone(),
            market: Some(pool.market),
            ..InstanceView::new(id, InstanceState::Pending)
        }));
        Ok(Look { instances, strangers, shown, page })
    }

    async fn look(&self, pool: &Pool) -> Result<PoolView, CapacityError> {
        let look = self.read(pool).await?;
        let pools = self.memory();
        let memory = pools.get(&pool.name);
        let activities = memory.map_or_else(Activities::default, |memory| Activities {
            newest_at: memory.newest_at,
            failures: memory.failures.iter().cloned().collect(),
        });
        let size = PoolSize {
            desired: counted(&look.instances),
            instances: look.instances,
            is_unmanaged: true,
            remarks: remark(&look.strangers).into_iter().collect(),
            ..PoolSize::default()
        };
        let (size, activities) = (Signal::fresh(size), Signal::fresh(activities));
        Ok(PoolView { name: pool.name.clone(), size, activities })
    }

    /// Writes down what is bought now, of so many nodes each. What was asked for and not answered
    /// is asked for again under its name, and before it is settled nothing on other terms.
    async fn order(
        &self,
        pool: &Pool,
        look: &Look,
        sizes: &[u32],
    ) -> Result<Vec<Order>, CapacityError> {
        let launch = launch_of(pool)?;
        for purchase in look.page.expired() {
            self.books.strike(purchase).await?;
        }
        let is_open = |record: &&PurchaseRecord| {
            record.instances.is_empty() && !look.shown.has_bought(&record.purchase)
        };
        let mut open: Vec<_> = look.page.fresh_of(&pool.name).filter(is_open).collect();
        let mut orders = Vec::new();
        for nodes in sizes {
            let terms = terms(pool, launch, *nodes);
            let place = open.iter().position(|record| record.terms == terms);
            let record = match place {
                Some(place) => open.remove(place).clone(),
                None => new_purchase(&pool.name, terms),
            };
            orders.push(Order { record, nodes: *nodes });
        }
        let is_wanted =
            |left: &&PurchaseRecord| orders.iter().any(|order| order.record.terms == left.terms);
        if let Some(other) = open.iter().find(|left| !is_wanted(left)) {
            let what = "CreateFleet".to_owned();
            let problem = format!("it was asked for {} and nobody knows yet", other.terms);
            return Err(CapacityError::Unavailable { what, problem });
        }
        for order in &orders {
            self.books.write(order.record.clone()).await?;
        }
        Ok(orders)
    }

    /// Buys one replica; answers its nodes.
    async fn buy(&self, pool: &Pool, store: &str, order: Order) -> Result<u32, CapacityError> {
        let fleet = request(pool, launch_of(pool)?, &self.run, store, &order);
        let created = call("CreateFleet", &self.instances.calls, || {
            fleet.clone().send_with(&self.instances.client)
        })
        .await;
        let outcome = match created {
            Ok(reply) => judge(&reply, order.nodes),
            Err(error) => Err((CapacityError::from(error), BTreeSet::new())),
        };
        match outcome {
            Ok(Bought(instances)) => {
                self.memory().entry(pool.name.clone()).or_default().newest_at = Some((self.now)());
                let record = PurchaseRecord { instances: InstanceIds(instances), ..order.record };
                // Not written down, it is asked for again under the same name.
                if let Err(error) = self.books.write(record).await {
                    tracing::warn!(%error, "a purchase was not written down as answered");
                }
                Ok(order.nodes)
            }
            Err((error, _)) if !is_answer(&error) => Err(error),
            Err((error, part)) => {
                self.note_failure(pool, &error);
                // Less than a replica is worth nothing.
                self.end(&part).await?;
                self.books.strike(&order.record.purchase).await?;
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

    /// Takes what was ended out of the purchases that it came from.
    async fn write_off(
        &self,
        pool: &Pool,
        page: &Page,
        ended: &BTreeSet<InstanceId>,
    ) -> Result<(), CapacityError> {
        for record in page.fresh_of(&pool.name) {
            let left = &record.instances.0 - ended;
            if left == record.instances.0 {
                continue;
            }
            if left.is_empty() {
                self.books.strike(&record.purchase).await?;
            } else {
                let instances = InstanceIds(left);
                self.books.write(PurchaseRecord { instances, ..record.clone() }).await?;
            }
        }
        Ok(())
    }
}

/// Whether EC2 has answered what was asked. That it knows the name of another request is none: by
/// then it shows what it launched under it.
fn is_answer(error: &CapacityError) -> bool {
    match error {
        CapacityError::Refused { code, .. } => code != "IdempotentParameterMismatch",
        _ => false,
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

/// What came of several purchases: all, or why the first that was refused was, or not answered.
fn conclude(results: Vec<Result<u32, CapacityError>>) -> Result<(), CapacityError> {
    let came: u32 = results.iter().flatten().sum();
    let mut errors: Vec<CapacityError> = results.into_iter().filter_map(Result::err).collect();
    // The sort is stable: a refusal says more than silence.
    errors.sort_by_key(|error| error.refusal().is_none());
    match errors.into_iter().next() {
        None => Ok(()),
        Some(error) if came == 0 => Err(error),
        Some(error) => Err(CapacityError::Partly { came, error: Box::new(error) }),
    }
}

#[async_trait]
impl Capacity for FleetCapacity {
    fn keep_books(&self, desk: &Desk) {
        self.books.open(desk);
    }

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
        let look = self.read(pool).await?;
        let found = counted(&look.instances);
        if found != from || to <= from {
            return Err(CapacityError::moved(pool, from, found));
        }
        let gang = gang.max(1);
        let starts = (from..to).step_by(usize::try_from(gang).unwrap_or(usize::MAX));
        let sizes: Vec<u32> = starts.map(|start| gang.min(to - start)).collect();
        let orders = self.order(pool, &look, &sizes).await?;
        let store = look.page.store.as_str();
        conclude(join_all(orders.into_iter().map(|order| self.buy(pool, store, order))).await)
    }

    async fn terminate(&self, pool: &Pool, instances: &[InstanceId]) -> Result<(), CapacityError> {
        let look = self.read(pool).await?;
        let present = look.instances.iter();
        let own = present.filter(|one| one.state.counts() && instances.contains(&one.id));
        let own = own.map(|instance| instance.id.clone()).collect();
        self.end(&own).await?;
        self.write_off(pool, &look.page, &own).await
    }
}
