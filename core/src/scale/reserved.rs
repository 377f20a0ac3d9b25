//! Pools whose nodes are reserved until a moment: Capacity Blocks and Capacity Reservations.
//!
//! | when | the pool |
//! |---|---|
//! | before its start | gets nothing: every launch would fail |
//! | until a start before it is left | is one as any other |
//! | from then on | gets nothing more, it would hardly work; what runs there is ordered elsewhere |
//! | when it is left | its replicas drain, all at once |
//!
//! It is left as long before the pool must be empty as a drain may take. By then its replicas have
//! their replacements, as far as others have room. A replica that has a notice is left to AWS, and
//! one that is silent would not answer.

use std::time::Duration;

use super::census::Census;
use super::leaving::SILENCE_LIMIT;
use super::plan::{Action, LeaveReason};
use super::reason::{CapacityReason, Reason};
use super::terms::{PoolTerms, SizingTerms};
use crate::observation::ReplicaView;
use crate::time::UnixMillis;

/// From a drained replica to instances that are on their way out: a few looks at the fleet, a call
/// that may have to be repeated, and the difference between two clocks.
const TERMINATION_TIME: Duration = Duration::from_mins(2);

/// How far a pool is in the time for which it is reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Tenure {
    /// It is as any other.
    #[default]
    Open,
    /// It is not there yet.
    NotBegun {
        /// Until it is.
        remaining: Duration,
    },
    /// What would be ordered now would be left before it works.
    Ending {
        /// When it is left.
        leave_at: UnixMillis,
        /// Until then; zero from then on.
        remaining: Duration,
    },
}

impl Tenure {
    /// How far the pool is at `now`. A pool that ends goes on to end, though starts turn out to be
    /// faster, unless it lasts longer than was said.
    #[must_use]
    pub fn advance(self, terms: &SizingTerms, pool: &PoolTerms, now: UnixMillis) -> Self {
        let Some(reservation) = &pool.reservation else { return Self::Open };
        if let Some(starts_at) = reservation.starts_at.filter(|starts_at| *starts_at > now) {
            return Self::NotBegun { remaining: starts_at.remaining(now) };
        }
        let leave_at = reservation.gone_by().minus(terms.drain_time + TERMINATION_TIME);
        let remaining = leave_at.remaining(now);
        let ends_already =
            matches!(self, Self::Ending { leave_at: before, .. } if before == leave_at);
        if ends_already || remaining <= terms.startup {
            return Self::Ending { leave_at, remaining };
        }
        Self::Open
    }

    /// Whether its replicas are not counted on any more.
    pub fn is_ending(self) -> bool {
        matches!(self, Self::Ending { .. })
    }
}

/// Drains what is in a pool that is left, and says which pools have not begun or end.
pub(super) fn leave_ending(
    census: &Census<'_>,
    actions: &mut Vec<Action>,
    reasons: &mut Vec<Reason>,
) {
    for pool in &census.pools {
        let Some(reservation) = &pool.terms.reservation else { continue };
        let (name, id) = (pool.terms.name.clone(), reservation.id.clone());
        let remaining = match pool.tenure {
            Tenure::Open => continue,
            Tenure::NotBegun { remaining } => {
                reasons.push(CapacityReason::NotReservedYet { pool: name, id, remaining }.into());
                continue;
            }
            Tenure::Ending { remaining, .. } => remaining,
        };
        reasons.push(CapacityReason::ReservationEnds { pool: name, id, remaining }.into());
        if remaining.is_zero() {
            let why = LeaveReason::ReservationEnds;
            let here = |replica: &&ReplicaView| replica.pool.as_ref() == Some(&pool.terms.name);
            let leaving = census.replicas.iter().filter(here).filter(|it| may_be_asked(it));
            actions.extend(leaving.map(|it| Action::RequestDrain { replica: it.id.clone(), why }));
        }
    }
}

fn may_be_asked(replica: &ReplicaView) -> bool {
    replica.drain.is_none() && !replica.has_notice && replica.silence() <= SILENCE_LIMIT
}
