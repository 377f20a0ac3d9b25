//! The real shard in the hands of two workers, a trainer, operators, the clock and a bad network.
//!
//! A request that is lost is a call that nobody makes; a reply that is lost is a call after which
//! its caller knows nothing. Workers never forget a lease, whatever was answered: each of them is
//! at the same time one that goes on, one that repeats itself, and one that was stopped for a while
//! and knows nothing of what happened meanwhile.

use std::fmt::Write as _;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use ebbtide_core::ids::{FencingToken, Holder, PolicyVersion};
use ebbtide_core::time::UnixMillis;
use ebbtide_core::work::{PromptGroup, ResumePolicy};
use ebbtide_queue::command::{AuditPart, Command, Stage};
use ebbtide_queue::memory::{MemoryShard, ShardSettings};
use ebbtide_queue::reply::{Grant, Reply};
use ebbtide_queue::state::GroupTrace;
use stateright::{Model, Property};

use super::ledger::{Law, Ledger};
use super::mistakes::Mistake;
use super::steps::Action;
use crate::worlds::{group, group_id};

/// How long a lease lasts, and how far the clock moves at a time.
pub const LEASE: Duration = Duration::from_millis(10);
pub const BEGINNING: UnixMillis = UnixMillis(1_000);

/// How far the exploration goes: everything that can happen within these numbers happens.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Slots of the one group.
    pub slots: u16,
    /// Whether samples are scored.
    pub is_scored: bool,
    /// Most tokens of a response; each write brings one.
    pub tokens: u32,
    /// Leases granted.
    pub grants: u64,
    /// Times that the clock moves on by a lease.
    pub ticks: u32,
    /// Faults of one slot that end the group.
    pub attempts: u16,
    /// Times that the policy version rises, and what becomes of older tokens then.
    pub versions: u64,
    pub resume_policy: ResumePolicy,
    /// Whether an operator may interfere, and a worker's node get a new process.
    pub has_operators: bool,
    /// Times that the replica takes the place of the shard.
    pub fail_overs: u32,
}

/// The whole of it at one moment.
#[derive(Debug, Clone)]
pub struct Situation {
    pub shard: Arc<MemoryShard>,
    pub ledger: Ledger,
    /// What the replica has; it lags behind until something waits for it.
    pub replica: Option<Box<Replica>>,
    pub around: Around,
    pub version: PolicyVersion,
    /// Of the shard: everything that it keeps, private parts too.
    pub shard_identity: u64,
    identity: u64,
}

/// What falls back at a fail-over, as it was at some time before.
#[derive(Debug, Clone)]
pub struct Replica {
    shard: Arc<MemoryShard>,
    ledger: Ledger,
    version: PolicyVersion,
    shard_identity: u64,
}

/// What does not fall back at a fail-over.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Around {
    pub now: UnixMillis,
    pub ticks_left: u32,
    pub fail_overs_left: u32,
    pub interventions_left: u32,
    pub workers: [Worker; 2],
    /// Times that the trainer was handed the group as a new one.
    pub deliveries: u32,
    pub broken: std::collections::BTreeSet<Law>,
}

/// What a worker knows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Worker {
    /// The weights that it serves.
    pub version: PolicyVersion,
    /// Its requests for units to generate, and to score.
    pub requests: [Requests; 2],
    pub leases: Vec<KnownLease>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Requests {
    /// The number of the newest one.
    pub newest: u32,
    pub is_unanswered: bool,
}

/// A lease that a worker was told of.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct KnownLease {
    pub slot: u16,
    pub token: FencingToken,
    pub stage: Stage,
    /// Tokens that it knows to be stored.
    pub stored: u32,
    pub version: PolicyVersion,
}

impl Worker {
    pub fn learn(&mut self, grants: &[Grant], stage: Stage) {
        for grant in grants {
            let is_it = |known: &KnownLease| {
                known.slot == grant.unit.slot && known.token == grant.fencing_token
            };
            if self.leases.iter().any(is_it) {
                continue;
            }
            self.leases.push(KnownLease {
                slot: grant.unit.slot,
                token: grant.fencing_token,
                stage,
                stored: grant.partial.last().map_or(0, |chunk| chunk.end()),
                version: self.version,
            });
        }
    }
}

pub fn holder(worker: usize) -> Holder {
    ["n/boot-1/agent-a", "m/boot-1/agent-b"][worker].parse().unwrap()
}

/// The exploration.
#[derive(Debug, Clone)]
pub struct Protocol {
    pub bounds: Bounds,
    pub mistake: Mistake,
    pub group: PromptGroup,
    beginning: Situation,
}

impl Protocol {
    pub fn new(bounds: Bounds, mistake: Mistake) -> Self {
        let mut group = group("g", bounds.slots);
        group.sampling.max_tokens = bounds.tokens;
        group.max_attempts = bounds.attempts;
        group.resume_policy = bounds.resume_policy;
        let mut settings =
            ShardSettings { has_reward_stage: bounds.is_scored, ..ShardSettings::default() };
        if mistake == Mistake::ForgetsGroups {
            settings.dedup_window = Duration::ZERO;
        }
        let mut shard = MemoryShard::new(settings);
        shard.apply(&Command::Enqueue(Box::new(group.clone())), BEGINNING);
        let ledger = Ledger::new(bounds.slots, bounds.is_scored, bounds.attempts);
        let around = Around {
            now: BEGINNING,
            ticks_left: bounds.ticks,
            fail_overs_left: bounds.fail_overs,
            interventions_left: u32::from(bounds.has_operators),
            workers: Default::default(),
            deliveries: 0,
            broken: Default::default(),
        };
        let (version, shard_identity) = (PolicyVersion(0), identity_of(&shard));
        let shard = Arc::new(shard);
        let mut beginning = Situation {
            shard,
            ledger,
            replica: None,
            around,
            version,
            shard_identity,
            identity: 0,
        };
        if bounds.fail_overs > 0 {
            beginning.replicate();
        }
        beginning.identify();
        Self { bounds, mistake, group, beginning }
    }

    pub fn stages(&self) -> &'static [Stage] {
        if self.bounds.is_scored { &[Stage::Generate, Stage::Reward] } else { &[Stage::Generate] }
    }

    /// Whether a LEASE may throw tokens away, because the version has risen since.
    pub fn drops_tokens(&self, situation: &Situation) -> bool {
        self.bounds.resume_policy == ResumePolicy::RestartIfNewer && situation.version.0 > 0
    }

    /// Whether the group ends when a worker asks for its units, once what is held has run out.
    fn can_end(&self, situation: &Situation) -> bool {
        let mut shard = MemoryShard::clone(&situation.shard);
        let later = situation.around.now.plus(LEASE);
        for stage in self.stages() {
            self.finish_all(&mut shard, *stage, situation.version, later);
        }
        let trace = read_trace(&mut shard);
        trace.spec.is_none() || trace.units.iter().all(|unit| unit.unit.is_sealed)
    }

    /// Every lawful step must leave the laws of the ledger whole.
    fn keeps(situation: &Situation, law: Law) -> bool {
        !situation.ledger.broken.contains(&law) && !situation.around.broken.contains(&law)
    }
}

impl Situation {
    fn identify(&mut self) {
        let replica = self.replica.as_ref().map(|it| (it.shard_identity, &it.ledger));
        let (shard, ledger, around) = (self.shard_identity, &self.ledger, &self.around);
        self.identity = identity_of(&(shard, ledger, around, replica));
    }

    /// Whether everything but the shard is the same.
    fn is_around_like(&self, other: &Self) -> bool {
        let replica = |it: &Self| it.replica.as_ref().map(|it| it.shard_identity);
        self.around == other.around
            && self.ledger == other.ledger
            && replica(self) == replica(other)
    }

    /// The replica catches up.
    pub fn replicate(&mut self) {
        if self.around.fail_overs_left > 0 {
            self.replica = Some(Box::new(Replica {
                shard: self.shard.clone(),
                ledger: self.ledger.clone(),
                version: self.version,
                shard_identity: self.shard_identity,
            }));
        }
    }

    /// The replica takes the place of the shard.
    pub fn fail_over(&mut self) {
        self.around.fail_overs_left -= 1;
        if let Some(replica) = self.replica.take() {
            (self.shard, self.ledger) = (replica.shard, replica.ledger);
            (self.version, self.shard_identity) = (replica.version, replica.shard_identity);
        }
    }

    /// I8: each slot is counted once, each token too, and no raw key is out of place.
    fn is_conserved(&self) -> bool {
        let mut shard = MemoryShard::clone(&self.shard);
        let mut read = |command: Command| shard.apply(&command, self.around.now);
        let (Reply::Status(status), Reply::Page(page)) =
            (read(Command::Status), read(Command::Scan { cursor: 0 }))
        else {
            panic!("wanted a status and units");
        };
        let in_system = page.units.iter().filter(|unit| !unit.state.is_final()).count() as u64;
        let ended = status.completed + status.dead + status.expired + status.cancelled;
        let unsealed = page.units.iter().filter(|unit| !unit.is_sealed);
        let held: u64 = unsealed.map(|unit| u64::from(unit.tokens)).sum();
        status.enqueued == ended + in_system
            && status.in_system() == in_system
            && status.tokens.in_system() == held
            && status.groups_sealed <= 1
            && AuditPart::ALL.into_iter().all(|part| {
                let audit = Command::Audit { part, cursor: 0, repair: false };
                read(audit) == Reply::Findings(0, Vec::new())
            })
    }
}

/// What a shard says of the group.
fn read_trace(shard: &mut MemoryShard) -> GroupTrace {
    match shard.apply(&Command::Trace { group: group_id("g") }, BEGINNING) {
        Reply::Trace(trace) => *trace,
        other => panic!("wanted a trace, got {other:?}"),
    }
}

impl PartialEq for Situation {
    fn eq(&self, other: &Self) -> bool {
        self.identity == other.identity
    }
}

impl Hash for Situation {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.identity.hash(state);
    }
}

macro_rules! keeps {
    ($($law:ident),* $(,)?) => {
        vec![$(Property::always(stringify!($law), |_: &Protocol, situation: &Situation| {
            Protocol::keeps(situation, Law::$law)
        }),)*]
    };
}

impl Model for Protocol {
    type State = Situation;
    type Action = Action;

    fn init_states(&self) -> Vec<Situation> {
        vec![self.beginning.clone()]
    }

    fn actions(&self, situation: &Situation, actions: &mut Vec<Action>) {
        // What follows a broken law shows nothing more.
        if situation.ledger.broken.is_empty() && situation.around.broken.is_empty() {
            self.possible(situation, actions);
        }
    }

    fn next_state(&self, before: &Situation, action: Action) -> Option<Situation> {
        let mut after = before.clone();
        self.take_step(&mut after, action);
        if after.shard_identity != before.shard_identity {
            let drops_tokens = action.is_lease() && self.drops_tokens(&after);
            after.ledger.compare(&read_trace(Arc::make_mut(&mut after.shard)), drops_tokens);
        } else if after.is_around_like(before) {
            return None;
        }
        after.identify();
        Some(after)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = keeps![
            OnlyTheHolderWrites,
            RefusalChangesNothing,
            RepeatedRequestGrantsNothingNew,
            LiveLeaseIsKept,
            TokensRise,
            AcceptedTokensStayAndNoOthersAppear,
            LeasesAreWhereTheyWereGranted,
            SlotIsCompletedOnce,
            GroupIsEnqueuedOnce,
            GroupIsPublishedOnce,
            PublishedTokensAreTheAcceptedOnes,
            RenewSaysWhoHolds,
            GroupFailsOnlyForAReason,
        ];
        let is_conserved = |_: &Self, it: &Situation| it.is_conserved();
        properties.push(Property::always("EverythingIsConserved", is_conserved));
        properties.push(Property::always("EveryGroupCanEnd", Self::can_end));
        let is_published = |_: &Self, it: &Situation| it.around.deliveries > 0;
        properties.push(Property::sometimes("GroupIsPublished", is_published));
        properties
    }
}

/// A number for everything that can be read of a value; eight bytes at a time, which matters in a
/// test that is not optimised.
pub fn identity_of(value: &impl std::fmt::Debug) -> u64 {
    let mut text = String::with_capacity(8192);
    write!(text, "{value:?}").unwrap();
    let (words, rest) = text.as_bytes().as_chunks::<8>();
    let mut hash = text.len() as u64;
    for word in words {
        hash =
            (hash.rotate_left(23) ^ u64::from_le_bytes(*word)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    for byte in rest {
        hash = (hash.rotate_left(23) ^ u64::from(*byte)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    hash ^ (hash >> 31)
}
