//! One held unit: how it is admitted, and the phases that it goes through.

use std::sync::Arc;

use ebbtide_core::fabric::FabricVerdict;
use ebbtide_core::ids::{FencingToken, Holder, PolicyVersion, UnitId};
use ebbtide_core::sample::{Chunk, Finish, FinishReason, Origin, StopReason};
use ebbtide_core::time::UnixMillis;
use ebbtide_core::work::{PromptGroup, Sampling};
use ebbtide_queue::command::{HandBack, HandBackCause, Then};
use ebbtide_queue::reply::Grant;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::speed::SpeedMeter;
use super::tail::Tail;
use super::{Leave, Ledger, OpenStream};
use crate::engine::{GenerateCall, RequestId};

/// How far a held unit is.
#[derive(Debug)]
pub(super) enum Phase {
    /// The engine works on it.
    Streaming,
    /// It goes back as soon as its stream has ended.
    Leaving(Leave),
    /// The engine is done with it; this is to be written.
    Ended(Then),
}

/// A leased unit.
#[derive(Debug)]
pub(super) struct HeldUnit {
    pub(super) group: Arc<PromptGroup>,
    pub(super) fencing_token: FencingToken,
    pub(super) request: RequestId,
    pub(super) engine: usize,
    /// Tokens that it had when it was leased.
    pub(super) base: u32,
    /// The run's version when it was leased.
    pub(super) run_version: PolicyVersion,
    pub(super) tail: Tail,
    pub(super) meter: SpeedMeter,
    pub(super) phase: Phase,
    /// Its end was sent, and not answered yet.
    pub(super) is_end_sent: bool,
    /// Its place among those that leave with it.
    pub(super) rank: usize,
}

/// What a unit is admitted with.
#[derive(Debug, Clone)]
pub(crate) struct AdmissionTerms {
    /// Which engine will work on it.
    pub(crate) engine: usize,
    /// That engine's kind and version.
    pub(crate) engine_name: String,
    /// Names under which it serves its model.
    pub(crate) models: Vec<String>,
    /// Its weights.
    pub(crate) engine_version: PolicyVersion,
    /// The run's version.
    pub(crate) run_version: PolicyVersion,
    /// Who leased the unit.
    pub(crate) holder: Holder,
    /// The node's fabric verdict.
    pub(crate) fabric: FabricVerdict,
}

/// What has to be done for an admitted unit.
#[derive(Debug)]
pub(crate) enum Admission {
    /// The engine has to be called.
    Stream(Box<StreamJob>),
    /// It has ended already; the writer will say so.
    Ended,
    /// It goes back, as this engine does not serve its model; which are the two.
    WrongModel(String),
}

/// A stream to be opened.
#[derive(Debug)]
pub(crate) struct StreamJob {
    /// The call.
    pub(crate) call: GenerateCall,
    /// Whether it goes on from the tokens of an earlier holder.
    pub(crate) is_continued: bool,
    /// Cancelled when the stream must end whether the engine hears or not.
    pub(crate) cut: CancellationToken,
}

impl Ledger {
    /// Takes in a granted unit.
    ///
    /// A partial that is at its limit, or that ends with a stop token, is complete without a call;
    /// a unit for another model goes back, by no fault of its own.
    pub(crate) fn admit(
        &mut self,
        grant: Grant,
        terms: &AdmissionTerms,
        now: Instant,
    ) -> Admission {
        self.forget_older(&grant.unit, now);
        let base = grant.partial.last().map_or(0, Chunk::end);
        self.counts.units_leased += 1;
        self.counts.tokens_continued += u64::from(base);
        let request = RequestId::new(&grant.unit, grant.fencing_token);
        let finish = finish_of(&grant.group.sampling, &grant.partial);
        let wrong_model = wrong_model(&grant.group, &terms.models);
        let call = GenerateCall {
            request: request.clone(),
            token_ids: continuation(&grant),
            sampling: rest_of(&grant.group.sampling, base, grant.unit.slot),
        };
        let unit = grant.unit.clone();
        let mut held = hold(grant, terms, base, request.clone());
        if let Some(finish) = finish {
            held.phase = Phase::Ended(Then::Complete(finish));
            self.units.insert(unit, held);
            return Admission::Ended;
        }
        if let Some(why) = wrong_model {
            held.phase = Phase::Ended(Then::HandBack(HandBackCause::Engine.into()));
            self.units.insert(unit, held);
            return Admission::WrongModel(why);
        }
        self.units.insert(unit.clone(), held);
        let cut = CancellationToken::new();
        let stream = OpenStream {
            unit,
            engine: terms.engine,
            opened_at: now,
            has_begun: false,
            end_asked_at: None,
            cut: cut.clone(),
        };
        self.streams.insert(request, stream);
        Admission::Stream(Box::new(StreamJob { call, is_continued: base > 0, cut }))
    }

    /// Takes in a granted unit only to hand it back: the gate closed while it was being granted.
    pub(crate) fn refuse(
        &mut self,
        grant: Grant,
        terms: &AdmissionTerms,
        why: HandBack,
        now: Instant,
    ) {
        self.forget_older(&grant.unit, now);
        self.counts.units_leased += 1;
        let base = grant.partial.last().map_or(0, Chunk::end);
        let request = RequestId::new(&grant.unit, grant.fencing_token);
        let unit = grant.unit.clone();
        let mut held = hold(grant, terms, base, request);
        held.phase = Phase::Ended(Then::HandBack(why));
        self.units.insert(unit, held);
    }

    /// A unit that is granted anew while it is held: the older lease ran out unnoticed.
    fn forget_older(&mut self, unit: &UnitId, now: Instant) {
        if self.units.contains_key(unit) {
            self.counts.units_lost += 1;
            self.forget(unit, now);
        }
    }
}

fn hold(grant: Grant, terms: &AdmissionTerms, base: u32, request: RequestId) -> HeldUnit {
    let origin = Origin {
        holder: terms.holder.clone(),
        fencing_token: grant.fencing_token,
        engine: terms.engine_name.clone(),
        fabric: terms.fabric,
        started_at: UnixMillis::default(),
        ended_at: UnixMillis::default(),
    };
    HeldUnit {
        group: grant.group,
        fencing_token: grant.fencing_token,
        request,
        engine: terms.engine,
        base,
        run_version: terms.run_version,
        tail: Tail::new(origin, base, terms.engine_version),
        meter: SpeedMeter::default(),
        phase: Phase::Streaming,
        is_end_sent: false,
        rank: 0,
    }
}

/// The finish of a partial that needs no further token.
fn finish_of(sampling: &Sampling, partial: &[Chunk]) -> Option<Finish> {
    let last = partial.last()?;
    let stop = last.token_ids.last().filter(|id| sampling.stop_token_ids.contains(id));
    if let Some(id) = stop {
        let stop_reason = Some(StopReason::Token(*id));
        return Some(Finish { reason: FinishReason::Stop, stop_reason });
    }
    let is_full = last.end() >= sampling.max_tokens;
    is_full.then_some(Finish { reason: FinishReason::Length, stop_reason: None })
}

fn wrong_model(group: &PromptGroup, served: &[String]) -> Option<String> {
    let is_served = group.model_id.is_empty() || served.contains(&group.model_id);
    (!is_served).then(|| format!("unit needs model {}, engine serves {served:?}", group.model_id))
}

/// Prompt and stored tokens, as the new prompt.
fn continuation(grant: &Grant) -> Vec<i32> {
    let stored = grant.partial.iter().flat_map(|chunk| &chunk.token_ids);
    grant.group.prompt_token_ids.iter().chain(stored).copied().collect()
}

/// How to sample what is left; the slot is added to the seed, so that siblings differ.
fn rest_of(sampling: &Sampling, base: u32, slot: u16) -> Sampling {
    Sampling {
        max_tokens: sampling.max_tokens.saturating_sub(base),
        seed: sampling.seed.map(|seed| seed.wrapping_add(i64::from(slot))),
        ..sampling.clone()
    }
}
