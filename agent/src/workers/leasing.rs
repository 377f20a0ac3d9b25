//! From a grant of the queue to a grant in a worker's hands, each step under the lock.
//!
//! A unit is *admitted* when the queue has granted it and the lease gate is open at that moment,
//! and *delivered* when the answer is put together and the gate is still open. One that falls
//! between goes back unseen.

use std::sync::Arc;
use std::time::Duration;

use ebbtide_core::ids::PolicyVersion;
use ebbtide_core::sample::Chunk;
use ebbtide_core::staleness::{Admission, PartialVersions, StalenessTerms};
use ebbtide_queue::command::{HandBack, HandBackCause, Stage};
use ebbtide_queue::reply::Grant;
use tokio::time::Instant;

use super::unit::{Grants, HeldUnit, LeaseKey, Phase};
use super::{ANSWER_TOKENS_MAX, TooMany, UNITS_PER_WORKER, WorkerName, Workers};

/// For whom and on what terms work was asked for.
#[derive(Debug, Clone)]
pub(crate) struct LeaseCall {
    pub(crate) worker: WorkerName,
    pub(crate) stage: Stage,
    /// What makes the tokens.
    pub(crate) engine: String,
    /// Weights that the worker serves.
    pub(crate) version: PolicyVersion,
    /// Most units.
    pub(crate) limit: usize,
    /// Names the call, so that it can be repeated.
    pub(crate) request_id: Option<String>,
}

impl Workers {
    /// How many units the worker may be granted now.
    ///
    /// # Errors
    /// None at all, because of a limit.
    pub(crate) fn room(
        &mut self,
        worker: &WorkerName,
        forget_after: Duration,
        now: Instant,
    ) -> Result<usize, TooMany> {
        self.hear(worker, forget_after, now)?;
        let held = self.units.values().filter(|unit| unit.worker == *worker).count();
        match UNITS_PER_WORKER.saturating_sub(held) {
            0 => Err(TooMany::Units),
            room => Ok(room),
        }
    }

    /// What an earlier call of this name was granted, if it was: a repetition gets it again.
    pub(crate) fn granted_before(
        &self,
        worker: &WorkerName,
        request_id: Option<&str>,
    ) -> Option<Vec<LeaseKey>> {
        let (known, keys) = self.sessions.get(worker)?.last_lease.as_ref()?;
        (Some(known.as_str()) == request_id).then(|| keys.clone())
    }

    /// Takes in what the queue has granted. More than was asked for, or what this worker's weights
    /// may not take, was meant for an earlier call whose answer was lost: it goes back.
    pub(crate) fn admit(
        &mut self,
        grants: Vec<Grant>,
        call: &LeaseCall,
        run_version: PolicyVersion,
        now: Instant,
    ) -> Vec<LeaseKey> {
        let (mut keys, mut tokens) = (Vec::new(), 0);
        for grant in grants {
            let key = LeaseKey { unit: grant.unit.clone(), fencing_token: grant.fencing_token };
            let base = grant.partial.last().map_or(0, Chunk::end) as usize;
            let has_room =
                keys.len() < call.limit && (keys.is_empty() || tokens + base <= ANSWER_TOKENS_MAX);
            if !has_room || !may_take(&grant, call, run_version) {
                self.refuse(grant, call, HandBackCause::Engine.into(), now);
                continue;
            }
            tokens += base;
            self.counts.tokens_continued += base as u64;
            self.hold(grant, call, run_version, now);
            keys.push(key);
        }
        if let Some(id) = &call.request_id
            && !keys.is_empty()
            && let Some(session) = self.sessions.get_mut(&call.worker)
        {
            session.last_lease = Some((id.clone(), keys.clone()));
        }
        keys
    }

    /// Takes in a granted unit only to hand it back.
    pub(crate) fn refuse(&mut self, grant: Grant, call: &LeaseCall, why: HandBack, now: Instant) {
        let id = grant.unit.clone();
        self.hold(grant, call, PolicyVersion::default(), now);
        if let Some(unit) = self.units.get_mut(&id) {
            unit.phase = Phase::HandingBack(why);
            unit.grant = None;
        }
    }

    fn hold(&mut self, grant: Grant, call: &LeaseCall, run: PolicyVersion, now: Instant) {
        let id = grant.unit.clone();
        // Granted anew while it is held: the older lease ran out unnoticed.
        self.drop_lost(&id);
        self.counts.units_leased += 1;
        let (worker, engine) = (call.worker.clone(), call.engine.clone());
        let unit = HeldUnit::granted(grant, worker, call.stage, engine, (call.version, run), now);
        self.units.insert(id, unit);
    }

    /// Hands out what was admitted; with the gate closed nothing, and what the worker does not
    /// have yet goes back at once.
    ///
    /// # Errors
    /// The gate is closed.
    pub(crate) fn deliver(
        &mut self,
        worker: &WorkerName,
        keys: &[LeaseKey],
        closed_for: Option<HandBack>,
    ) -> Result<Grants, HandBack> {
        let mut grants = Vec::new();
        for key in keys {
            let Some(unit) = self.own_unit(worker, key) else { continue };
            let is_working = matches!(unit.phase, Phase::Working { .. });
            match (closed_for, &unit.grant) {
                (Some(why), Some(_)) if is_working && !unit.is_delivered => {
                    unit.phase = Phase::HandingBack(why);
                    unit.grant = None;
                }
                (None, Some(grant)) if is_working => {
                    grants.push(Arc::clone(grant));
                    unit.is_delivered = true;
                }
                _ => {}
            }
        }
        closed_for.map_or(Ok(grants), Err)
    }
}

/// Whether weights of this version may take the unit, by the rule that the queue applies as well.
fn may_take(grant: &Grant, call: &LeaseCall, current: PolicyVersion) -> bool {
    let group = &grant.group;
    let staleness = StalenessTerms {
        max_lag: group.max_lag,
        resume_policy: group.resume_policy,
        min_policy_version: group.min_policy_version,
    };
    let admission = match (call.stage, grant.partial.first(), grant.partial.last()) {
        (Stage::Reward, ..) => Admission::Grant,
        (_, Some(first), Some(last)) => {
            let partial =
                PartialVersions { first: first.weight_version, last: last.weight_version };
            staleness.admit_resume(partial, call.version, current)
        }
        // Whether it was restarted is known to the queue alone.
        _ => staleness.admit_fresh(call.version, current, false),
    };
    admission == Admission::Grant
}
