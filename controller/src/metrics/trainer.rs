//! The trainer's size.

use ebbtide_core::scale::TrainerAction;
use prometheus::{GaugeVec, IntCounterVec, Opts};

use super::Maker;

#[derive(Clone)]
pub(crate) struct TrainerMetrics {
    nodes: GaugeVec,
    steps: IntCounterVec,
}

impl TrainerMetrics {
    pub(super) fn new(make: &Maker<'_>) -> prometheus::Result<Self> {
        Ok(Self {
            nodes: make.add(GaugeVec::new(
                opts(
                    "trainer_nodes",
                "Nodes of the trainer: those that it runs on by its own word, and those that it is \
                 asked to run on; NaN when unknown, or while it is asked for nothing.",
                ),
                &["kind"],
            ))?,
            steps: make.add(IntCounterVec::new(
                opts(
                    "trainer_resize_steps_total",
                    "Steps of resizes of the trainer that were carried out.",
                ),
                &["step"],
            ))?,
        })
    }

    /// Shows its size, what it is asked for, and counts a step that was `done`.
    pub(crate) fn show(
        &self,
        nodes: Option<u32>,
        asked: Option<u32>,
        done: Option<&TrainerAction>,
    ) {
        for (kind, nodes) in [("running", nodes), ("asked", asked)] {
            let nodes = nodes.map_or(f64::NAN, f64::from);
            self.nodes.with_label_values(&[kind]).set(nodes);
        }
        if let Some(action) = done {
            self.steps.with_label_values(&[action.kind()]).inc();
        }
    }
}

fn opts(name: &str, help: &str) -> Opts {
    Opts::new(format!("ebbtide_{name}"), help).const_label("role", "trainer")
}
