//! The `workers` provider: one LeaderWorkerSet of one group for each replica, made from a template.
//!
//! The template is a LeaderWorkerSet of no replicas that the policy names. Its copies are named
//! after it with the lowest free numbers, so that a call that is repeated, or made by two leaders,
//! finds its copy there already. They belong to the template and go with it. A copy is deleted only
//! when the pod that leads its group was named, whoever else is in it: with that pod the engine
//! answers.

mod copies;

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;
use ebbtide_core::observation::{InstanceId, InstanceView, PoolSize, PoolView, Signal};
use ebbtide_core::policy::{Pool, Provider, WorkersTemplate};
use futures::{StreamExt, TryStreamExt, stream};
use kube::Client;
use kube::api::{DeleteParams, DynamicObject, ListParams, PostParams, PropagationPolicy};

use super::cluster::pod::{SET_NAME, SeenPod, in_the_way, pod_name};
use super::cluster::{Cluster, Waiting, is_absent, is_taken, leader_worker_sets, within};
use super::{Capacity, CapacityError, look_at_each};
use copies::{Copies, TEMPLATE_LABEL};

/// Copies that are made at a time: in a busy cluster each takes up to a second, and all that one
/// decision asks for must be there within the time of one call.
const CREATIONS_AT_A_TIME: usize = 8;

/// Copies of templates in one cluster.
pub struct WorkersCapacity {
    cluster: Cluster,
    waiting: Waiting,
}

impl WorkersCapacity {
    /// Templates behind this client, in `namespace` where the policy names none. Nothing is asked
    /// yet.
    pub fn new(client: Client, namespace: &str) -> Self {
        Self { cluster: Cluster::new(client, namespace), waiting: Waiting::default() }
    }

    fn sets(&self, workers: &WorkersTemplate) -> kube::Api<DynamicObject> {
        self.cluster.objects(&leader_worker_sets(), space(workers))
    }

    async fn template(&self, workers: &WorkersTemplate) -> Result<DynamicObject, CapacityError> {
        within("get of the template", self.sets(workers).get(workers.template.as_str())).await
    }

    async fn read(&self, workers: &WorkersTemplate) -> Result<Copies, CapacityError> {
        let template = self.template(workers).await?;
        let (sets, list) =
            (self.sets(workers), ListParams::default().labels(&of_template(workers)));
        let labelled = within("list of LeaderWorkerSets", sets.list(&list)).await?;
        Copies::read(template, labelled.items)
    }

    /// Some of the copies, by name.
    async fn read_some(
        &self,
        workers: &WorkersTemplate,
        names: &BTreeSet<String>,
    ) -> Result<Copies, CapacityError> {
        let (template, sets) = (self.template(workers).await?, self.sets(workers));
        let mut found = Vec::new();
        for name in names {
            found.extend(within("get of a LeaderWorkerSet", sets.get_opt(name)).await?);
        }
        Copies::read(template, found)
    }

    /// The names of all sets, the template's own and those of others.
    async fn names(&self, workers: &WorkersTemplate) -> Result<BTreeSet<String>, CapacityError> {
        let (sets, list) = (self.sets(workers), ListParams::default());
        let all = within("list of names", sets.list_metadata(&list)).await?;
        Ok(all.items.into_iter().filter_map(|set| set.metadata.name).collect())
    }

    async fn pods(&self, workers: &WorkersTemplate) -> Result<Vec<SeenPod>, CapacityError> {
        self.cluster.seen_pods(space(workers), &of_template(workers)).await
    }

    /// The pods of the groups that these instances are of. That is read for each replica that goes,
    /// so no more is read than concerns it, however large the pool is.
    async fn pods_of_groups(
        &self,
        workers: &WorkersTemplate,
        instances: &[InstanceId],
    ) -> Result<Vec<SeenPod>, CapacityError> {
        let pods = self.cluster.pods(space(workers));
        let mut left: BTreeSet<&InstanceId> = instances.iter().collect();
        let mut found = Vec::new();
        while let Some(id) = left.pop_first() {
            let pod = within("get of a pod", pods.get_opt(pod_name(id))).await?;
            let seen = pod.as_ref().and_then(SeenPod::read);
            let Some(set) = seen.and_then(|pod| pod.set) else { continue };
            let selector = format!("{},{SET_NAME}={set}", of_template(workers));
            let group = self.cluster.seen_pods(space(workers), &selector).await?;
            left.retain(|id| !group.iter().any(|pod| pod.id() == **id));
            found.extend(group);
        }
        Ok(found)
    }

    async fn look(&self, pool: &Pool) -> Result<PoolView, CapacityError> {
        let workers = template_of(pool)?;
        let copies = match self.read(workers).await {
            Err(error) if is_absent(&error) => {
                let why = format!("there is no LeaderWorkerSet {}", workers.template);
                return Ok(PoolView::unread(pool.name.clone(), why));
            }
            read => read?,
        };
        let pods = self.pods(workers).await?;
        let instances = pods.iter().filter_map(|pod| {
            let set = pod.set.clone()?;
            let instance = pod.instance(!copies.stays(&set))?;
            Some(InstanceView { group: Some(set), ..instance })
        });
        let instances = instances.collect();
        let size = PoolSize { desired: copies.nodes(), instances, ..PoolSize::default() };
        let patience = workers.unschedulable_timeout;
        let activities = self.waiting.look(pool.name.as_str(), &pods, patience);
        let (size, activities) = (Signal::fresh(size), Signal::fresh(activities));
        Ok(PoolView { name: pool.name.clone(), size, activities })
    }
}

fn space(workers: &WorkersTemplate) -> Option<&str> {
    workers.namespace.as_ref().map(|namespace| namespace.as_str())
}

/// Selects what is made from a template.
fn of_template(workers: &WorkersTemplate) -> String {
    format!("{TEMPLATE_LABEL}={}", workers.template)
}

fn template_of(pool: &Pool) -> Result<&WorkersTemplate, CapacityError> {
    match &pool.provider {
        Provider::Workers(workers) => Ok(workers),
        _ => Err(CapacityError::foreign(pool)),
    }
}

/// The sets that may go, of those of which a pod is named.
///
/// # Errors
/// A pod that leads such a set was not named.
fn sets_to_delete(
    pods: &[SeenPod],
    instances: &[InstanceId],
) -> Result<BTreeSet<String>, CapacityError> {
    let ids: BTreeSet<&InstanceId> = instances.iter().collect();
    let counted = || pods.iter().filter(|pod| pod.counts());
    let named: BTreeSet<&str> =
        counted().filter(|pod| ids.contains(&pod.id())).map(|pod| pod.uid.as_str()).collect();
    let mut groups = BTreeMap::<&str, Vec<&SeenPod>>::new();
    for pod in counted() {
        groups.entry(pod.set.as_deref().unwrap_or_default()).or_default().push(pod);
    }
    groups.retain(|_, own| own.iter().any(|pod| named.contains(pod.uid.as_str())));
    if let Some(pod) = groups.values().find_map(|own| in_the_way(own, &named)) {
        return Err(CapacityError::Refused {
            what: "deletion of a LeaderWorkerSet".to_owned(),
            code: "NotNamed".to_owned(),
            message: format!("pod {} would go with it, and was not named", pod.name),
        });
    }
    Ok(groups.into_keys().map(str::to_owned).collect())
}

#[async_trait]
impl Capacity for WorkersCapacity {
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
        let workers = template_of(pool)?;
        let copies = self.read(workers).await?;
        if copies.nodes() != from || to <= from {
            return Err(CapacityError::moved(pool, from, copies.nodes()));
        }
        let (sets, names) = (self.sets(workers), self.names(workers).await?);
        let creations = copies.next(to - from, &names)?.into_iter().map(|copy| {
            let sets = &sets;
            async move {
                let parameters = PostParams::default();
                let created = sets.create(&parameters, &copy);
                match within("creation of a LeaderWorkerSet", created).await {
                    // Another call has made it, whose reply was lost or who leads now.
                    Err(error) if is_taken(&error) => Ok(()),
                    created => created.map(drop),
                }
            }
        });
        stream::iter(creations).buffered(CREATIONS_AT_A_TIME).try_collect().await
    }

    async fn terminate(&self, pool: &Pool, instances: &[InstanceId]) -> Result<(), CapacityError> {
        let workers = template_of(pool)?;
        let pods = self.pods_of_groups(workers, instances).await?;
        let names = sets_to_delete(&pods, instances)?;
        if names.is_empty() {
            return Ok(());
        }
        let (copies, sets) = (self.read_some(workers, &names).await?, self.sets(workers));
        for name in names {
            let Some(uid) = copies.uid_of(&name) else { continue };
            // In the foreground: the name is free again only once its pods are gone.
            let parameters = DeleteParams {
                propagation_policy: Some(PropagationPolicy::Foreground),
                ..DeleteParams::default()
            };
            let parameters = parameters.preconditions(kube::api::Preconditions {
                uid: Some(uid.to_owned()),
                resource_version: None,
            });
            match within("deletion of a LeaderWorkerSet", sets.delete(&name, &parameters)).await {
                Err(error) if is_absent(&error) => {}
                deleted => drop(deleted?),
            }
        }
        Ok(())
    }
}
