//! The marks on Kubernetes nodes on which agents and controller agree.

/// The taint on a node that is going away; its value is the reason, its effect `NoSchedule`.
pub const INTERRUPTION_TAINT: &str = "ebbtide.dev/interruption";

/// The annotation that remembers that the cordon is ours; an administrator's stays.
pub const CORDON_ANNOTATION: &str = "ebbtide.dev/cordoned";
