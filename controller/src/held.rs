//! Why a plan is not carried out.

use ebbtide_core::policy::{FleetPolicy, Mode};
use ebbtide_core::scale::Action;
use ebbtide_queue::control::ControlView;

use crate::observe::Reads;

/// Why nothing is carried out.
pub(crate) struct Held {
    pub why: String,
    /// Whether records of what is gone may still be removed: that changes no capacity.
    spares_records: bool,
}

/// Why nothing is carried out for a worker group, by the word for it, if so.
pub(crate) fn why_held(
    leads: bool,
    policy: &FleetPolicy,
    reads: &Reads,
    role: &str,
) -> Option<Held> {
    if !leads {
        let why = "another controller leads".to_owned();
        return Some(Held { why, spares_records: false });
    }
    let why = match &reads.view {
        Ok(view) => hold_on(view, role),
        // An operator may have asked for one just now.
        Err(why) => Some(format!("nobody knows whether {role} is on hold: {why}")),
    };
    let is_observed = policy.mode == Mode::Observe;
    let why =
        why.or(is_observed.then(|| "mode is observe: plans are recommendations".to_owned()))?;
    Some(Held { why, spares_records: true })
}

/// What keeps this action from being carried out, if anything.
pub(crate) fn held_for<'a>(action: &Action, held: Option<&'a Held>) -> Option<&'a Held> {
    let is_record = matches!(action, Action::Forget { .. });
    held.filter(|held| !(is_record && held.spares_records))
}

fn hold_on(view: &ControlView, role: &str) -> Option<String> {
    let is_ours = |held: &str| held == role || held == "all";
    let hold = view.holds.iter().find(|hold| is_ours(&hold.role))?;
    Some(format!("{} is on hold until {} by {}: {}", hold.role, hold.until, hold.who, hold.reason))
}
