//! What the API server means when it refuses an eviction.

use kube::core::Status;
use thiserror::Error;

/// Text of the 500 for a pod that several budgets cover: the eviction subresource cannot serve it.
const SEVERAL_BUDGETS: &str = "more than one PodDisruptionBudget";

/// Reason of the cause that names the budget in a 429.
const BUDGET_CAUSE: &str = "DisruptionBudget";

/// A cause's message begins so, then comes the budget's name.
const BUDGET_PREFIX: &str = "The disruption budget ";

/// Texts of the 409 for a pod whose name another one has by now, of a deletion and an eviction.
const OTHER_UID: [&str; 2] = ["UID in precondition", "the UID in the precondition"];

/// Why a pod was not made to leave.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum EvictionError {
    /// A disruption budget, or the server's own limit, does not allow it now.
    #[error("eviction not allowed: {problem}")]
    Blocked {
        /// The budget, when the server names one.
        budget: Option<String>,
        /// What the server said.
        problem: String,
    },
    /// The server is away, hangs, or refuses for another reason.
    #[error("{problem}")]
    Failed {
        /// What went wrong.
        problem: String,
    },
}

/// How an answer that is no success is to be taken.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The pod that was meant does not exist any more.
    Gone,
    /// It is still there.
    Error(EvictionError),
}

/// Reads the status of a refusal; `explained` is the same in words.
pub(super) fn read_refusal(status: &Status, explained: String) -> Refusal {
    let is_other = OTHER_UID.iter().any(|text| status.message.contains(text));
    let is_replaced = status.code == 409 && is_other;
    if status.code == 404 || is_replaced {
        return Refusal::Gone;
    }
    let has_several = status.code == 500 && status.message.contains(SEVERAL_BUDGETS);
    if status.code == 429 || has_several {
        let problem = budget_cause(status).map_or(explained, str::to_owned);
        return Refusal::Error(EvictionError::Blocked { budget: budget_name(status), problem });
    }
    Refusal::Error(EvictionError::Failed { problem: explained })
}

fn budget_cause(status: &Status) -> Option<&str> {
    let causes = status.details.as_ref().map(|details| details.causes.as_slice());
    let cause = causes?.iter().find(|cause| cause.reason == BUDGET_CAUSE)?;
    Some(&cause.message)
}

fn budget_name(status: &Status) -> Option<String> {
    let rest = budget_cause(status)?.strip_prefix(BUDGET_PREFIX)?;
    rest.split_whitespace().next().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(status: Value) -> Refusal {
        read_refusal(&serde_json::from_value(status).expect("a status"), "explained".to_owned())
    }

    #[test]
    fn refusal_of_a_budget_names_it() {
        let cause = "The disruption budget solid needs 1 healthy pods and has 1 currently";
        let refusal = read(json!({
            "code": 429,
            "reason": "TooManyRequests",
            "message": "Cannot evict pod as it would violate the pod's disruption budget.",
            "details": { "causes": [{ "reason": "DisruptionBudget", "message": cause }] },
        }));
        let (budget, problem) = (Some("solid".to_owned()), cause.to_owned());
        assert_eq!(refusal, Refusal::Error(EvictionError::Blocked { budget, problem }));
    }

    // Case 38.
    #[test]
    fn pod_under_several_budgets_is_blocked_and_any_other_500_is_a_failure() {
        let several = "This pod has more than one PodDisruptionBudget, which the eviction \
                       subresource does not support.";
        let blocked = read(json!({ "code": 500, "message": several }));
        assert!(matches!(blocked, Refusal::Error(EvictionError::Blocked { budget: None, .. })));
        let failed = read(json!({ "code": 500, "message": "etcdserver: request timed out" }));
        assert!(matches!(failed, Refusal::Error(EvictionError::Failed { .. })));
    }

    #[test]
    fn throttled_call_is_blocked_without_a_budget() {
        let throttled = read(json!({ "code": 429, "message": "Too many requests" }));
        let (budget, problem) = (None, "explained".to_owned());
        assert_eq!(throttled, Refusal::Error(EvictionError::Blocked { budget, problem }));
    }

    #[test]
    fn absent_and_replaced_pods_are_gone_and_another_conflict_is_not() {
        assert_eq!(read(json!({ "code": 404 })), Refusal::Gone);
        for replaced in [
            "Precondition failed: UID in precondition: a, UID in object meta: b",
            "Operation cannot be fulfilled on Pod \"p\": the UID in the precondition (a) does not \
             match the UID in record (b).",
        ] {
            assert_eq!(read(json!({ "code": 409, "message": replaced })), Refusal::Gone);
        }
        let modified = read(json!({ "code": 409, "message": "the object has been modified" }));
        assert!(matches!(modified, Refusal::Error(EvictionError::Failed { .. })));
    }
}
