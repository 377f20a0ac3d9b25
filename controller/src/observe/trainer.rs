//! The trainer, by its own word, and the size that it is asked for.

use std::time::Duration;

use ebbtide_core::ids::NodeName;
use ebbtide_core::observation::{
    EndedResize, InstanceId, ReleasedNode, ResizeEnd, ResizeView, Signal, TrainerPhase, TrainerView,
};
use ebbtide_queue::control::{ControlView, NodeRole};

use super::replicas::is_reclaimed;

/// A trainer that has been silent for longer is unknown. It reports every few seconds, and a
/// checkpoint may keep it for a while.
pub(crate) const TRAINER_SILENCE_LIMIT: Duration = Duration::from_secs(30);

/// What the trainer says about itself, while it is heard.
pub(super) fn signal(view: &ControlView) -> Signal<TrainerView> {
    let Some(record) = &view.trainer else {
        return Signal::unknown("no trainer has reported");
    };
    let age = view.now.since(record.heartbeat);
    let phase = record.phase;
    // A run that has ended stays ended, whether or not its trainer still reports.
    if age > TRAINER_SILENCE_LIMIT && phase != TrainerPhase::Done {
        let (age, limit) = (age.as_secs(), TRAINER_SILENCE_LIMIT.as_secs());
        return Signal::unknown(format!("its heartbeat is {age}s old, at most {limit}s count"));
    }
    let groups_per_step = record.groups_per_step;
    let nodes = record.nodes.filter(|nodes| *nodes > 0);
    let value = TrainerView { phase, step: record.step, groups_per_step, nodes };
    Signal::Known { value, age }
}

/// The size that the trainer is asked for, if it is.
pub(super) fn resize(view: &ControlView) -> Option<ResizeView> {
    let record = &view.resize;
    let released = |name: &NodeName| {
        let node = view.nodes.iter().find(|node| node.node == *name);
        let drain = |replica| view.active_drain(replica);
        ReleasedNode {
            name: name.clone(),
            instance: node.and_then(|node| node.instance_id.clone()).map(InstanceId),
            has_notice: node.is_some_and(|node| is_reclaimed(node, drain(&node.replica))),
            is_trainers: node.is_some_and(|node| node.role == NodeRole::Trainer),
        }
    };
    let reports = view.trainer.as_ref().and_then(|trainer| trainer.incarnation.as_ref());
    Some(ResizeView {
        size: record.size?,
        generation: record.generation,
        asked_for: record.requested_at.map_or(Duration::ZERO, |at| view.now.since(at)),
        is_confirmed: record.is_confirmed(),
        has_restarted: record.is_confirmed() && record.confirmed_by.as_ref() != reports,
        released: record.released.0.iter().map(released).collect(),
    })
}

/// How the last request ended, while none stands.
pub(super) fn ended(view: &ControlView) -> Option<EndedResize> {
    let record = &view.resize;
    let how = ResizeEnd::of_word(record.end.as_deref()?)?;
    let ago = view.now.since(record.ended_at?).min(EndedResize::AGO_MAX);
    Some(EndedResize { how, ago })
}
