//! Answers that come late, and turns that end before everything is begun.

use ebbtide_core::ids::ReplicaId;
use ebbtide_core::journal::Outcome;
use ebbtide_core::observation::InstanceId;
use ebbtide_core::scale::LeaveReason;
use ebbtide_queue::control::{
    DrainProgress, DrainReason, DrainRequest, DrainState, NodeNames, NodeRole, NodeState,
    TrainerPhase,
};

use super::super::*;
use super::scene::{ENVIRONMENT, Scene, TICK, policy};

#[tokio::test(start_paused = true)]
async fn pool_that_has_answered_between_two_turns_is_asked_at_the_next() {
    let mut scene = Scene::new(policy(""));
    scene.report_trainer(TrainerPhase::Train).await;
    scene.provider.hang("spot");
    scene.provider.refuse("spot");
    scene.turn().await;
    scene.provider.answer("spot");
    tokio::time::sleep(Duration::from_millis(1)).await;
    scene.turn().await;
    let asked = scene.provider.asked();
    assert_eq!(asked, ["raise spot from 0 to 2 by 2", "raise spot from 0 to 2 by 2"]);
}

#[tokio::test(start_paused = true)]
async fn late_answer_is_counted_as_what_it_was_asked_for() {
    let mut scene = Scene::new(policy(""));
    scene.report_trainer(TrainerPhase::Train).await;
    scene.provider.hang("spot");
    scene.turn().await;
    scene.report_trainer(TrainerPhase::Done).await;
    scene.turn().await;
    scene.provider.answer("spot");
    tokio::time::sleep(Duration::from_millis(1)).await;
    scene.turn().await;
    let counted = scene.metrics("ebbtide_decision_total");
    assert_eq!(
        counted,
        ["ebbtide_decision_total{decision=\"raise\",reason=\"buffer_low\",role=\"rollout\"} 1"]
    );
}

/// Environments `cpus-1` and `cpus-2`, which were asked to drain and have not drained.
async fn scene_with_two_victims() -> Scene {
    let scene = Scene::new(policy(ENVIRONMENT));
    scene.report_trainer(TrainerPhase::Train).await;
    scene.provider.fill("spot", 2);
    scene.provider.fill("cpus", 2);
    for instance in ["cpus-1", "cpus-2"] {
        scene.report_node(instance, NodeRole::Environment, NodeState::Draining).await;
        let request = DrainRequest {
            replica: replica(instance),
            request_id: format!("r-{instance}"),
            generation: 1,
            reason: DrainReason::ScaleIn,
            remaining: Duration::from_secs(600),
            lost: NodeNames::default(),
        };
        scene.queue.request_drain(request).await.expect("memory");
    }
    scene
}

fn replica(instance: &str) -> ReplicaId {
    ReplicaId::from(&format!("n-{instance}").parse().expect("valid"))
}

fn retire(instance: &str) -> Action {
    Action::Retire {
        replica: replica(instance),
        request_id: format!("r-{instance}"),
        pool: "cpus".parse().expect("valid"),
        instances: vec![InstanceId(instance.to_owned())],
    }
}

impl Scene {
    /// Carries these out for the environments in a turn of their own, whatever a planner says.
    async fn carry_out(&mut self, actions: Vec<Action>) -> Carried {
        let policy = self.policy.borrow().policy.clone();
        let reads = observe::read(&self.queue, &*self.provider, &policy, Instant::now()).await;
        let rollouts = observe::build(&reads, 2, (self.autoscaler.now)());
        let role = Role::Environment;
        let seen = observe::services::build(&reads, &rollouts, role, None, Default::default());
        let terms = SizingTerms::of_role(&policy, role).expect("it has them");
        let mut plan = plan_scale(&terms, &seen, &ScaleMemory::default());
        plan.actions = actions;
        let led = *self.leadership.borrow();
        let turn = Turn { policy: &policy, reads: &reads, led, ends_at: Instant::now() + TICK };
        let held = turn.why_held(role);
        let planned = Planned { role, plan: &plan, observation: &seen, held };
        self.past.ticks += 1;
        self.autoscaler.carry_out(planned, &turn, &mut self.past).await
    }

    fn busy_terminations(&self) -> Vec<String> {
        let lines = self.metrics("ebbtide_busy_terminations_total").into_iter();
        lines.filter(|line| line.contains("environment")).collect()
    }
}

const BUSY: &str = "ebbtide_busy_terminations_total{role=\"environment\"}";

#[tokio::test(start_paused = true)]
async fn service_that_is_terminated_before_it_drained_is_counted_however_late_that_is_known() {
    let mut scene = scene_with_two_victims().await;
    scene.carry_out(vec![retire("cpus-1")]).await;
    assert_eq!(scene.busy_terminations(), [format!("{BUSY} 1")]);
    scene.provider.hang("cpus");
    scene.carry_out(vec![retire("cpus-2")]).await;
    assert_eq!(scene.busy_terminations(), [format!("{BUSY} 1")]);
    scene.provider.answer("cpus");
    let carried = scene.carry_out(Vec::new()).await;
    assert_eq!(carried.answered.len(), 1);
    assert_eq!(scene.busy_terminations(), [format!("{BUSY} 2")]);
}

#[tokio::test(start_paused = true)]
async fn service_that_has_drained_is_not_counted() {
    let mut scene = scene_with_two_victims().await;
    let (replica, request_id) = (replica("cpus-1"), "r-cpus-1".to_owned());
    let (generation, state) = (0, DrainState::Drained);
    let progress = DrainProgress { replica, request_id, generation, state };
    scene.queue.report_drain(progress).await.expect("memory");
    scene.carry_out(vec![retire("cpus-1")]).await;
    assert_eq!(scene.provider.asked(), ["terminate cpus-1"]);
    assert!(scene.busy_terminations().iter().all(|line| line.ends_with(" 0")));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_begun_after_the_end_of_the_turn_that_asked_for_it() {
    let mut scene = scene_with_two_victims().await;
    scene.provider.slow_down(TICK + TICK / 2);
    let (pool, instances) = ("cpus".parse().expect("valid"), vec![InstanceId("cpus-2".to_owned())]);
    let discard = Action::Discard { pool, instances };
    scene.carry_out(vec![retire("cpus-1"), discard]).await;
    assert_eq!(scene.provider.asked(), ["terminate cpus-1"]);
    let carried = scene.carry_out(Vec::new()).await;
    let outcomes: Vec<String> =
        carried.answered.iter().map(|it| format!("{}: {}", it.action, it.outcome)).collect();
    assert_eq!(
        outcomes,
        [
            "terminate n-cpus-1 in pool cpus: cpus-1: done",
            "terminate what never joined in pool cpus: cpus-2: failed: its turn ended before it \
             was begun; what is needed then is decided anew",
        ]
    );
    assert_eq!(scene.provider.asked(), ["terminate cpus-1"]);
}

#[tokio::test(start_paused = true)]
async fn slow_queue_does_not_hold_the_loop_up() {
    let mut scene = Scene::new(policy(ENVIRONMENT));
    scene.report_trainer(TrainerPhase::Train).await;
    for instance in ["cpus-1", "cpus-2"] {
        scene.report_node(instance, NodeRole::Environment, NodeState::Ready).await;
    }
    scene.port.slow_drains_down(TICK * 2);
    let drain = |instance: &str| Action::RequestDrain {
        replica: replica(instance),
        why: LeaveReason::ScaleIn,
    };
    let began_at = Instant::now();
    scene.carry_out(vec![drain("cpus-1"), drain("cpus-2")]).await;
    assert!(began_at.elapsed() <= TICK + HINTED_TICK_MIN, "{:?}", began_at.elapsed());
    tokio::time::sleep(TICK * 2).await;
    let carried = scene.carry_out(Vec::new()).await;
    assert_eq!(carried.answered.len(), 2);
    let drains = scene.queue.view().await.expect("memory").drains;
    assert_eq!(drains.len(), 1, "the second was not begun: {drains:?}");
}

/// What is remembered goes by the same word as what is on record, so that it replays.
#[tokio::test(start_paused = true)]
async fn leadership_that_ends_in_a_turn_ends_with_the_next() {
    let mut scene = Scene::new(policy(""));
    scene.report_trainer(TrainerPhase::Train).await;
    let leadership = scene.leadership.clone();
    scene.port.on_journal(move || {
        leadership.send_replace(None);
    });
    scene.turn().await;
    let forgotten = |memory: &ScaleMemory| {
        let mut other = memory.clone();
        other.forget_writes();
        other == *memory
    };
    assert_eq!(scene.provider.asked(), ["raise spot from 0 to 2 by 2"]);
    assert!(!forgotten(&scene.past.memory), "its record says that it led");
    scene.turn().await;
    assert!(forgotten(&scene.past.memory));
}

#[tokio::test(start_paused = true)]
async fn replicas_of_one_pool_go_together_and_one_that_may_not_keeps_no_other() {
    let mut scene = scene_with_two_victims().await;
    scene.carry_out(vec![retire("cpus-1"), retire("cpus-2")]).await;
    assert_eq!(scene.provider.asked(), ["terminate cpus-1 cpus-2"]);

    let mut scene = scene_with_two_victims().await;
    scene.provider.keep("cpus-1");
    let carried = scene.carry_out(vec![retire("cpus-1"), retire("cpus-2")]).await;
    let asked = scene.provider.asked();
    assert_eq!(asked, ["terminate cpus-1 cpus-2", "terminate cpus-1", "terminate cpus-2"]);
    let is_done: Vec<bool> = carried.actions.iter().map(|it| it.outcome == Outcome::Done).collect();
    assert_eq!(is_done, [false, true], "{:?}", carried.actions);
    assert_eq!(scene.provider.desired("cpus"), 1);
}

#[tokio::test(start_paused = true)]
async fn replica_whose_drain_was_taken_back_does_not_go_with_the_others() {
    let mut scene = scene_with_two_victims().await;
    let (replica, request_id) = (replica("cpus-1"), "r-cpus-1".to_owned());
    let (generation, state) = (1, DrainState::Cancelled);
    let progress = DrainProgress { replica, request_id, generation, state };
    scene.queue.report_drain(progress).await.expect("memory");
    let carried = scene.carry_out(vec![retire("cpus-1"), retire("cpus-2")]).await;
    assert_eq!(scene.provider.asked(), ["terminate cpus-2"]);
    assert!(matches!(carried.actions[0].outcome, Outcome::Failed(_)), "{:?}", carried.actions);
}
