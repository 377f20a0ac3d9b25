//! A world in which everything was granted and nothing is over yet.

use crate::ids::ReplicaId;
use crate::observation::{
    DrainPurpose, DrainStage, InstanceId, InstanceState, PoolSize, ReplicaState, Signal,
};
use crate::policy::PoolName;
use crate::scale::tests::world::{World, pool_name};
use crate::scale::{Action, ActionResult, ScalePlan};

impl World {
    /// Lets all be granted, and nothing be over yet: what was ordered has not come, and who was
    /// asked has not drained.
    pub(super) fn grant(&mut self, plan: &ScalePlan) {
        for action in &plan.actions {
            self.memory.note_outcome(action, ActionResult::Done);
            match action {
                Action::Raise { pool, to, .. } => self.size_of(pool.as_str()).desired = *to,
                Action::RequestDrain { replica, .. } => {
                    let stage = DrainStage::Requested;
                    self.set_drain(replica.as_str(), DrainPurpose::Sizing, stage);
                }
                Action::CancelDrain { replica, .. } => {
                    let replica = self.replica_mut(replica.as_str());
                    (replica.drain, replica.state) = (None, ReplicaState::Ready);
                }
                Action::Retire { pool, instances, replica, .. } => {
                    let stage = DrainStage::Terminating;
                    self.set_drain(replica.as_str(), DrainPurpose::Sizing, stage);
                    self.begin_to_end(pool.as_str(), instances);
                }
                Action::Discard { pool, instances } => self.begin_to_end(pool.as_str(), instances),
                Action::Forget { replica, nodes, ends_drain } => {
                    let view = self.replica_mut(replica.as_str());
                    view.nodes.retain(|node| !nodes.contains(&node.name));
                    if *ends_drain {
                        view.drain = None;
                    }
                    let is_gone = view.nodes.is_empty();
                    let mut replicas = self.replicas().to_vec();
                    replicas.retain(|view| !(is_gone && view.id == *replica));
                    self.seen.replicas = Signal::fresh(replicas);
                }
            }
        }
    }

    fn size_of(&mut self, name: &str) -> &mut PoolSize {
        let pools = &self.seen.pools;
        let place = pools.iter().position(|pool| pool.name == pool_name(name)).expect("exists");
        self.size_mut(place)
    }

    fn begin_to_end(&mut self, pool: &str, instances: &[InstanceId]) {
        let size = self.size_of(pool);
        for instance in size.instances.iter_mut().filter(|one| instances.contains(&one.id)) {
            instance.state = InstanceState::Terminating;
        }
        size.desired = size.desired.saturating_sub(u32::try_from(instances.len()).expect("few"));
    }
}

/// Whom an action is about, when that is a replica.
pub(super) fn replica_of(action: &Action) -> Option<&ReplicaId> {
    match action {
        Action::CancelDrain { replica, .. }
        | Action::RequestDrain { replica, .. }
        | Action::Retire { replica, .. }
        | Action::Forget { replica, .. } => Some(replica),
        Action::Raise { .. } | Action::Discard { .. } => None,
    }
}

/// Whether a plan terminates anything in a pool.
pub(super) fn ends_in(plan: &ScalePlan, name: &PoolName) -> bool {
    let ends = |action: &Action| match action {
        Action::Retire { pool, .. } | Action::Discard { pool, .. } => pool == name,
        _ => false,
    };
    plan.actions.iter().any(ends)
}
