//! Events of the cloud as they come through a queue: what the body of a message says.
//!
//! Bodies come from outside and may be anything: reading never panics and never guesses. One event
//! reaches the queue in several shapes (by EventBridge, straight from Auto Scaling, through SNS)
//! and more than once; every copy has the same [`Event::id`].

mod health;
mod shapes;
#[cfg(test)]
mod tests;

pub use self::shapes::parse_event;
use crate::observation::InstanceId;
use crate::time::UnixMillis;

/// One event, understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Names the event, in letters, digits, `_` and `-`; every copy carries the same name.
    pub id: String,
    /// When it was sent, on AWS's clock; `None` when the body does not say.
    pub sent_at: Option<UnixMillis>,
    /// What has happened.
    pub happening: Happening,
}

/// What has happened, or is going to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Happening {
    /// EC2 takes the Spot instance.
    SpotInterruption {
        /// The instance.
        instance: InstanceId,
        /// What becomes of it.
        action: InterruptionAction,
    },
    /// EC2 takes an instance that runs in a capacity reservation which others may interrupt.
    ReservationInterruption {
        /// The instance.
        instance: InstanceId,
        /// What becomes of it.
        action: InterruptionAction,
    },
    /// The risk of an interruption has risen.
    Rebalance {
        /// The instance.
        instance: InstanceId,
    },
    /// The instance has reached a state.
    StateChange {
        /// The instance.
        instance: InstanceId,
        /// The state.
        state: MachineState,
    },
    /// An Auto Scaling group waits before it takes an instance in or out.
    Lifecycle(LifecycleAction),
    /// Auto Scaling tried whether the queue can be reached.
    TestNotification,
    /// EC2 has scheduled a change of some instances.
    Maintenance(Maintenance),
    /// Anything else that AWS Health tells; no instance is to be left.
    OtherHealth,
}

/// What becomes of an instance that is interrupted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InterruptionAction {
    /// It is terminated.
    Terminate,
    /// It is stopped.
    Stop,
    /// It is hibernated, beginning at once.
    Hibernate,
}

/// The state of an instance, by EC2's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MachineState {
    /// It is being launched.
    Pending,
    /// It runs.
    Running,
    /// It is being stopped.
    Stopping,
    /// It is stopped.
    Stopped,
    /// It is being terminated.
    ShuttingDown,
    /// It is terminated.
    Terminated,
}

impl MachineState {
    /// Whether nothing can be handed back from the instance any more.
    pub fn is_leaving(self) -> bool {
        !matches!(self, Self::Pending | Self::Running)
    }
}

/// What a lifecycle hook waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LifecycleAction {
    /// The instance.
    pub instance: InstanceId,
    /// Its Auto Scaling group.
    pub group: String,
    /// The hook.
    pub hook: String,
    /// Names the action; not every shape has it.
    pub token: Option<String>,
    /// Which way the instance goes.
    pub transition: Transition,
}

/// Which way an instance goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transition {
    /// Into the group.
    Launching,
    /// Out of it.
    Terminating,
}

/// A change of instances that EC2 has scheduled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Maintenance {
    /// When it begins, on AWS's clock.
    pub starts_at: UnixMillis,
    /// When it ends, if the message says so.
    pub ends_at: Option<UnixMillis>,
    /// Whether AWS gives the instances up because their hardware is degraded.
    pub is_retirement: bool,
    /// The instances, each once.
    pub instances: Vec<InstanceId>,
}

/// The kind of an event; the closed set of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EventKind {
    /// A Spot instance is terminated.
    SpotTerminate,
    /// A Spot instance is stopped.
    SpotStop,
    /// A Spot instance is hibernated.
    SpotHibernate,
    /// An instance of a capacity reservation is taken.
    Reservation,
    /// A rebalance recommendation.
    Rebalance,
    /// A change of state.
    StateChange,
    /// A group takes an instance out.
    LifecycleTerminate,
    /// A group takes an instance in.
    LifecycleLaunch,
    /// A test of the queue.
    Test,
    /// A scheduled change.
    Maintenance,
    /// Any other word of AWS Health.
    OtherHealth,
}

impl EventKind {
    /// All kinds, for metrics.
    pub const ALL: [Self; 11] = [
        Self::SpotTerminate,
        Self::SpotStop,
        Self::SpotHibernate,
        Self::Reservation,
        Self::Rebalance,
        Self::StateChange,
        Self::LifecycleTerminate,
        Self::LifecycleLaunch,
        Self::Test,
        Self::Maintenance,
        Self::OtherHealth,
    ];

    /// The word in metrics, logs and the names of drain requests.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::SpotTerminate => "spot_terminate",
            Self::SpotStop => "spot_stop",
            Self::SpotHibernate => "spot_hibernate",
            Self::Reservation => "reservation",
            Self::Rebalance => "rebalance",
            Self::StateChange => "state_change",
            Self::LifecycleTerminate => "lifecycle_terminate",
            Self::LifecycleLaunch => "lifecycle_launch",
            Self::Test => "test",
            Self::Maintenance => "maintenance",
            Self::OtherHealth => "other_health",
        }
    }
}

impl Event {
    /// What kind of event it is.
    pub fn kind(&self) -> EventKind {
        match &self.happening {
            Happening::SpotInterruption { action, .. } => match action {
                InterruptionAction::Terminate => EventKind::SpotTerminate,
                InterruptionAction::Stop => EventKind::SpotStop,
                InterruptionAction::Hibernate => EventKind::SpotHibernate,
            },
            Happening::ReservationInterruption { .. } => EventKind::Reservation,
            Happening::Rebalance { .. } => EventKind::Rebalance,
            Happening::StateChange { .. } => EventKind::StateChange,
            Happening::Lifecycle(action) => match action.transition {
                Transition::Launching => EventKind::LifecycleLaunch,
                Transition::Terminating => EventKind::LifecycleTerminate,
            },
            Happening::TestNotification => EventKind::Test,
            Happening::Maintenance(_) => EventKind::Maintenance,
            Happening::OtherHealth => EventKind::OtherHealth,
        }
    }

    /// The instances that it is about.
    pub fn instances(&self) -> &[InstanceId] {
        match &self.happening {
            Happening::SpotInterruption { instance, .. }
            | Happening::ReservationInterruption { instance, .. }
            | Happening::Rebalance { instance }
            | Happening::StateChange { instance, .. }
            | Happening::Lifecycle(LifecycleAction { instance, .. }) => {
                std::slice::from_ref(instance)
            }
            Happening::Maintenance(maintenance) => &maintenance.instances,
            Happening::TestNotification | Happening::OtherHealth => &[],
        }
    }
}
