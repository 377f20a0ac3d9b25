//! When tokens are too old, and who may take which unit.
//!
//! The lag of a token is the current policy version minus the version that made it, and never
//! negative. The Lua scripts in `queue/lua` state the same rules; the contract tests hold the two
//! together.

use crate::ids::PolicyVersion;
use crate::work::ResumePolicy;

/// Policy versions between the tokens and now; 0 for tokens made under newer weights.
pub fn lag(current: PolicyVersion, made_under: PolicyVersion) -> u64 {
    current.0.saturating_sub(made_under.0)
}

/// The staleness terms of one prompt group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StalenessTerms {
    /// The bound L.
    pub max_lag: u16,
    /// What happens to partials.
    pub resume_policy: ResumePolicy,
    /// Oldest weights that may start the group.
    pub min_policy_version: PolicyVersion,
}

/// The weight versions of the tokens that a unit already has; versions never fall along them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartialVersions {
    /// Weights of the first token.
    pub first: PolicyVersion,
    /// Weights of the last token.
    pub last: PolicyVersion,
}

/// What to do with a ready unit when a worker asks for work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// This worker may take it.
    Grant,
    /// Not this worker; others still see it.
    Skip,
    /// Nobody may: its tokens are too old for good, the slot becomes EXPIRED.
    Expire,
    /// Drop its tokens, then it is fresh and only for workers at the current version.
    Restart,
}

impl StalenessTerms {
    /// Whether tokens whose first span was made under `first` are too old at `current`.
    pub fn is_stale(self, first: PolicyVersion, current: PolicyVersion) -> bool {
        self.resume_policy != ResumePolicy::MaskOld && lag(current, first) > u64::from(self.max_lag)
    }

    /// Whether a worker at `worker` may start a unit that has no tokens.
    ///
    /// When the unit was enqueued plays no part. `is_restarted`: its tokens were dropped because
    /// the version rose, so only the current version will do.
    pub fn admit_fresh(
        self,
        worker: PolicyVersion,
        current: PolicyVersion,
        is_restarted: bool,
    ) -> Admission {
        let fresh_enough = lag(current, worker) <= u64::from(self.max_lag);
        let current_enough = !is_restarted || worker >= current;
        if worker >= self.min_policy_version && fresh_enough && current_enough {
            Admission::Grant
        } else {
            Admission::Skip
        }
    }

    /// Whether a worker at `worker` may go on with a unit that has tokens.
    pub fn admit_resume(
        self,
        partial: PartialVersions,
        worker: PolicyVersion,
        current: PolicyVersion,
    ) -> Admission {
        if self.resume_policy == ResumePolicy::RestartIfNewer && current > partial.last {
            return Admission::Restart;
        }
        if self.is_stale(partial.first, current) {
            return Admission::Expire;
        }
        let fresh_enough = lag(current, worker) <= u64::from(self.max_lag);
        if worker >= partial.last && fresh_enough { Admission::Grant } else { Admission::Skip }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms(max_lag: u16, resume_policy: ResumePolicy) -> StalenessTerms {
        StalenessTerms { max_lag, resume_policy, min_policy_version: PolicyVersion(0) }
    }

    fn partial(first: u64, last: u64) -> PartialVersions {
        PartialVersions { first: PolicyVersion(first), last: PolicyVersion(last) }
    }

    #[test]
    fn lag_is_never_negative() {
        assert_eq!(lag(PolicyVersion(3), PolicyVersion(7)), 0);
    }

    #[test]
    fn strictly_on_policy_takes_only_the_current_version() {
        let terms = terms(0, ResumePolicy::ContinueMixed);
        let admit = |worker| terms.admit_fresh(PolicyVersion(worker), PolicyVersion(5), false);
        assert_eq!(admit(4), Admission::Skip);
        assert_eq!(admit(5), Admission::Grant);
        assert_eq!(admit(6), Admission::Grant);
    }

    #[test]
    fn resume_follows_the_policy() {
        use Admission::{Expire, Grant, Restart, Skip};
        use ResumePolicy::{ContinueMixed, MaskOld, RestartIfNewer};
        // policy, first, last, worker, current, expected; L = 2
        let table = [
            (ContinueMixed, 3, 4, 4, 5, Grant),
            (ContinueMixed, 3, 4, 3, 5, Skip),
            (ContinueMixed, 2, 4, 5, 5, Expire),
            (MaskOld, 0, 4, 5, 5, Grant),
            (MaskOld, 0, 2, 2, 5, Skip),
            (RestartIfNewer, 4, 4, 5, 5, Restart),
            (RestartIfNewer, 5, 5, 5, 5, Grant),
        ];
        for (policy, first, last, worker, current, expected) in table {
            let admission = terms(2, policy).admit_resume(
                partial(first, last),
                PolicyVersion(worker),
                PolicyVersion(current),
            );
            assert_eq!(admission, expected, "{policy:?} {first} {last} {worker} {current}");
        }
    }

    #[test]
    fn restarted_unit_waits_for_the_current_version() {
        let terms = terms(4, ResumePolicy::RestartIfNewer);
        let admit = |worker| terms.admit_fresh(PolicyVersion(worker), PolicyVersion(5), true);
        assert_eq!(admit(4), Admission::Skip);
        assert_eq!(admit(5), Admission::Grant);
    }
}
