//! The trainer, by its own word, and the size that it is asked for.

use std::time::Duration;

use ebbtide_core::ids::NodeName;
use ebbtide_core::observation::{
    InstanceId, ReleasedNode, ResizeView, Signal, TrainerPhase, TrainerView,
};
use ebbtide_queue::control::ControlView;

use super::replicas::is_reclaimed;

/// A trainer that has been silent for longer is unknown. It reports every few seconds, and a
/// checkpoint may keep it for a while.
const TRAINER_SILENCE_LIMIT: Duration = Duration::from_secs(30);

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
    let value = TrainerView { phase, step: record.step, groups_per_step, nodes: record.nodes };
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
        }
    };
    Some(ResizeView {
        size: record.size?,
        generation: record.generation,
        asked_for: record.requested_at.map_or(Duration::ZERO, |at| view.now.since(at)),
        is_confirmed: record.is_confirmed(),
        released: record.released.0.iter().map(released).collect(),
    })
}
