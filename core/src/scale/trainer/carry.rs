//! What follows from a request: how long it is waited for, and what is done once the trainer has
//! confirmed it.
//!
//! Nodes that the trainer named make it a request to give up nodes, whatever its size was; without
//! names it is one to grow.

use super::{
    CARRY_LIMIT, CONFIRM_LIMIT, Look, RAISE_EVERY, TrainerAction, TrainerMemory, TrainerReason,
};
use crate::ids::NodeName;
use crate::observation::{
    InstanceId, InstanceView, PoolSize, ReleasedNode, ResizeEnd, ResizeView, TrainerPhase,
};

impl Look<'_> {
    /// A request that the trainer has not confirmed.
    pub(super) fn wait_for(
        &self,
        resize: &ResizeView,
        nodes: u32,
        memory: &TrainerMemory,
        reasons: &mut Vec<TrainerReason>,
    ) -> Option<TrainerAction> {
        // Its pool must be as large: nodes that it left without a word of it would stay for ever.
        let is_done = nodes == resize.size && self.desired() == Some(resize.size);
        let how = if is_done {
            ResizeEnd::Done
        } else if self.has_ended() {
            ResizeEnd::RunEnded
        } else if memory.overtaken == Some(resize.generation) {
            ResizeEnd::TakenBack
        } else if !self.is_legal(resize.size) {
            ResizeEnd::NotLegal
        } else if resize.size > nodes && self.is_paid(resize.size) == Some(false) {
            ResizeEnd::TooDear
        } else if resize.asked_for >= CONFIRM_LIMIT {
            ResizeEnd::NotConfirmed
        } else {
            let (size, waited) = (resize.size, resize.asked_for);
            reasons.push(TrainerReason::Asked { size, waited, limit: CONFIRM_LIMIT });
            return None;
        };
        Some(resize.end(how, Vec::new()))
    }

    /// A request that the trainer has confirmed.
    pub(super) fn carry_out(
        &self,
        resize: &ResizeView,
        nodes: u32,
        memory: &TrainerMemory,
        reasons: &mut Vec<TrainerReason>,
    ) -> Option<TrainerAction> {
        if self.observation.trainer_pool.is_none() {
            return Some(resize.end(ResizeEnd::NotLegal, Vec::new()));
        }
        let size = self.pool_size(reasons)?;
        if resize.released.is_empty() {
            self.grow(resize, (nodes, size), memory, reasons)
        } else {
            self.release(resize, (nodes, size), reasons)
        }
    }

    fn grow(
        &self,
        resize: &ResizeView,
        (nodes, size): (u32, &PoolSize),
        memory: &TrainerMemory,
        reasons: &mut Vec<TrainerReason>,
    ) -> Option<TrainerAction> {
        let (to, now) = (resize.size, self.observation.now);
        let is_there = size.desired >= to;
        let is_paid = if is_there { Some(true) } else { self.is_paid(to) };
        let is_late = resize.asked_for >= CARRY_LIMIT;
        let how = if nodes == to && is_there {
            ResizeEnd::Done
        } else if self.has_ended() {
            ResizeEnd::RunEnded
        } else if nodes > to {
            // It has left nothing.
            return is_late.then(|| resize.end(ResizeEnd::TakenBack, Vec::new()));
        } else if !self.is_legal(to) {
            ResizeEnd::NotLegal
        } else if is_paid == Some(false) {
            ResizeEnd::TooDear
        } else if is_late {
            ResizeEnd::NotTaken
        } else if is_paid.is_none() {
            reasons.push(TrainerReason::PriceUnknown { to });
            return None;
        } else {
            let pool = self.terms.trainer.as_ref()?.pool.clone();
            if !is_there {
                let tried = memory.raised_at.is_some_and(|at| now.since(at) < RAISE_EVERY);
                let raise = TrainerAction::Raise { pool, from: size.desired, to };
                return (!tried).then_some(raise);
            }
            let serve = size.count();
            reasons.push(if serve < to {
                TrainerReason::Filling { pool, observed: serve, desired: to }
            } else {
                TrainerReason::NotTaken { size: to, nodes }
            });
            return None;
        };
        Some(resize.end(how, Vec::new()))
    }

    /// The trainer has left nodes, and these go.
    fn release(
        &self,
        resize: &ResizeView,
        (nodes, size): (u32, &PoolSize),
        reasons: &mut Vec<TrainerReason>,
    ) -> Option<TrainerAction> {
        let shown = |node: &&ReleasedNode| size.instances.iter().any(|it| is_it(it, node));
        let (shown, hidden): (Vec<_>, Vec<_>) = resize.released.iter().partition(shown);
        let gone = hidden.iter().filter(|node| node.is_trainers).map(|node| node.name.clone());
        let gone: Vec<NodeName> = gone.collect();
        // Nodes that have gone are no surplus; names that nobody knows may be anybody's.
        let unknown = hidden.iter().filter(|node| !node.is_trainers).map(|node| &node.name);
        let unknown: Vec<NodeName> =
            unknown.filter(|_| size.desired > resize.size).cloned().collect();
        let how = if nodes > resize.size {
            Some(ResizeEnd::TakenBack)
        } else if shown.is_empty() {
            Some(if unknown.is_empty() { ResizeEnd::Done } else { ResizeEnd::NotInPool })
        } else if resize.has_restarted {
            Some(ResizeEnd::TakenBack)
        } else if self.has_ended() {
            Some(ResizeEnd::RunEnded)
        } else {
            (resize.asked_for >= CARRY_LIMIT).then_some(ResizeEnd::NotReleased)
        };
        if !unknown.is_empty() {
            reasons.push(TrainerReason::NotInPool { names: unknown });
        }
        match how {
            Some(how) => Some(resize.end(how, gone)),
            None => self.terminate(resize, (nodes, size), reasons),
        }
    }

    fn terminate(
        &self,
        resize: &ResizeView,
        (nodes, size): (u32, &PoolSize),
        reasons: &mut Vec<TrainerReason>,
    ) -> Option<TrainerAction> {
        let left = |it: &InstanceView| resize.released.iter().find(|node| is_it(it, node));
        let counted: Vec<&InstanceView> = size.counted().filter(|it| left(it).is_some()).collect();
        let ours = counted.iter().filter(|it| left(it).is_some_and(|node| !node.has_notice));
        let instances: Vec<InstanceId> = ours.map(|instance| instance.id.clone()).collect();
        if instances.is_empty() {
            return None;
        }
        let (released, stay) = (whole(counted.len()), size.count() - whole(counted.len()));
        let desired = size.desired.saturating_sub(whole(instances.len()));
        if stay < nodes {
            reasons.push(TrainerReason::TooManyReleased { released, stay, nodes });
        } else if desired < size.floor {
            reasons.push(TrainerReason::PoolBound { to: desired, bound: size.floor });
        } else {
            let pool = self.terms.trainer.as_ref()?.pool.clone();
            let generation = resize.generation;
            return Some(TrainerAction::Release { generation, pool, instances });
        }
        None
    }

    fn has_ended(&self) -> bool {
        let trainer = self.observation.trainer.known();
        trainer.is_some_and(|trainer| trainer.phase == TrainerPhase::Done)
    }

    /// Nodes that the trainer's pool is asked for; `None` when unknown.
    fn desired(&self) -> Option<u32> {
        super::asked_of(self.observation)
    }
}

impl ResizeView {
    fn end(&self, how: ResizeEnd, gone: Vec<NodeName>) -> TrainerAction {
        TrainerAction::End { generation: self.generation, size: self.size, how, gone }
    }
}

/// Whether an instance is this node: by its name, or by its agent's word while the pool does not
/// tell.
fn is_it(instance: &InstanceView, node: &ReleasedNode) -> bool {
    match &instance.node {
        Some(name) => *name == node.name,
        None => node.instance.as_ref() == Some(&instance.id),
    }
}

fn whole(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
