//! What users of other systems met in practice, each as a law of this queue. The numbers are those
//! of the collection of cases; laws that were there already stand in `laws.rs`.

use std::time::Duration;

use ebbtide_core::ids::{FencingToken, Holder, PolicyVersion, UnitId};
use ebbtide_core::sample::{Finish, FinishReason, Score};
use ebbtide_core::time::UnixMillis;
use ebbtide_core::work::PromptGroup;
use ebbtide_queue::command::{
    Command, DrainBehind, HandBack, HandBackCause, LeaseRequest, ProgressLimits, Renewal, Stage,
    Then, UnitWrite, Waiting,
};
use ebbtide_queue::memory::{MemoryShard, ShardSettings};
use ebbtide_queue::reply::{Grant, Reply, WriteReply};
use ebbtide_queue::state::SlotState;

use super::worlds::*;

laws![
    2;
    partial_at_its_limit_is_finished_and_scored_like_every_other,
    finish_length_reaches_the_trainer,
    lower_version_is_refused_and_counted_and_no_lag_is_negative,
    lost_holders_unit_goes_on_at_its_last_checkpoint,
    stopped_holder_is_fenced_and_one_sample_is_published,
    restart_of_an_agent_is_no_attempt_and_expiry_is_its_fallback,
    trainer_that_has_groups_is_not_removed,
    fault_of_an_engine_keeps_the_prefix_and_is_an_attempt,
    units_whose_names_begin_alike_are_not_confused,
    only_siblings_that_were_lost_go_back_and_their_group_is_sealed,
    hand_back_for_a_drain_keeps_its_reason_and_deadline_and_counts_by_its_cause,
];

fn length() -> Finish {
    Finish { reason: FinishReason::Length, stop_reason: None }
}

fn short(name: &str) -> PromptGroup {
    let mut short = group(name, 1);
    short.sampling.max_tokens = 4;
    short
}

/// Case 3.
async fn partial_at_its_limit_is_finished_and_scored_like_every_other(world: World) {
    let world = world.scored().await;
    let (a, b, scorer) = (holder("a"), holder("b"), holder("s"));
    world.enqueue(&short("g")).await;
    let grants = world.lease(&a, 1, LONG).await;
    world.hand_back(&a, &grants[0], vec![tokens(0, 4, 0)]).await;
    let grants = world.lease(&b, 1, LONG).await;
    assert_eq!(grants[0].partial.last().unwrap().end(), 4, "nothing is left to generate");
    let reply = world.write_as(&b, &grants[0], vec![], Then::Complete(length())).await;
    assert_eq!(reply, WriteReply::Ok);
    assert!(world.take("t").await.is_empty(), "it is not scored yet");
    let leased = world.queue.lease_to_score(&scorer, 1, LONG).await.unwrap();
    assert_eq!(leased.grants[0].finish, Some(length()), "the scorer is told");
    let score = Score { value: 0.5, scorer_version: "rule/1".to_owned(), metadata: vec![] };
    let reply =
        world.write_as(&scorer, &leased.grants[0], vec![], Then::Score(score.clone())).await;
    assert_eq!(reply, WriteReply::Ok);
    let sample = &world.take("t").await[0].samples[0];
    assert_eq!((sample.len(), &sample.score, &sample.finish), (4, &Some(score), &length()));
    world.assert_conserved().await;
}

/// Case 38.
async fn finish_length_reaches_the_trainer(world: World) {
    let (a, b) = (holder("a"), holder("b"));
    let mut pair = short("g");
    pair.group_size = 2;
    world.enqueue(&pair).await;
    let grants = world.lease(&a, 2, LONG).await;
    world.write_as(&a, &grants[0], vec![tokens(0, 4, 0)], Then::Continue).await;
    world.hand_back(&a, &grants[0], vec![]).await;
    world.complete(&a, &grants[1], vec![tokens(0, 2, 0)]).await;
    let resumed = world.lease(&b, 1, LONG).await;
    world.write_as(&b, &resumed[0], vec![], Then::Complete(length())).await;
    let taken = world.take("t").await;
    for sample in &taken[0].samples {
        let is_cut = sample.unit == grants[0].unit;
        assert_eq!(sample.finish, if is_cut { length() } else { stop() });
    }
}

/// Case 5.
async fn lower_version_is_refused_and_counted_and_no_lag_is_negative(world: World) {
    let a = holder("a");
    world.set_version(7).await;
    assert_eq!(world.set_version(3).await, 7);
    let status = world.status().await;
    assert_eq!((status.version, status.versions_refused), (PolicyVersion(7), 2), "on each shard");
    // Newer weights than anybody has announced: their tokens are not old, whatever is subtracted.
    let mut strict = group("g", 1);
    strict.max_lag = 0;
    world.enqueue(&strict).await;
    let grants = world.lease_at(&a, 1, LONG, 9).await;
    world.complete(&a, &grants[0], vec![tokens(0, 1, 9)]).await;
    assert_eq!(world.take("t").await[0].taken_at_version, PolicyVersion(7));
}

/// Case 23.
async fn lost_holders_unit_goes_on_at_its_last_checkpoint(world: World) {
    let (a, b) = (holder("a"), holder("b"));
    world.enqueue(&group("g", 1)).await;
    let grants = world.lease(&a, 1, NONE).await;
    for at in [0, 8, 16] {
        world.write_as(&a, &grants[0], vec![tokens(at, 8, 0)], Then::Continue).await;
    }
    // What it made after its last checkpoint dies with it.
    let resumed = world.lease(&b, 1, LONG).await;
    assert_eq!(resumed[0].partial.last().unwrap().end(), 24);
    world.complete(&b, &resumed[0], vec![tokens(24, 1, 0)]).await;
    assert!(is_whole(&world.take("t").await[0].samples[0]));
    let status = world.status().await;
    assert_eq!((status.tokens.preserved, status.tokens.wasted_total()), (24, 0));
    world.assert_conserved().await;
}

/// Case 26; with a real SIGSTOP in `kills`.
async fn stopped_holder_is_fenced_and_one_sample_is_published(world: World) {
    let (a, b) = (holder("a"), holder("b"));
    world.enqueue(&group("g", 1)).await;
    let old = world.lease(&a, 1, NONE).await;
    let new = world.lease(&b, 1, LONG).await;
    world.complete(&b, &new[0], vec![tokens(0, 2, 0)]).await;
    for then in [Then::Continue, Then::Complete(stop()), Then::Fault("late".to_owned())] {
        let reply = world.write_as(&a, &old[0], vec![tokens(0, 5, 0)], then).await;
        assert!(matches!(reply, WriteReply::Fenced | WriteReply::AlreadyDone), "{reply:?}");
    }
    assert!(!world.renew(&a, &old[0], ProgressLimits::default()).await);
    let taken = world.take("t").await;
    assert_eq!((taken.len(), taken[0].samples[0].len()), (1, 2));
    assert_eq!(world.status().await.groups_sealed, 1);
    world.assert_conserved().await;
}

/// Case 33.
async fn restart_of_an_agent_is_no_attempt_and_expiry_is_its_fallback(world: World) {
    let before: Holder = "n/boot-1/agent-1".parse().unwrap();
    let after: Holder = "n/boot-1/agent-2".parse().unwrap();
    world.enqueue(&group("g", 2)).await;
    world.lease(&before, 1, LONG).await;
    assert!(world.lease(&after, 1, LONG).await.len() == 1, "the same name hides nothing");
    assert_eq!(world.queue.reclaim(&after).await.unwrap(), 1, "at once, not after the lease");
    let unit_of = |hand_backs: u16| {
        let units = world.queue.scan();
        async move { units.await.unwrap().into_iter().find(|it| it.hand_backs == hand_backs) }
    };
    let returned = unit_of(1).await.unwrap();
    assert_eq!((returned.state, returned.attempts), (SlotState::Enqueued, 0));
    assert_eq!(returned.infra_attempts, 0, "its holder was not lost");
    // The next process is gone for good: nobody takes its units back, their leases run out.
    world.lease(&"n/boot-1/agent-3".parse().unwrap(), 1, NONE).await;
    assert_eq!(world.queue.reap(10).await.unwrap(), 1);
    world.assert_conserved().await;
}

/// Case 36.
async fn trainer_that_has_groups_is_not_removed(world: World) {
    let a = holder("a");
    for name in ["g", "h"] {
        world.enqueue(&group(name, 1)).await;
    }
    for grant in world.lease(&a, 2, LONG).await {
        world.complete(&a, &grant, vec![tokens(0, 1, 0)]).await;
    }
    assert_eq!(world.take("t").await.len(), 2);
    assert_eq!(world.queue.remove_consumer("t").await.unwrap(), 2, "refused");
    assert_eq!(world.take("t").await.len(), 2, "nothing of it was forgotten");
    world.queue.acknowledge("t", &[group_id("g")]).await.unwrap();
    assert_eq!(world.queue.remove_consumer("t").await.unwrap(), 1, "still refused");
    assert_eq!(world.queue.take_over("t", "u").await.unwrap(), 1);
    assert_eq!(world.queue.remove_consumer("t").await.unwrap(), 0);
    let taken = world.take("u").await;
    assert_eq!((taken.len(), &taken[0].group.group_id), (1, &group_id("h")));
    world.assert_conserved().await;
}

/// Cases 8 and 40.
async fn fault_of_an_engine_keeps_the_prefix_and_is_an_attempt(world: World) {
    let (a, b) = (holder("a"), holder("b"));
    world.enqueue(&group("g", 1)).await;
    let grants = world.lease(&a, 1, LONG).await;
    world.write_as(&a, &grants[0], vec![tokens(0, 4, 0)], Then::Continue).await;
    let fault = Then::Fault("engine died".to_owned());
    let reply = world.write_as(&a, &grants[0], vec![tokens(4, 3, 0)], fault.clone()).await;
    assert_eq!(reply, WriteReply::Ok);
    let repeated = world.write_as(&a, &grants[0], vec![tokens(4, 3, 0)], fault).await;
    assert_eq!(repeated, WriteReply::AlreadyDone);
    let again = world.lease(&b, 1, LONG).await;
    assert_eq!((again[0].attempts, again[0].partial.last().unwrap().end()), (1, 7));
    world.assert_conserved().await;
}

/// Case 13.
async fn units_whose_names_begin_alike_are_not_confused(world: World) {
    let a = holder("a");
    world.enqueue(&group("u1", 17)).await;
    world.enqueue(&group("u10", 1)).await;
    let grants = world.lease(&a, 18, LONG).await;
    let named = |name: &str| grants.iter().find(|grant| grant.unit == unit(name)).unwrap();
    assert_eq!(world.queue.requeue(&unit("u1.0001")).await.unwrap(), WriteReply::Ok);
    let limits = ProgressLimits::default();
    assert!(!world.renew(&a, named("u1.0001"), limits).await);
    assert!(world.renew(&a, named("u1.0010"), limits).await);
    world.queue.fail_group(&group_id("u1"), "unwanted").await.unwrap();
    assert!(!world.renew(&a, named("u1.0010"), limits).await);
    let reply = world.complete(&a, named("u10.0000"), vec![tokens(0, 1, 0)]).await;
    assert_eq!(reply, WriteReply::Ok);
    world.assert_conserved().await;
}

/// A shard on a clock that the test moves.
struct Hours {
    shard: MemoryShard,
    now: UnixMillis,
}

/// As the policy's defaults have it.
const LEASE: Duration = Duration::from_secs(15);
const RENEWAL: Duration = Duration::from_secs(5);
const REAP: Duration = Duration::from_secs(1);

impl Hours {
    fn begin(group: &PromptGroup) -> Self {
        let mut it =
            Self { shard: MemoryShard::new(ShardSettings::default()), now: UnixMillis(1_000_000) };
        it.ask(Command::Enqueue(Box::new(group.clone())));
        it
    }

    fn ask(&mut self, command: Command) -> Reply {
        self.shard.apply(&command, self.now)
    }

    fn lease(&mut self, holder: &Holder) -> Option<Grant> {
        let request = LeaseRequest {
            stage: Stage::Generate,
            holder: holder.clone(),
            request_id: self.now.to_string(),
            limit: 1,
            ttl: LEASE,
            worker_version: PolicyVersion(0),
            start_at: 0,
            allow_fresh: true,
        };
        match self.ask(Command::Lease(request)) {
            Reply::Lease(mut leased) => leased.grants.pop(),
            other => panic!("wanted a lease, got {other:?}"),
        }
    }

    fn renew(&mut self, holder: &Holder, unit: &UnitId, token: FencingToken) -> bool {
        let renewal = Renewal {
            unit: unit.clone(),
            fencing_token: token,
            ttl: LEASE,
            waiting: Waiting::Nothing,
        };
        let (holder, renewals) = (holder.clone(), vec![renewal]);
        let limits = ProgressLimits::default();
        self.ask(Command::Renew { holder, renewals, limits }) == Reply::Lost(vec![])
    }

    fn append(&mut self, holder: &Holder, grant: &Grant, at: u32) -> Reply {
        let write = UnitWrite {
            unit: grant.unit.clone(),
            fencing_token: grant.fencing_token,
            tail: vec![tokens(at, 1, 0)],
            then: Then::Continue,
        };
        self.ask(Command::Write { holder: holder.clone(), writes: vec![write] })
    }

    /// Renews for that long, with one token at each renewal, while others ask for work; whether
    /// the unit was left to its holder.
    fn is_left_alone(&mut self, grant: &Grant, hours: u64) -> bool {
        let (a, b) = (holder("a"), holder("b"));
        let until = self.now.plus(Duration::from_secs(hours * 3600));
        let mut tokens = 0;
        while self.now < until {
            self.now = self.now.plus(RENEWAL);
            self.ask(Command::Reap { limit: 100 });
            let is_stored = self.append(&a, grant, tokens) == Reply::Writes(vec![WriteReply::Ok]);
            let is_held = self.renew(&a, &grant.unit, grant.fencing_token);
            if !is_stored || !is_held || self.lease(&b).is_some() {
                return false;
            }
            tokens += 1;
        }
        true
    }
}

fn long_response() -> PromptGroup {
    let mut long = group("g", 1);
    long.sampling.max_tokens = 1 << 20;
    long
}

/// Case 28.
#[test]
fn generation_of_two_hours_whose_lease_is_renewed_is_never_delivered_again() {
    let mut world = Hours::begin(&long_response());
    let grant = world.lease(&holder("a")).unwrap();
    assert!(world.is_left_alone(&grant, 2));
}

/// Case 35.
#[test]
fn age_alone_takes_no_unit_from_its_holder() {
    let mut world = Hours::begin(&long_response());
    let grant = world.lease(&holder("a")).unwrap();
    assert!(world.is_left_alone(&grant, 48));
    let limited = PromptGroup { max_leased_ms: 3_600_000, ..long_response() };
    let mut world = Hours::begin(&limited);
    let grant = world.lease(&holder("a")).unwrap();
    assert!(!world.is_left_alone(&grant, 2), "only a limit that was asked for does");
}

/// Case 31.
#[test]
fn orphans_are_ready_within_a_lease_and_a_reap_though_nodes_die_without_pause() {
    const NODES: u64 = 200;
    let mut world = Hours::begin(&group("g", NODES as u16));
    let began = world.now;
    // One node takes a unit and dies, each 100 ms; the reaper comes each second.
    for step in 1..=NODES * 10 {
        world.now = began.plus(Duration::from_millis(step * 100));
        if step <= NODES {
            assert!(world.lease(&holder(&format!("n{step}"))).is_some());
        }
        if step % 10 == 0 {
            world.ask(Command::Reap { limit: 100 });
        }
        let page = match world.ask(Command::Scan { cursor: 0 }) {
            Reply::Page(page) => page,
            other => panic!("wanted units, got {other:?}"),
        };
        let leased = page.units.iter().filter(|unit| unit.state.is_leased());
        for died_at in leased.filter_map(|unit| unit.leased_at) {
            assert!(world.now <= died_at.plus(LEASE + REAP), "an orphan waits at step {step}");
        }
    }
}

/// Case 66 of the interruptions.
async fn only_siblings_that_were_lost_go_back_and_their_group_is_sealed(world: World) {
    let (stays, lost, heir) = (holder("stays"), holder("lost"), holder("heir"));
    world.enqueue(&group("g", 4)).await;
    let kept = world.lease(&stays, 2, LONG).await;
    assert_eq!(world.complete(&stays, &kept[0], vec![tokens(0, 4, 0)]).await, WriteReply::Ok);
    let dying = world.lease(&lost, 2, NONE).await;
    world.write_as(&lost, &dying[1], vec![tokens(0, 8, 0)], Then::Continue).await;
    assert_eq!(world.queue.reap(10).await.unwrap(), 2);
    let units = world.queue.scan().await.unwrap();
    for (unit, grant) in [(&kept[0], SlotState::Completed), (&kept[1], SlotState::Leased)] {
        let sibling = units.iter().find(|seen| seen.unit == unit.unit).unwrap();
        assert_eq!((sibling.state, sibling.fencing_token), (grant, unit.fencing_token));
        assert_eq!((sibling.infra_attempts, sibling.hand_backs, sibling.attempts), (0, 0, 0));
    }
    let again = world.lease(&heir, 10, LONG).await;
    let names: Vec<_> = again.iter().map(|grant| grant.unit.clone()).collect();
    assert_eq!(names, [dying[1].unit.clone(), dying[0].unit.clone()], "no sibling more");
    world.complete(&heir, &again[0], vec![tokens(8, 1, 0)]).await;
    world.complete(&heir, &again[1], vec![tokens(0, 1, 0)]).await;
    assert!(world.take("t").await.is_empty(), "one is still at work");
    assert_eq!(world.complete(&stays, &kept[1], vec![tokens(0, 4, 0)]).await, WriteReply::Ok);
    let taken = world.take("t").await;
    assert!(taken[0].samples.len() == 4 && taken[0].samples.iter().all(is_whole));
    assert_eq!(world.status().await.tokens.wasted_total(), 0);
    world.assert_conserved().await;
}

/// Case 63 of the interruptions: a preemption does not look like a crash.
async fn hand_back_for_a_drain_keeps_its_reason_and_deadline_and_counts_by_its_cause(world: World) {
    world.enqueue(&group("g", 1)).await;
    let plain = HandBack::from(HandBackCause::AgentRestart);
    let rebalanced = DrainBehind { reason: "rebalance", deadline: UnixMillis(4_000_000_000_000) };
    let drained = HandBack { cause: HandBackCause::Drain, drain: Some(rebalanced) };
    let a = holder("a");
    for hand_back in [plain, preempted(), drained] {
        let grants = world.lease(&a, 1, LONG).await;
        let reply = world.write_as(&a, &grants[0], vec![], Then::HandBack(hand_back)).await;
        assert_eq!(reply, WriteReply::Ok);
    }
    let trace = world.queue.trace(&group_id("g")).await.unwrap();
    let told = trace.units[0].history.iter().map(|event| {
        assert_eq!(event.what, "handed_back");
        DrainBehind::of_detail(&event.detail)
    });
    let expected = [plain, preempted(), drained].map(|back| (back.cause.as_str(), back.drain));
    assert_eq!(told.collect::<Vec<_>>(), expected);
    let counted = [("agent_restart", 1), ("drain", 1), ("notice", 1)];
    assert_eq!(world.status().await.hand_backs, counted.map(|(c, n)| (c.to_owned(), n)).into());
    world.assert_conserved().await;
}
