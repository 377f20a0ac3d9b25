//! Groups that have to show their speed, on paused time.

use ebbtide_core::image_rollout::WINDOW_READINGS;
use ebbtide_core::time::UnixMillis;
use tokio::sync::watch;

use super::memory::MemoryGroups;
use super::*;

fn pod(index: u32, revision: &str) -> LeaderPod {
    LeaderPod {
        name: format!("ep-{index}"),
        uid: format!("{revision}-{index}"),
        set: "ep".to_owned(),
        replica: format!("ep-{index}").parse().expect("valid"),
        revision: revision.to_owned(),
        answers: true,
        is_open: false,
        told: None,
    }
}

/// Two nodes of a group, one of which has all the work.
fn nodes(index: u32, tokens_per_second: f64, in_flight: u32) -> Vec<NodeRecord> {
    let node = |member: u32| {
        let holder = format!("n{index}-{member}/boot/agent-1").parse().expect("valid");
        let has_work = member == 0;
        NodeRecord {
            replica: format!("ep-{index}").parse().expect("valid"),
            in_flight: if has_work { in_flight } else { 0 },
            tokens_per_second: if has_work { tokens_per_second } else { 0.0 },
            ..NodeRecord::new(holder, NodeState::Ready)
        }
    };
    vec![node(0), node(1)]
}

/// The flow over these pods, seeing these records.
struct Rollout {
    groups: Arc<MemoryGroups>,
    views: watch::Sender<Option<Arc<ControlView>>>,
    stop: CancellationToken,
}

impl Rollout {
    fn start(pods: Vec<LeaderPod>) -> Self {
        let groups = Arc::new(MemoryGroups::default());
        *groups.pods() = pods;
        let (views, seen) = watch::channel(None);
        let stop = CancellationToken::new();
        let flow = ImageRollout { groups: groups.clone(), views: seen };
        tokio::spawn(flow.run(stop.clone()));
        Self { groups, views, stop }
    }

    /// So many looks that find these records, each reported anew.
    async fn looks(&self, count: u64, nodes: &[NodeRecord]) {
        for _ in 0..count {
            let before = self.views.borrow().as_ref().map_or(UnixMillis(0), |view| view.now);
            let now = before.plus(LOOK_EVERY);
            let anew = |node: &NodeRecord| NodeRecord { heartbeat: now, ..node.clone() };
            let nodes = nodes.iter().map(anew).collect();
            let view = ControlView { now, nodes, ..ControlView::default() };
            self.views.send_replace(Some(Arc::new(view)));
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    fn told(&self, index: usize) -> (bool, Option<String>) {
        let pod = &self.groups.pods()[index];
        (pod.is_open, pod.told.clone())
    }
}

impl Drop for Rollout {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn is(is_open: bool, reason: &str) -> (bool, Option<String>) {
    (is_open, Some(reason.to_owned()))
}

const FULL: u64 = WINDOW_READINGS as u64 + 1;

#[tokio::test(start_paused = true)]
async fn groups_of_a_first_start_have_nothing_to_prove() {
    let mut loading = pod(1, "a");
    loading.answers = false;
    let rollout = Rollout::start(vec![pod(0, "a"), loading]);
    tokio::time::sleep(3 * LOOK_EVERY).await;
    assert_eq!(rollout.told(0), (false, None), "another controller leads");
    rollout.looks(2, &[]).await;
    assert_eq!(rollout.told(0), is(true, "NothingToCompare"));
    assert_eq!(rollout.told(1), (false, None), "its engine does not answer yet");
}

#[tokio::test(start_paused = true)]
async fn new_image_goes_on_when_its_group_is_as_fast_and_not_before() {
    let old = LeaderPod { is_open: true, ..pod(0, "a") };
    let rollout = Rollout::start(vec![old, pod(1, "b")]);
    let slow = [nodes(0, 640.0, 64), nodes(1, 320.0, 64)].concat();
    rollout.looks(2, &slow).await;
    assert_eq!(rollout.told(1), is(false, "Measuring"));
    rollout.looks(FULL, &slow).await;
    assert_eq!(rollout.told(1), is(false, "Slower"));
    rollout.looks(FULL, &[nodes(0, 640.0, 64), nodes(1, 630.0, 64)].concat()).await;
    assert_eq!(rollout.told(1), is(true, "AsFast"));
    assert_eq!(rollout.told(0), (true, None), "nobody asks the old one again");
}

#[tokio::test(start_paused = true)]
async fn group_that_is_not_in_service_gives_no_reading() {
    let old = LeaderPod { is_open: true, ..pod(0, "a") };
    let rollout = Rollout::start(vec![old, pod(1, "b")]);
    let mut draining = nodes(1, 640.0, 64);
    draining[1].state = NodeState::Draining;
    rollout.looks(2 * FULL, &[nodes(0, 640.0, 64), draining].concat()).await;
    assert_eq!(rollout.told(1), is(false, "Measuring"));
}

#[tokio::test(start_paused = true)]
async fn look_that_stands_while_the_queue_is_away_counts_once() {
    let old = LeaderPod { is_open: true, ..pod(0, "a") };
    let rollout = Rollout::start(vec![old, pod(1, "b")]);
    rollout.looks(2, &[nodes(0, 640.0, 64), nodes(1, 640.0, 64)].concat()).await;
    tokio::time::sleep(2 * LOOK_EVERY * u32::try_from(WINDOW_READINGS).expect("few")).await;
    assert_eq!(rollout.told(1), is(false, "Measuring"));
}

#[tokio::test(start_paused = true)]
async fn sets_are_not_compared_with_each_other() {
    let other = LeaderPod { set: "wide".to_owned(), is_open: true, ..pod(7, "a") };
    let rollout = Rollout::start(vec![other, pod(1, "b")]);
    rollout.looks(2, &nodes(1, 1.0, 64)).await;
    assert_eq!(rollout.told(1), is(true, "NothingToCompare"));
}
