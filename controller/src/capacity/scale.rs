//! The `scale` provider: the replicas of a StatefulSet, a LeaderWorkerSet or a Deployment.
//!
//! The size is written through the scale subresource, always under the resource version that it was
//! read at: where somebody else wrote in between, it is read again, and left alone when the number
//! is another one. Which pods go is not ours to say: the highest ordinals of a set, the lowest
//! deletion cost of a Deployment. So the size is lowered only by what is certain to take the named
//! pods, or pods that have no node and so hold nothing.

mod object;
mod victims;

use std::collections::BTreeSet;
use std::time::Duration;

use async_trait::async_trait;
use ebbtide_core::observation::{InstanceId, PoolSize, PoolView, Signal};
use ebbtide_core::policy::{Pool, Provider, ScaleTarget, ScaledKind};
use k8s_openapi::api::autoscaling::v1::Scale;
use kube::Client;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;

use super::cluster::pod::{DELETION_COST, SeenPod};
use super::cluster::{CONFLICTS_LIMIT, Cluster, Waiting, is_absent, is_conflict, within};
use super::{Capacity, CapacityError, look_at_each};
use object::Object;

/// From the cost of a pod to the new size: the controller of a Deployment hears of both apart.
const COST_SETTLES_WITHIN: Duration = Duration::from_secs(2);

/// Objects of one cluster.
pub struct ScaleCapacity {
    cluster: Cluster,
    waiting: Waiting,
}

impl ScaleCapacity {
    /// Objects behind this client, in `namespace` where the policy names none. Nothing is asked
    /// yet.
    pub fn new(client: Client, namespace: &str) -> Self {
        Self { cluster: Cluster::new(client, namespace), waiting: Waiting::default() }
    }

    async fn read(&self, target: &ScaleTarget) -> Result<(Object, Vec<SeenPod>), CapacityError> {
        let object = self.read_object(target).await?;
        let pods = self.cluster.seen_pods(space(target), &object.selector).await?;
        Ok((object, pods))
    }

    async fn read_object(&self, target: &ScaleTarget) -> Result<Object, CapacityError> {
        let objects = self.cluster.objects(&object::resource(target.kind), space(target));
        let name = target.name.as_str();
        let scale = within("get of the scale", objects.get_scale(name)).await?;
        let whole = within("get of the scaled object", objects.get(name)).await?;
        Object::read(target, scale, &whole.data)
    }

    async fn look(&self, pool: &Pool) -> Result<PoolView, CapacityError> {
        let target = target_of(pool)?;
        let (object, pods) = match self.read(target).await {
            Err(error) if is_absent(&error) => {
                let why = format!("there is no {} {}", target.kind, target.name);
                return Ok(PoolView::unread(pool.name.clone(), why));
            }
            read => read?,
        };
        let size = PoolSize {
            desired: object.nodes(),
            instances: victims::instances(&object, &pods),
            ..PoolSize::default()
        };
        let patience = target.unschedulable_timeout;
        let activities = self.waiting.look(pool.name.as_str(), &pods, patience);
        let (size, activities) = (Signal::fresh(size), Signal::fresh(activities));
        Ok(PoolView { name: pool.name.clone(), size, activities })
    }

    /// Writes the number of replicas under the version that was read; says whether it was granted.
    async fn write(
        &self,
        target: &ScaleTarget,
        read: &Scale,
        replicas: u32,
    ) -> Result<bool, CapacityError> {
        let objects = self.cluster.objects(&object::resource(target.kind), space(target));
        let mut scale = read.clone();
        let spec = scale.spec.get_or_insert_default();
        spec.replicas = Some(i32::try_from(replicas).unwrap_or(i32::MAX));
        scale.status = None;
        let parameters = PostParams::default();
        let written = objects.replace_scale(target.name.as_str(), &parameters, &scale);
        match within("update of the scale", written).await {
            Ok(_) => Ok(true),
            Err(error) if is_conflict(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Marks pods as the first to go; says whether any was not yet.
    async fn offer(&self, target: &ScaleTarget, pods: &[&SeenPod]) -> Result<bool, CapacityError> {
        let mut is_news = false;
        for pod in pods.iter().filter(|pod| pod.deletion_cost != i32::MIN) {
            let patch = json!({
                "metadata": {
                    "uid": pod.uid,
                    "annotations": { DELETION_COST: i32::MIN.to_string() },
                },
            });
            let (parameters, patch) = (PatchParams::default(), Patch::Merge(patch));
            let pods = self.cluster.pods(space(target));
            let patched = pods.patch_metadata(&pod.name, &parameters, &patch);
            match within("cost of a pod", patched).await {
                Ok(_) => is_news = true,
                // Gone, or another one of the same name.
                Err(error) if is_absent(&error) || is_conflict(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(is_news)
    }
}

fn space(target: &ScaleTarget) -> Option<&str> {
    target.namespace.as_ref().map(|namespace| namespace.as_str())
}

fn target_of(pool: &Pool) -> Result<&ScaleTarget, CapacityError> {
    match &pool.provider {
        Provider::Scale(target) => Ok(target),
        _ => Err(CapacityError::foreign(pool)),
    }
}

#[async_trait]
impl Capacity for ScaleCapacity {
    async fn observe(&self, pools: &[&Pool]) -> Vec<PoolView> {
        look_at_each(pools, |pool| self.look(pool)).await
    }

    async fn find_gone(
        &self,
        _: &[&Pool],
        instances: &[InstanceId],
    ) -> Result<BTreeSet<InstanceId>, CapacityError> {
        self.cluster.find_gone(instances).await
    }

    async fn raise(&self, pool: &Pool, from: u32, to: u32, _: u32) -> Result<(), CapacityError> {
        let target = target_of(pool)?;
        for _ in 0..CONFLICTS_LIMIT {
            let object = self.read_object(target).await?;
            if object.nodes() != from || to <= from {
                return Err(CapacityError::moved(pool, from, object.nodes()));
            }
            if self.write(target, &object.scale, object.replicas_of(to)?).await? {
                return Ok(());
            }
        }
        // Others write it all the time: what holds is read at the next tick.
        Err(CapacityError::moved(pool, from, from))
    }

    async fn terminate(&self, pool: &Pool, instances: &[InstanceId]) -> Result<(), CapacityError> {
        let target = target_of(pool)?;
        for _ in 0..CONFLICTS_LIMIT {
            let (object, pods) = self.read(target).await?;
            let named = victims::named(&object, &pods, instances);
            if named.is_empty() {
                return Ok(());
            }
            if target.kind == ScaledKind::Deployment {
                victims::one_owner(&pods)?;
                let is_news = self.offer(target, &named).await?;
                if is_news {
                    tokio::time::sleep(COST_SETTLES_WITHIN).await;
                    continue;
                }
            }
            let fewer = victims::fewer(&object, &pods, &named)?;
            let replicas = object.replicas.saturating_sub(fewer);
            if self.write(target, &object.scale, replicas).await? {
                return Ok(());
            }
        }
        let size = self.read_object(target).await?.nodes();
        Err(CapacityError::moved(pool, size, size))
    }
}
