//! What the agents of one replica do at one look: they lease and write as real ones do, hand
//! everything back before they say that they are drained, and let a pod end only then.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::Context;
use ebbtide_core::fabric::FabricVerdict;
use ebbtide_core::ids::{FencingToken, Holder, PolicyVersion, ReplicaId, UnitId};
use ebbtide_core::sample::{Chunk, Finish, FinishReason, Origin};
use ebbtide_core::time::UnixMillis;
use ebbtide_queue::client::WorkQueue;
use ebbtide_queue::command::{HandBackCause, Then, UnitWrite};
use ebbtide_queue::control::NodeNames;
use ebbtide_queue::control::{DrainProgress, DrainReason, DrainRecord, DrainRequest, DrainState};
use ebbtide_queue::reply::{Grant, WriteReply};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, Preconditions};

use super::UNITS_PER_REPLICA;
use super::sight::{Group, Member};

/// Longer than a story: what is not handed back in time shows as lost, not as an expired lease.
const LEASE: Duration = Duration::from_hours(1);

/// Tokens of each response, one for each look.
pub const TOKENS: u32 = 2;

/// Groups with such names stay unfinished until they may end.
pub const LONG: &str = "long-";

/// What the story tells the agents.
#[derive(Debug, Clone, Default)]
pub struct Orders {
    /// Whether tokens are made; else they hold what they have leased.
    pub works: bool,
    /// Whether the long ones end, too.
    pub ends_long: bool,
    /// Who may lease; none is everybody.
    pub lessees: Option<BTreeSet<ReplicaId>>,
    /// The trainer's step.
    pub step: u64,
}

/// What the agent of a group's leader holds.
#[derive(Debug, Clone)]
pub struct Held {
    leader_uid: String,
    holder: Holder,
    pub units: Vec<HeldUnit>,
}

/// A leased unit.
#[derive(Debug, Clone)]
pub struct HeldUnit {
    unit: UnitId,
    fencing_token: FencingToken,
    tokens: u32,
}

/// What all agents know at one look.
pub struct Look<'a> {
    pub queue: &'a WorkQueue,
    pub pods: &'a Api<Pod>,
    pub orders: &'a Orders,
    pub version: PolicyVersion,
}

impl Look<'_> {
    /// Does what is due, and answers what is held then. What must never be goes to `faults`.
    ///
    /// # Errors
    /// Queue or API server did not answer.
    pub async fn tend(
        &self,
        id: &ReplicaId,
        group: &Group,
        drain: Option<&DrainRecord>,
        held: Option<Held>,
    ) -> anyhow::Result<(Option<Held>, Vec<String>)> {
        let mut faults = Vec::new();
        let held = held.filter(|held| !held.units.is_empty());
        if let Some(held) = &held {
            let count = held.units.len();
            if !group.members.iter().any(|member| member.uid == held.leader_uid) {
                faults.push(format!("{id} was ended while it held {count} units"));
            }
            if drain.is_some_and(|drain| drain.state == DrainState::Terminating) {
                faults.push(format!("{id} is terminated while it holds {count} units"));
            }
        }
        let is_open = group.is_whole() && drain.is_none();
        let Some(leader) = group.leader().filter(|_| is_open) else {
            if let Some(held) = held {
                self.hand_back(&held, &mut faults).await?;
            }
            self.answer(id, group, drain).await?;
            self.end_pods(group).await?;
            return Ok((None, faults));
        };
        let mut held = held.unwrap_or_else(|| Held {
            leader_uid: leader.uid.clone(),
            holder: holder(leader),
            units: Vec::new(),
        });
        self.advance(&mut held, &mut faults).await?;
        if self.orders.lessees.as_ref().is_none_or(|lessees| lessees.contains(id)) {
            self.lease(&mut held).await?;
        }
        Ok((Some(held), faults))
    }

    async fn lease(&self, held: &mut Held) -> anyhow::Result<()> {
        let room = (UNITS_PER_REPLICA as usize).saturating_sub(held.units.len());
        if room > 0 {
            let leased = self.queue.lease(&held.holder, room, LEASE, self.version).await?;
            held.units.extend(leased.grants.into_iter().map(HeldUnit::from));
        }
        Ok(())
    }

    /// One more token of each response that may go on.
    async fn advance(&self, held: &mut Held, faults: &mut Vec<String>) -> anyhow::Result<()> {
        if !self.orders.works {
            return Ok(());
        }
        let goes_on = |unit: &HeldUnit| self.orders.ends_long || !unit.is_long();
        let (going, mut units): (Vec<_>, Vec<_>) = held.units.drain(..).partition(goes_on);
        let writes = going.iter().map(|unit| unit.next_token(&held.holder, self.version));
        let replies = self.queue.write(&held.holder, writes.collect()).await;
        for (mut unit, reply) in going.into_iter().zip(replies) {
            expect_ok("a token", &unit, reply?, faults);
            unit.tokens += 1;
            if unit.tokens < TOKENS {
                units.push(unit);
            }
        }
        held.units = units;
        Ok(())
    }

    async fn hand_back(&self, held: &Held, faults: &mut Vec<String>) -> anyhow::Result<()> {
        let writes = held.units.iter().map(|unit| UnitWrite {
            unit: unit.unit.clone(),
            fencing_token: unit.fencing_token,
            tail: Vec::new(),
            then: Then::HandBack(HandBackCause::Drain.into()),
        });
        let replies = self.queue.write(&held.holder, writes.collect()).await;
        for (unit, reply) in held.units.iter().zip(replies) {
            expect_ok("a hand-back", unit, reply?, faults);
        }
        Ok(())
    }

    /// What the key of the replica's drain is told. A group that was made anew takes back what the
    /// old one was drained for.
    async fn answer(
        &self,
        id: &ReplicaId,
        group: &Group,
        drain: Option<&DrainRecord>,
    ) -> anyhow::Result<()> {
        let state = match drain {
            Some(drain) if drain.reason == DrainReason::Foreign && group.is_whole() => {
                DrainState::Cancelled
            }
            Some(drain) if drain.state < DrainState::Drained => DrainState::Drained,
            None if group.is_going() => return self.ask_for_drain(id, group).await,
            _ => return Ok(()),
        };
        let request_id = drain.map(|drain| drain.request_id.clone()).unwrap_or_default();
        let replica = id.clone();
        let progress = DrainProgress { replica, request_id, generation: 0, state };
        self.queue.report_drain(progress).await?;
        Ok(())
    }

    /// Somebody else ends a pod of the group.
    async fn ask_for_drain(&self, id: &ReplicaId, group: &Group) -> anyhow::Result<()> {
        let going = group.members.iter().find(|member| member.is_going);
        let request = DrainRequest {
            replica: id.clone(),
            request_id: format!("deleted-{}", going.context("a pod that goes")?.uid),
            generation: 0,
            reason: DrainReason::Foreign,
            remaining: LEASE,
            lost: NodeNames::default(),
        };
        self.queue.request_drain(request).await?;
        Ok(())
    }

    /// Containers of pods that are being deleted end: nothing is held there any more.
    async fn end_pods(&self, group: &Group) -> anyhow::Result<()> {
        let going = group.members.iter().filter(|member| member.is_going);
        let ends = going.map(|member| async move {
            let exactly = Preconditions { uid: Some(member.uid.clone()), resource_version: None };
            let now = DeleteParams::default().grace_period(0).preconditions(exactly);
            match self.pods.delete(&member.pod, &now).await {
                Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
                ended => ended.map(drop),
            }
        });
        futures::future::try_join_all(ends).await.context("end of a pod")?;
        Ok(())
    }
}

/// The agent of a member's node.
pub fn holder(member: &Member) -> Holder {
    let node = member.node.clone();
    Holder { node, boot_id: "boot".to_owned(), process: "agent-1".to_owned() }
}

fn expect_ok(what: &str, unit: &HeldUnit, reply: WriteReply, faults: &mut Vec<String>) {
    if reply != WriteReply::Ok {
        faults.push(format!("{what} of {} was answered {reply:?}", unit.unit));
    }
}

/// The only right token at this place of a response.
pub fn token_at(unit: &UnitId, offset: u32) -> i32 {
    1_000 * i32::from(unit.slot) + i32::try_from(offset).unwrap_or(-1)
}

impl HeldUnit {
    fn is_long(&self) -> bool {
        self.unit.group.as_str().starts_with(LONG)
    }

    fn next_token(&self, holder: &Holder, version: PolicyVersion) -> UnitWrite {
        let finish = Finish { reason: FinishReason::Stop, stop_reason: None };
        let is_last = self.tokens + 1 == TOKENS;
        let chunk = Chunk {
            offset: self.tokens,
            weight_version: version,
            token_ids: vec![token_at(&self.unit, self.tokens)],
            logprobs: vec![-0.5],
            origin: Origin {
                holder: holder.clone(),
                fencing_token: self.fencing_token,
                engine: "played".to_owned(),
                fabric: FabricVerdict::NotApplicable,
                started_at: UnixMillis(0),
                ended_at: UnixMillis(0),
            },
        };
        UnitWrite {
            unit: self.unit.clone(),
            fencing_token: self.fencing_token,
            tail: vec![chunk],
            then: if is_last { Then::Complete(finish) } else { Then::Continue },
        }
    }
}

impl From<Grant> for HeldUnit {
    fn from(grant: Grant) -> Self {
        let tokens = grant.partial.last().map_or(0, Chunk::end);
        Self { unit: grant.unit, fencing_token: grant.fencing_token, tokens }
    }
}
