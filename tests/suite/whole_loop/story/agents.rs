//! The agents of all nodes, in one task: each look takes in the cluster and the control keys, tends
//! every replica and writes a record for every node.

use std::collections::BTreeMap;

use anyhow::Context;
use ebbtide_core::ids::{Holder, NodeName, ReplicaId};
use ebbtide_core::time::UnixMillis;
use ebbtide_queue::control::{ControlView, NodeRecord, NodeState, TrainerPhase, TrainerRecord};
use futures::future::try_join_all;
use kube::Api;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::replica::{Held, Look, Orders};
use super::sight::Sight;
use super::{RUN, Site, Size};

/// What the agents saw and did up to their last look.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    pub sight: Sight,
    /// Units that each replica holds.
    pub held: BTreeMap<ReplicaId, usize>,
    /// Replicas that drain.
    pub drains: usize,
    /// Most copies that there were at a time, without those of the zone that has no capacity.
    pub most_copies: u32,
    /// What must never be.
    pub faults: Vec<String>,
}

impl Seen {
    /// All units that are held.
    pub fn units_held(&self) -> usize {
        self.held.values().sum()
    }
}

/// The agents; ended on drop.
pub struct Agents {
    orders: watch::Sender<Orders>,
    seen: watch::Receiver<Seen>,
    task: JoinHandle<()>,
}

impl Agents {
    /// Starts them.
    pub fn start(site: &Site<'_>, size: Size) -> Self {
        let (orders, told) = watch::channel(Orders::default());
        let (telling, seen) = watch::channel(Seen::default());
        let (client, queue) = (site.client.clone(), site.queue.clone());
        let task = tokio::spawn(async move {
            let mut held = BTreeMap::new();
            let mut looks = tokio::time::interval(size.agents_look_every);
            looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            while !telling.is_closed() {
                looks.tick().await;
                let orders = told.borrow().clone();
                let look = look(&client, &queue, &orders, size, &mut held);
                match look.await {
                    Ok((now, faults)) => telling.send_modify(|seen| seen.take(now, faults)),
                    Err(error) => {
                        telling.send_modify(|seen| seen.faults.push(format!("{error:#}")));
                    }
                }
            }
        });
        Self { orders, seen, task }
    }

    /// Changes what they are told.
    pub fn tell(&self, change: impl FnOnce(&mut Orders)) {
        self.orders.send_modify(change);
    }

    /// What they have seen last.
    pub fn seen(&self) -> Seen {
        self.seen.borrow().clone()
    }
}

impl Drop for Agents {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What one look brought.
struct Now {
    sight: Sight,
    held: BTreeMap<ReplicaId, usize>,
    drains: usize,
}

impl Seen {
    fn take(&mut self, now: Now, faults: Vec<String>) {
        let copies = now.sight.copies_of("spot") + now.sight.copies_of("on-demand");
        self.most_copies = self.most_copies.max(copies);
        (self.sight, self.held, self.drains) = (now.sight, now.held, now.drains);
        self.faults.extend(faults);
    }
}

async fn look(
    client: &kube::Client,
    queue: &ebbtide_queue::client::WorkQueue,
    orders: &Orders,
    size: Size,
    held: &mut BTreeMap<ReplicaId, Held>,
) -> anyhow::Result<(Now, Vec<String>)> {
    let sight = Sight::take(client).await?;
    let view = queue.view().await.context("the control keys")?;
    let pods = Api::namespaced(client.clone(), RUN);
    let version = view.version.version;
    let look = Look { queue, pods: &pods, orders, version };
    let nobody = super::sight::Group::default();
    let known: Vec<ReplicaId> = sight.groups.keys().chain(held.keys()).cloned().collect();
    let known: std::collections::BTreeSet<ReplicaId> = known.into_iter().collect();
    let tended = known.iter().map(|id| {
        let (group, drain) = (sight.groups.get(id).unwrap_or(&nobody), view.active_drain(id));
        let own = held.get(id).cloned();
        let look = &look;
        async move { look.tend(id, group, drain, own).await.map(|done| (id.clone(), done)) }
    });
    let mut faults = Vec::new();
    let tended = try_join_all(tended).await?;
    held.clear();
    for (id, (own, wrong)) in tended {
        faults.extend(wrong);
        if let Some(own) = own {
            held.insert(id, own);
        }
    }
    let records = records(&sight, &view, held);
    try_join_all(records.into_iter().map(|record| queue.put_node(record))).await?;
    queue
        .put_trainer(TrainerRecord {
            phase: TrainerPhase::Wait,
            step: orders.step,
            groups_per_step: size.groups_per_step(),
            nodes: None,
            incarnation: None,
            heartbeat: UnixMillis(0),
        })
        .await?;
    let drains = known.iter().filter(|id| view.active_drain(id).is_some()).count();
    let held = held.iter().map(|(id, held)| (id.clone(), held.units.len())).collect();
    Ok((Now { sight, held, drains }, faults))
}

/// One record for each node: of its group, or of its own while it has no engine's pod.
fn records(sight: &Sight, view: &ControlView, held: &BTreeMap<ReplicaId, Held>) -> Vec<NodeRecord> {
    let mut members = BTreeMap::new();
    for (id, group) in &sight.groups {
        members.extend(group.members.iter().map(|member| (&member.node, (id, group, member))));
    }
    let record = |(node, kind): (&NodeName, &String)| {
        let process = "agent-1".to_owned();
        let holder = Holder { node: node.clone(), boot_id: "boot".to_owned(), process };
        let alone = NodeRecord {
            instance_id: Some(node.to_string()),
            instance_type: Some(kind.clone()),
            weights_version: Some(view.version.version),
            ..NodeRecord::new(holder, NodeState::Starting)
        };
        let Some((id, group, member)) = members.get(node) else { return alone };
        let state = match (view.active_drain(id), group.is_whole()) {
            (Some(_), _) => NodeState::Drained,
            (None, true) => NodeState::Ready,
            (None, false) => NodeState::Starting,
        };
        let in_flight = held.get(id).filter(|_| member.leads).map_or(0, |held| held.units.len());
        NodeRecord {
            replica: (*id).clone(),
            state,
            in_flight: u32::try_from(in_flight).unwrap_or(u32::MAX),
            tokens_per_second: if member.leads { 100.0 } else { 0.0 },
            ..alone
        }
    };
    sight.nodes.iter().map(record).collect()
}
