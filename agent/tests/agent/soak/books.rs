//! The books: what engines made, agents stored and the queue holds, and the sums between them.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ebbtide_agent::AgentHandle;
use ebbtide_agent::emulator::EngineHandle;
use ebbtide_queue::reply::Failure;
use ebbtide_queue::state::UnitSnapshot;
use ebbtide_queue::status::ShardStatus;
use tokio::time::{MissedTickBehavior, interval};

use super::fleet::NODES;
use super::trainer::Taken;
use super::{Kind, Site, group_of};

/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(4);

/// Times that sums which do not hold are looked at again: a call of a killed agent may still be on
/// its way.
const LOOKS_AGAIN: usize = 10;

/// What agents and engines did in all, those that are gone included.
#[derive(Debug, Clone, Copy, Default)]
struct Totals {
    /// Made by engines, received or not.
    made: u64,
    received: u64,
    /// Acknowledged by the queue.
    stored: u64,
    units_faulted: u64,
    units_lost: u64,
    /// Held by agents when they were killed.
    units_orphaned: u64,
}

impl Totals {
    fn add_agent(&mut self, agent: &AgentHandle) {
        let counts = agent.counts();
        self.received += counts.tokens_received;
        self.stored += counts.tokens_stored;
        self.units_faulted += counts.units_faulted;
        self.units_lost += counts.units_lost;
        self.units_orphaned += agent.held() as u64;
        let gone = counts.tokens_stored + counts.tokens_dropped;
        assert!(gone <= counts.tokens_received, "{counts:?}");
    }
}

/// See the module.
#[derive(Default)]
pub struct Books {
    entries: RefCell<Entries>,
    /// So many have been enqueued, those numbered below.
    pub groups: Cell<u32>,
}

#[derive(Default)]
struct Entries {
    gone: Totals,
    agents: [Option<AgentHandle>; NODES],
    engines: [Option<EngineHandle>; NODES],
}

impl Books {
    /// A new agent at this spot; the one before it has ended.
    pub fn follow_agent(&self, at: usize, agent: AgentHandle) {
        let mut entries = self.entries.borrow_mut();
        if let Some(before) = entries.agents[at].replace(agent) {
            entries.gone.add_agent(&before);
        }
    }

    /// A new engine at this spot; the one before it has ended.
    pub fn follow_engine(&self, at: usize, engine: EngineHandle) {
        let mut entries = self.entries.borrow_mut();
        if let Some(before) = entries.engines[at].replace(engine) {
            entries.gone.made += before.tokens_generated();
        }
    }

    /// By all engines so far.
    pub fn tokens_made(&self) -> u64 {
        self.totals().made
    }

    /// By all agents so far, as far as they know.
    pub fn tokens_stored(&self) -> u64 {
        self.totals().stored
    }

    /// Agents first: an engine never has made less than was received before.
    fn totals(&self) -> Totals {
        let entries = self.entries.borrow();
        let mut totals = entries.gone;
        entries.agents.iter().flatten().for_each(|agent| totals.add_agent(agent));
        let engines = entries.engines.iter().flatten();
        totals.made += engines.map(EngineHandle::tokens_generated).sum::<u64>();
        totals
    }
}

/// Looks at the books again and again.
pub struct Auditor<'a> {
    site: &'a Site,
    pub looks: u64,
    /// What stood in the queue at the last one.
    pub last: ShardStatus,
}

impl<'a> Auditor<'a> {
    pub fn of(site: &'a Site) -> Self {
        Self { site, looks: 0, last: ShardStatus::default() }
    }

    pub async fn watch(&mut self) -> Infallible {
        let mut ticks = interval(LOOK_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.look().await;
        }
    }

    /// Stops all calls and looks whether the sums hold; nothing while the queue is away.
    async fn look(&mut self) {
        let Site { tap, onlooker, books, .. } = self.site;
        let _stopped = tap.calling.write().await;
        let mut ticks = interval(Duration::from_millis(50));
        let mut problem = String::new();
        for _ in 0..LOOKS_AGAIN {
            ticks.tick().await;
            let Ok(shards) = onlooker.status().await.complete() else { return };
            let Ok(units) = onlooker.scan().await else { return };
            let status = ShardStatus::sum(shards);
            let doubtful = tap.doubtful_tokens.load(Ordering::Relaxed);
            match sums_hold(&status, &units, &books.totals(), doubtful, &self.last) {
                Ok(()) => {
                    self.looks += 1;
                    self.last = status;
                    return;
                }
                Err(found) => problem = found,
            }
        }
        panic!("{problem}");
    }

    /// Everything has ended: nothing is left, and everything is explained.
    pub async fn close(&mut self, taken: &Taken) {
        let looks = self.looks;
        self.look().await;
        assert!(self.looks > looks, "the last look");
        assert_eq!(self.site.onlooker.audit(false).await.unwrap(), [], "the raw keys");
        let failures = failures(self.site).await;
        assert_each_group_ended_once(self.site, taken, &failures);
        assert_tokens_explained(&self.last, taken, &failures);
        assert_handing_on_explained(&self.last, &self.site.books.totals(), taken, &failures);
    }
}

/// What must hold at every instant; `before` is what stood at an earlier one.
fn sums_hold(
    status: &ShardStatus,
    units: &[UnitSnapshot],
    totals: &Totals,
    doubtful: u64,
    before: &ShardStatus,
) -> Result<(), String> {
    let count = |is_meant: fn(&UnitSnapshot) -> bool| {
        units.iter().filter(|unit| is_meant(unit)).count() as u64
    };
    let open = count(|unit| !unit.state.is_final());
    let leased = count(|unit| unit.state.is_leased());
    let held: u64 = units.iter().filter(|it| !it.is_sealed).map(|it| u64::from(it.tokens)).sum();
    let ended = status.completed + status.dead + status.expired + status.cancelled;
    let tokens = &status.tokens;
    let laws = [
        ("each slot is in the system or has ended", status.enqueued == ended + open),
        ("what is leased is counted", status.leased == leased),
        ("what is ready is counted", status.ready == open - leased),
        ("a node has what is leased", status.leased_by_node.values().sum::<u64>() == leased),
        ("each stored token is accepted, wasted or held", tokens.in_system() == held),
        ("what agents know to be stored is stored", totals.stored <= tokens.generated + doubtful),
        ("what is stored was received", tokens.generated <= totals.received),
        ("what was received was made", totals.received <= totals.made),
        ("what is preserved was stored", tokens.preserved <= tokens.generated),
        ("nothing had to be mended", status.repaired == 0),
        ("nobody lowered the version", status.versions_refused == 0),
        ("slots never go", before.enqueued <= status.enqueued),
        ("ends stay", before.completed <= status.completed && before.dead <= status.dead),
        ("stored tokens stay", before.tokens.generated <= tokens.generated),
        ("wasted tokens stay", before.tokens.wasted_total() <= tokens.wasted_total()),
    ];
    let broken: Vec<&str> = laws.iter().filter(|(_, holds)| !holds).map(|(law, _)| *law).collect();
    if broken.is_empty() {
        return Ok(());
    }
    Err(format!(
        "{broken:?}: {open} open, {leased} leased, {held} tokens held, {doubtful} in doubt\n\
         {totals:?}\n{status:?}\nbefore: {before:?}"
    ))
}

/// The records of all groups that failed.
async fn failures(site: &Site) -> Vec<Failure> {
    let mut all = Vec::new();
    for shard in 0..site.onlooker.shard_count() {
        let mut after = String::new();
        loop {
            let page = site.onlooker.failures(shard, &after, 500).await.unwrap();
            let Some(last) = page.last() else { break };
            after = last.record_id.clone();
            all.extend(page);
        }
    }
    all
}

fn assert_each_group_ended_once(site: &Site, taken: &Taken, failures: &[Failure]) {
    let groups = site.books.groups.get();
    let failed: BTreeSet<_> = failures.iter().map(|failure| &failure.group).collect();
    assert_eq!(failed.len(), failures.len(), "a group failed twice");
    for number in 0..groups {
        let id = group_of(number).group_id;
        assert!(
            taken.groups.contains(&id) != failed.contains(&id),
            "{id} must have ended, and once"
        );
    }
    assert_eq!(taken.groups.len() + failed.len(), groups as usize);
    for failure in failures {
        let number = failure.group.as_str()[1..].parse().unwrap();
        let reasons = Kind::of(number).reasons();
        assert!(reasons.contains(&failure.reason.as_str()), "{failure:?}");
    }
}

/// Contract, section 9, at the end: what was stored is accepted or wasted, by cause.
fn assert_tokens_explained(status: &ShardStatus, taken: &Taken, failures: &[Failure]) {
    let tokens = &status.tokens;
    assert_eq!(tokens.generated, tokens.accepted + tokens.wasted_total());
    assert_eq!(tokens.accepted, taken.tokens);
    let restarted = tokens.wasted.get("restarted").copied().unwrap_or(0);
    let failed: u64 = failures.iter().map(|it| it.tokens_wasted + of_culprit(it)).sum();
    assert_eq!(tokens.wasted_total(), restarted + failed, "{tokens:?}");
    assert!(tokens.preserved >= taken.tokens_of_earlier_holders, "{tokens:?}, {taken:?}");
}

/// Tokens of the unit that ended its group.
fn of_culprit(failure: &Failure) -> u64 {
    let last = failure.culprit.as_ref().and(failure.history.last());
    last.map_or(0, |event| u64::from(event.tokens))
}

/// Every lease that did not complete its unit was handed back, ran out, or is an attempt that an
/// agent reported, or did not live to be told that it had.
fn assert_handing_on_explained(
    status: &ShardStatus,
    totals: &Totals,
    taken: &Taken,
    failures: &[Failure],
) {
    let slots = || failures.iter().flat_map(|failure| &failure.slots);
    let hand_backs: u64 = slots().map(|slot| u64::from(slot.hand_backs)).sum();
    let expiries: u64 = slots().map(|slot| u64::from(slot.infra_attempts)).sum();
    let attempts: u64 = slots().map(|slot| u64::from(slot.attempts)).sum();
    let counted: u64 = status.hand_backs.values().sum();
    assert_eq!(counted, taken.hand_backs + hand_backs, "{:?}", status.hand_backs);
    assert_eq!(status.lease_expiries, taken.infra_attempts + expiries);
    let reported = totals.units_faulted + totals.units_lost + totals.units_orphaned;
    let attempts = taken.attempts + attempts;
    assert!(attempts <= reported, "{attempts} attempts, {totals:?}");
}
