//! Flow C, the whole of it: observe, plan, say why, act if allowed, read back.
//!
//! Services are planned after the rollouts (`services`), and each plan is carried out the same way
//! (`carrying`). Reading back is the next observation: what was asked for is a wish until the
//! provider and the agents show it. Nothing is decided after the plan.

mod carrying;
mod services;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ebbtide_core::bottleneck::IterationStage;
use ebbtide_core::journal::Record;
use ebbtide_core::ledger::Ledger;
use ebbtide_core::observation::Observation;
use ebbtide_core::policy::FleetPolicy;
use ebbtide_core::scale::{Action, Role, ScaleMemory, ScalePlan, SizingTerms, plan_scale};
use ebbtide_core::time::UnixMillis;
use ebbtide_queue::client::WorkQueue;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use self::carrying::Carried;
use self::services::{Services, ready_replicas};
use crate::accounts::Accounts;
use crate::acting::{Acting, Tools};
use crate::capacity::Capacity;
use crate::conditions::{self, Condition, GroupFacts};
use crate::held::{self, Held};
use crate::journal::{Journal, summarize};
use crate::leader::Leadership;
use crate::metrics::Metrics;
use crate::observe::{self, Reads};
use crate::policy_source::{PolicyState, Unread};
use crate::pool_remarks;
use crate::protection::Protection;
use crate::retired::Retired;
use crate::server::Pulse;
use crate::signals::Signals;
use crate::status::{ControllerStatus, Snapshot};
use crate::stragglers::{self, Stragglers};
use crate::trainer::TrainerSizing;

/// How long the first tick waits for leadership: the run's journal then begins with it, and can be
/// decided again from there.
const FIRST_LEAD_LIMIT: Duration = Duration::from_secs(1);

/// How long the policy may be unread before that is a condition: API servers are away for a moment.
const UNREAD_LIMIT: Duration = Duration::from_mins(1);

/// Shortest time between two ticks of which the second was caused by a hint.
const HINTED_TICK_MIN: Duration = Duration::from_millis(100);

/// The parts that the loop works with.
pub(crate) struct Autoscaler {
    pub queue: WorkQueue,
    pub capacity: Arc<dyn Capacity>,
    pub leadership: watch::Receiver<Option<Leadership>>,
    pub policy: watch::Receiver<PolicyState>,
    pub tick: Option<Duration>,
    pub journal: Journal,
    pub metrics: Metrics,
    pub status: ControllerStatus,
    pub pulse: Pulse,
    pub now: fn() -> UnixMillis,
    /// Names this process in claims.
    pub process: u32,
    /// What services have to do whose queues are others'.
    pub signals: Signals,
}

/// What one tick hands to the next.
#[derive(Default)]
struct Past {
    memory: ScaleMemory,
    services: Services,
    accounts: Accounts,
    stragglers: Stragglers,
    retired: Retired,
    acting: BTreeMap<Role, Acting>,
    trainer: TrainerSizing,
    ticks: u64,
    scale_decisions: u64,
    last_decision: Option<String>,
    problems: Vec<String>,
    pool_remarks: Vec<String>,
    protection: BTreeMap<Role, Protection>,
    /// Since when the records have been read without a failure.
    watched_since: Option<Instant>,
}

/// What is the same for every worker group in one turn.
struct Turn<'a> {
    policy: &'a Arc<FleetPolicy>,
    reads: &'a Reads,
    /// The leadership, as it was when the turn began: what is done, remembered and put on record
    /// goes by one word. Each write is fenced by the newest besides.
    led: Option<Leadership>,
    /// How long answers may be waited for.
    ends_at: Instant,
}

impl Turn<'_> {
    /// Why nothing is carried out for a worker group, if so.
    fn why_held(&self, role: Role) -> Option<Held> {
        held::why_held(self.led.is_some(), self.policy, self.reads, role.as_str())
    }

    /// The generation of leadership; 0 while another controller leads.
    fn generation(&self) -> u64 {
        self.led.map_or(0, |led| led.generation)
    }
}

/// A plan that is to be carried out.
struct Planned<'a> {
    role: Role,
    plan: &'a ScalePlan,
    observation: &'a Observation,
    /// Why it may not be, if so.
    held: Option<Held>,
}

impl Autoscaler {
    /// Ticks until `shutdown`.
    pub async fn run(mut self, shutdown: CancellationToken) {
        let mut past = Past::default();
        let mut leadership = self.leadership.clone();
        tokio::select! {
            _ = timeout(FIRST_LEAD_LIMIT, leadership.wait_for(Option::is_some)) => {}
            () = shutdown.cancelled() => return,
        }
        loop {
            let began_at = Instant::now();
            tokio::select! {
                next = self.turn(past) => past = next,
                () = shutdown.cancelled() => return,
            }
            let tick = self.tick.unwrap_or(self.policy.borrow().policy.rollout.tick);
            self.pulse.beat(tick);
            tokio::select! {
                () = tokio::time::sleep_until(began_at + tick) => {}
                () = change_of_leader(self.leadership.clone()) => {
                    tokio::time::sleep(HINTED_TICK_MIN).await;
                }
                () = shutdown.cancelled() => return,
            }
        }
    }

    /// One turn of the loop.
    async fn turn(&mut self, mut past: Past) -> Past {
        let began_at = Instant::now();
        let PolicyState { policy, problem, unread, generation } = self.policy.borrow().clone();
        let led = *self.leadership.borrow();
        past.ticks += 1;
        self.signals.follow(&policy);

        let watched_since = *past.watched_since.get_or_insert(began_at);
        let mut reads = observe::read(&self.queue, &*self.capacity, &policy, watched_since).await;
        if reads.view.is_err() {
            past.watched_since = None;
        }
        if let Ok(status) = &reads.status {
            self.metrics.show_tokens(&status.tokens);
        }
        self.metrics.show_idle(reads.view.as_ref().ok());
        let over = past.retired.take_ended(&mut reads, &policy);
        let now = (self.now)();
        let tick = self.tick.unwrap_or(policy.rollout.tick);
        let turn = Turn { policy: &policy, reads: &reads, led, ends_at: began_at + tick };
        self.take_back(&over, &turn, &past).await;
        let nodes_per_replica = policy.rollout.nodes_per_replica;
        let mut observation = observe::build(&reads, nodes_per_replica, now);
        for role in Role::SERVICES {
            past.note_cost(&policy, role, reads.pools_of(role), None);
        }
        past.services.costs.tell(&policy, Role::Rollout, &mut observation);

        self.name_stragglers(&turn, &observation, &mut past).await;

        let terms = SizingTerms::from(&*policy);
        let plan = plan_scale(&terms, &observation, &past.memory);
        let desk = (&self.queue, led.map(|led| led.generation));
        let services = reads.priced_services(&policy);
        past.accounts.keep(&reads, (&terms, &services), &observation, &plan, desk).await;

        past.memory = plan.memory.clone();
        let held = turn.why_held(Role::Rollout);
        let why_held = held.as_ref().map(|held| held.why.clone());
        let planned = Planned { role: Role::Rollout, plan: &plan, observation: &observation, held };
        let carried = self.carry_out(planned, &turn, &mut past).await;
        self.size_services(&turn, (&observation, &plan), &mut past).await;
        self.size_trainer(&turn, (&terms, &observation, &plan), &mut past).await;
        let report = Report {
            policy: &policy,
            generation: turn.generation(),
            terms: &terms,
            observation,
            plan: &plan,
            held: why_held,
            problems: reads.problems.clone(),
            policy_problem: problem,
            policy_unread: unread,
            policy_generation: generation,
        };
        self.tell(report, carried, &mut past).await;
        let is_complete = reads.problems.is_empty();
        if led.is_none() {
            past.memory.forget_writes();
            past.services.forget_writes();
        }
        self.metrics.end_loop(began_at.elapsed(), led.is_some(), is_complete.then_some(now));
        past
    }

    /// Names replicas that are slower than their peers; another hand replaces them.
    async fn name_stragglers(&self, turn: &Turn<'_>, observation: &Observation, past: &mut Past) {
        let view = turn.reads.view.as_ref().ok();
        past.stragglers.note(view, observation);
        self.metrics.show_slow(past.stragglers.named().len());
        let (Some(view), Some(led)) = (view, turn.led) else { return };
        let desk = (&self.queue, led.generation);
        if let Err(error) = past.stragglers.publish(desk, view).await {
            tracing::debug!(%error, "slow replicas not put on record");
        }
    }

    fn tools(&self, policy: &Arc<FleetPolicy>, turn: u64) -> Tools {
        Tools {
            queue: self.queue.clone(),
            leadership: self.leadership.clone(),
            capacity: self.capacity.clone(),
            policy: policy.clone(),
            process: self.process,
            turn,
        }
    }

    /// Takes back drains of replicas that are gone, of each group that is not held; what fails is
    /// seen again at the next tick.
    async fn take_back(&self, over: &[(Role, Action)], turn: &Turn<'_>, past: &Past) {
        let tools = self.tools(turn.policy, past.ticks);
        for (_, action) in over.iter().filter(|(role, _)| turn.why_held(*role).is_none()) {
            if let Err(error) = tools.actuator().carry_out(action).await {
                tracing::warn!(%error, "drain of a replica that is gone was not taken back");
            }
        }
    }

    /// Journal, metrics, status, and one log line for each problem that comes or goes.
    async fn tell(&mut self, report: Report<'_>, carried: Carried, past: &mut Past) {
        let conditions = report.conditions(past);
        let mut pool_remarks = pool_remarks::gather(&report.observation.pools);
        pool_remarks.extend(past.services.pool_remarks().cloned());
        let Report { policy, observation, plan, held, problems, .. } = report;
        let (policy_problem, policy_generation) = (report.policy_problem, report.policy_generation);
        self.metrics.show(policy, report.terms, &observation, plan);
        past.trainer.show(&self.metrics);
        if let Some(ledger) = past.accounts.ledger() {
            self.metrics.money.show(ledger);
        }
        let states = observe::by_state(&observation, policy.rollout.nodes_per_replica);
        let generation = report.generation;
        let mode = policy.mode.as_str();
        let reasons: Vec<String> = plan.reasons.iter().map(ToString::to_string).collect();
        let actions = carried.actions.iter().map(|carried| carried.action.to_string()).collect();
        let record = Record {
            is_first: past.ticks == 1,
            role: Role::Rollout,
            mode: mode.to_owned(),
            generation,
            running: plan.running,
            wish: plan.wish,
            desired: plan.desired,
            actions: carried.actions,
            answered: carried.answered,
            reasons: reasons.clone(),
            bottleneck: plan.bottleneck.to_string(),
            held: held.clone(),
            trainer: past.trainer.record(),
            observation,
        };
        let observed = summarize(&record.observation, plan, &states);
        self.journal.record(&record, &observed, &self.queue).await;
        for problem in problems.iter().filter(|problem| !past.problems.contains(problem)) {
            tracing::warn!(%problem, "not everything can be read");
        }
        if problems.is_empty() && !past.problems.is_empty() {
            tracing::info!("everything can be read again");
        }
        past.problems.clone_from(&problems);
        for remark in pool_remarks.iter().filter(|remark| !past.pool_remarks.contains(remark)) {
            tracing::warn!(%remark, "a pool is not as it should be");
        }
        past.pool_remarks.clone_from(&pool_remarks);
        self.status.replace(Snapshot {
            ticked_at: record.at(),
            ticks: past.ticks,
            is_leader: generation > 0,
            generation,
            mode,
            running: plan.running,
            desired: plan.desired,
            replicas: states,
            stragglers: past.stragglers.named().iter().map(stragglers::describe).collect(),
            actions,
            reasons,
            bottleneck: plan.bottleneck.to_string(),
            limiting_stage: plan.bottleneck.stage.map(IterationStage::as_str),
            services: past.services.snapshots(),
            conditions,
            trainer: past.trainer.to_lines(),
            held,
            problems,
            pool_remarks,
            event_problems: Vec::new(),
            policy_problem: report.policy_unread.map(|unread| unread.why).or(policy_problem),
            policy_generation,
            scale_decisions: past.scale_decisions,
            last_decision: past.last_decision.clone(),
            ledger: past.accounts.ledger().copied(),
            costs: past.accounts.ledger().map(Ledger::to_lines).unwrap_or_default(),
        });
    }
}

/// Waits until this controller begins or ceases to lead; a renewal is no change.
async fn change_of_leader(mut leadership: watch::Receiver<Option<Leadership>>) {
    let leads = leadership.borrow().is_some();
    if leadership.wait_for(|held| held.is_some() != leads).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// What one turn has to tell.
struct Report<'a> {
    policy: &'a FleetPolicy,
    generation: u64,
    terms: &'a SizingTerms,
    observation: Observation,
    plan: &'a ScalePlan,
    held: Option<String>,
    problems: Vec<String>,
    policy_problem: Option<String>,
    policy_unread: Option<Unread>,
    policy_generation: Option<i64>,
}

impl Report<'_> {
    fn conditions(&self, past: &Past) -> Vec<Condition> {
        let ready = ready_replicas(&self.observation, self.policy.rollout.nodes_per_replica);
        let rollouts = GroupFacts { role: Role::Rollout, plan: self.plan, ready };
        let unread = self.policy_unread.iter().filter(|it| it.since.elapsed() >= UNREAD_LIMIT);
        let unread = unread.map(|it| format!("the policy cannot be read: {}", it.why));
        let problems: Vec<String> = self.problems.iter().cloned().chain(unread).collect();
        conditions::judge(&conditions::Facts {
            groups: std::iter::once(rollouts).chain(past.services.facts()).collect(),
            problems: &problems,
            policy_problem: self.policy_problem.as_deref(),
        })
    }
}

#[cfg(test)]
mod tests;
