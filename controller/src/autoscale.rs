//! Flow C, the whole of it: observe, plan, say why, act if allowed, read back.
//!
//! Reading back is the next observation: what was asked for is a wish until the provider and the
//! agents show it. Nothing is decided after the plan.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ebbtide_core::bottleneck::IterationStage;
use ebbtide_core::journal::{Outcome, Record, RecordedAction};
use ebbtide_core::ledger::Ledger;
use ebbtide_core::observation::{Observation, ReplicaState, ReplicaView};
use ebbtide_core::policy::{FleetPolicy, Mode};
use ebbtide_core::scale::{Action, ScaleMemory, ScalePlan, SizingTerms, plan_scale};
use ebbtide_core::time::UnixMillis;
use ebbtide_queue::client::WorkQueue;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::accounts::Accounts;
use crate::acting::{Acting, Jobs, Tools};
use crate::actuate::ActuateError;
use crate::capacity::Capacity;
use crate::conditions::{self, Condition};
use crate::held::{Held, held_for, why_held};
use crate::journal::{Journal, summarize};
use crate::leader::Leadership;
use crate::metrics::Metrics;
use crate::observe::{self, Reads};
use crate::policy_source::PolicyState;
use crate::pool_remarks;
use crate::protection::{self, Protection};
use crate::retired::Retired;
use crate::server::Pulse;
use crate::status::{ControllerStatus, Snapshot};
use crate::stragglers::{self, Stragglers};

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
}

/// What one tick hands to the next.
#[derive(Default)]
struct Past {
    memory: ScaleMemory,
    accounts: Accounts,
    stragglers: Stragglers,
    retired: Retired,
    acting: Acting,
    ticks: u64,
    scale_decisions: u64,
    last_decision: Option<String>,
    problems: Vec<String>,
    pool_remarks: Vec<String>,
    protection: Protection,
    /// Since when the records have been read without a failure.
    watched_since: Option<Instant>,
}

impl Autoscaler {
    /// Ticks until `shutdown`.
    pub async fn run(mut self, shutdown: CancellationToken) {
        let mut past = Past::default();
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
        past.ticks += 1;

        let watched_since = *past.watched_since.get_or_insert(began_at);
        let mut reads = observe::read(&self.queue, &*self.capacity, &policy, watched_since).await;
        if reads.view.is_err() {
            past.watched_since = None;
        }
        if let Ok(status) = &reads.status {
            self.metrics.show_tokens(&status.tokens);
        }
        self.metrics.show_idle(reads.view.as_ref().ok());
        let held = why_held(self.leadership.borrow().is_some(), &policy, &reads);
        let over = past.retired.take_ended(&mut reads, &policy);
        if held.is_none() {
            self.take_back(&over, &self.tools(&policy, past.ticks)).await;
        }
        let now = (self.now)();
        let nodes_per_replica = policy.rollout.nodes_per_replica;
        let observation = observe::build(&reads, nodes_per_replica, now);

        self.name_stragglers(&reads, &observation, &mut past).await;

        let terms = SizingTerms::from(&*policy);
        let plan = plan_scale(&terms, &observation, &past.memory);
        let desk = (&self.queue, self.leadership.borrow().map(|held| held.generation));
        past.accounts.keep(&reads, &terms, &observation, &plan, desk).await;

        past.memory = plan.memory.clone();
        let unprotected = match held {
            None => protection::unprotected(&observation, &policy),
            Some(_) => Vec::new(),
        };
        let tools = self.tools(&policy, past.ticks);
        let tick = self.tick.unwrap_or(policy.rollout.tick);
        let until = (began_at + tick).max(Instant::now() + HINTED_TICK_MIN);
        let may = |action: &&Action| held_for(action, held.as_ref()).is_none();
        let actions = plan.actions.iter().filter(may).cloned().collect();
        let jobs = Jobs { actions, unprotected };
        let acted = past.acting.carry_out(&tools, jobs, until).await;
        let mut results = acted.results.into_iter();
        let mut outcomes = Vec::new();
        for action in &plan.actions {
            let result = if may(&action) { results.next() } else { None };
            let outcome = match result {
                None => Outcome::Recommended,
                Some(result) => self.conclude(action, result, &plan, &mut past),
            };
            outcomes.push(RecordedAction { action: action.clone(), outcome });
        }
        let answered = acted.answered.into_iter().map(|(action, result)| {
            let outcome = self.conclude(&action, result, &plan, &mut past);
            RecordedAction { action, outcome }
        });
        let answered = answered.collect();
        past.protection.note(acted.protected);
        self.count_busy_terminations(&plan, &outcomes, &observation);
        let problems = reads.problems.clone();
        let report = Report {
            policy: &policy,
            observation,
            plan: &plan,
            held,
            problems,
            policy_problem: problem,
            policy_unread: unread,
            policy_generation: generation,
        };
        self.tell(report, (outcomes, answered), &mut past).await;
        let is_complete = reads.problems.is_empty();
        let is_leader = self.leadership.borrow().is_some();
        if !is_leader {
            past.memory.forget_writes();
        }
        self.metrics.end_loop(began_at.elapsed(), is_leader, is_complete.then_some(now));
        past
    }

    /// Names replicas that are slower than their peers; another hand replaces them.
    async fn name_stragglers(&self, reads: &Reads, observation: &Observation, past: &mut Past) {
        let view = reads.view.as_ref().ok();
        past.stragglers.note(view, observation);
        self.metrics.show_slow(past.stragglers.named().len());
        let held = *self.leadership.borrow();
        let (Some(view), Some(held)) = (view, held) else { return };
        let desk = (&self.queue, held.generation);
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

    /// Takes back drains of replicas that are gone; what fails is seen again at the next tick.
    async fn take_back(&self, over: &[Action], tools: &Tools) {
        for action in over {
            if let Err(error) = tools.actuator().carry_out(action).await {
                tracing::warn!(%error, "drain of a replica that is gone was not taken back");
            }
        }
    }

    /// Takes note of what became of an action.
    fn conclude(
        &self,
        action: &Action,
        result: Result<(), ActuateError>,
        plan: &ScalePlan,
        past: &mut Past,
    ) -> Outcome {
        past.retired.note(action, result.is_ok());
        let outcome = match result {
            Ok(()) => {
                self.metrics.count_decision(action, &plan.reasons);
                if action.is_decision() {
                    past.scale_decisions += 1;
                    past.last_decision = Some(action.to_string());
                }
                Outcome::Done
            }
            Err(error) => {
                tracing::warn!(%error, %action, "action was not carried out");
                let why = error.to_string();
                match error.refusal() {
                    Some(kind) => Outcome::Refused { kind, why },
                    None => Outcome::Failed(why),
                }
            }
        };
        if let Some(result) = outcome.result() {
            past.memory.note_outcome(action, result);
        }
        outcome
    }

    /// Counts what the planner's laws rule out, from what was really done.
    fn count_busy_terminations(
        &self,
        plan: &ScalePlan,
        outcomes: &[RecordedAction],
        observation: &Observation,
    ) {
        let replicas = observation.replicas.known().map_or(&[][..], Vec::as_slice);
        for (action, outcome) in plan.actions.iter().zip(outcomes) {
            let Action::Retire { replica, .. } = action else { continue };
            let is_idle =
                |view: &ReplicaView| view.id == *replica && view.leased.known() == Some(&0);
            if outcome.outcome == Outcome::Done && !replicas.iter().any(is_idle) {
                self.metrics.count_busy_termination();
            }
        }
    }

    /// Journal, metrics, status, and one log line for each problem that comes or goes.
    async fn tell(
        &mut self,
        report: Report<'_>,
        (outcomes, answered): (Vec<RecordedAction>, Vec<RecordedAction>),
        past: &mut Past,
    ) {
        let conditions = report.conditions();
        let pool_remarks = pool_remarks::gather(&report.observation.pools);
        let Report { policy, observation, plan, held, problems, .. } = report;
        let (policy_problem, policy_generation) = (report.policy_problem, report.policy_generation);
        self.metrics.show(policy, &observation, plan);
        if let Some(ledger) = past.accounts.ledger() {
            self.metrics.money.show(ledger);
        }
        let states = observation.replicas_by_state(policy.rollout.nodes_per_replica);
        let states: BTreeMap<&'static str, u64> =
            states.into_iter().flatten().map(|(state, count)| (state.as_str(), count)).collect();
        let generation = self.leadership.borrow().map_or(0, |held| held.generation);
        let mode = if policy.mode == Mode::Act { "act" } else { "observe" };
        let reasons: Vec<String> = plan.reasons.iter().map(ToString::to_string).collect();
        let held = held.map(|held| held.why);
        let actions = outcomes.iter().map(|outcome| outcome.action.to_string()).collect();
        let record = Record {
            is_first: past.ticks == 1,
            mode: mode.to_owned(),
            generation,
            running: plan.running,
            wish: plan.wish,
            desired: plan.desired,
            actions: outcomes,
            answered,
            reasons: reasons.clone(),
            bottleneck: plan.bottleneck.to_string(),
            held: held.clone(),
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
            conditions,
            held,
            problems,
            pool_remarks,
            event_problems: Vec::new(),
            policy_problem: report.policy_unread.or(policy_problem),
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
    observation: Observation,
    plan: &'a ScalePlan,
    held: Option<Held>,
    problems: Vec<String>,
    policy_problem: Option<String>,
    policy_unread: Option<String>,
    policy_generation: Option<i64>,
}

impl Report<'_> {
    fn conditions(&self) -> Vec<Condition> {
        conditions::judge(&conditions::Facts {
            plan: self.plan,
            problems: &self.problems,
            policy_problem: self.policy_problem.as_deref(),
            ready: self.ready_replicas(),
        })
    }

    fn ready_replicas(&self) -> Option<u64> {
        let states = self.observation.replicas_by_state(self.policy.rollout.nodes_per_replica)?;
        Some(states.get(&ReplicaState::Ready).copied().unwrap_or(0))
    }
}
