//! Pools of several providers at once: each provider is asked for its own pools, side by side, and
//! none waits for another or sees its failures.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use async_trait::async_trait;
use ebbtide_core::observation::{InstanceId, PoolView};
use ebbtide_core::policy::{Pool, PoolName, ProviderKind};
use futures::future::join_all;

use super::{Capacity, CapacityError, Desk, LOOK_LIMIT, unread};

/// Providers by kind; a policy that changes may use others than before.
#[derive(Default, Clone)]
pub struct MixedCapacity {
    providers: BTreeMap<ProviderKind, Arc<dyn Capacity>>,
}

impl MixedCapacity {
    /// The same with one more provider.
    #[must_use]
    pub fn with(mut self, kind: ProviderKind, provider: impl Capacity + 'static) -> Self {
        self.providers.insert(kind, Arc::new(provider));
        self
    }

    fn of(&self, pool: &Pool) -> Result<&dyn Capacity, CapacityError> {
        let kind = pool.provider.kind();
        let found = self.providers.get(&kind);
        found.map(AsRef::as_ref).ok_or_else(|| CapacityError::Absent {
            pool: pool.name.to_string(),
            provider: kind.as_str(),
        })
    }
}

/// The pools of each provider.
fn by_kind<'a>(pools: &[&'a Pool]) -> BTreeMap<ProviderKind, Vec<&'a Pool>> {
    let mut kinds = BTreeMap::<_, Vec<&Pool>>::new();
    for pool in pools {
        kinds.entry(pool.provider.kind()).or_default().push(pool);
    }
    kinds
}

async fn observe_own(provider: &dyn Capacity, pools: &[&Pool]) -> Vec<PoolView> {
    match tokio::time::timeout(LOOK_LIMIT, provider.observe(pools)).await {
        Ok(views) => views,
        Err(_) => unread(pools, &format!("no answer within {LOOK_LIMIT:?}")),
    }
}

#[async_trait]
impl Capacity for MixedCapacity {
    fn keep_books(&self, desk: &Desk) {
        self.providers.values().for_each(|provider| provider.keep_books(desk));
    }

    async fn observe(&self, pools: &[&Pool]) -> Vec<PoolView> {
        let looks = by_kind(pools).into_values().map(|own| async move {
            match self.of(own[0]) {
                Ok(provider) => observe_own(provider, &own).await,
                Err(error) => unread(&own, &error.to_string()),
            }
        });
        let views = join_all(looks).await.into_iter().flatten();
        let mut views: BTreeMap<PoolName, PoolView> =
            views.map(|view| (view.name.clone(), view)).collect();
        // In the order in which they were asked for, which is that of preference.
        let silent = |pool: &Pool| PoolView::unread(pool.name.clone(), "its provider left it out");
        pools.iter().map(|pool| views.remove(&pool.name).unwrap_or_else(|| silent(pool))).collect()
    }

    async fn find_gone(
        &self,
        pools: &[&Pool],
        instances: &[InstanceId],
    ) -> Result<BTreeSet<InstanceId>, CapacityError> {
        // What one of them still knows may be there.
        let looks = by_kind(pools)
            .into_values()
            .map(|own| async move { self.of(own[0])?.find_gone(&own, instances).await });
        let answers: Result<Vec<_>, _> = join_all(looks).await.into_iter().collect();
        Ok(answers?.into_iter().reduce(|a, b| &a & &b).unwrap_or_default())
    }

    async fn raise(&self, pool: &Pool, from: u32, to: u32, gang: u32) -> Result<(), CapacityError> {
        self.of(pool)?.raise(pool, from, to, gang).await
    }

    async fn protect(&self, pool: &Pool, instances: &[InstanceId]) -> Result<(), CapacityError> {
        self.of(pool)?.protect(pool, instances).await
    }

    async fn terminate(&self, pool: &Pool, instances: &[InstanceId]) -> Result<(), CapacityError> {
        self.of(pool)?.terminate(pool, instances).await
    }
}

#[cfg(test)]
mod tests;
