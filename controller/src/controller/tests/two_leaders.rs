//! Two controllers that both believe that they lead.

use std::sync::Mutex;

use async_trait::async_trait;
use ebbtide_queue::client::{Hint, QueueError, QueuePort};
use ebbtide_queue::command::Command;
use ebbtide_queue::control::{ControlCommand, ControlReply, DrainState};
use ebbtide_queue::reply::Reply;

use super::super::*;
use super::world::{Told, World, policy};
use crate::leader::Standing;

/// Leads under this generation from the beginning, whoever else does.
struct Usurper(u64);

#[async_trait]
impl LeaderLease for Usurper {
    async fn campaign(&self, standing: Standing, shutdown: CancellationToken) {
        standing.send_replace(Some(Leadership { generation: self.0, until: None }));
        shutdown.cancelled().await;
    }
}

/// Whether a controller may send this: it changes nothing, or says under which generation.
fn is_fenced(command: &ControlCommand, own: u64) -> bool {
    match command {
        ControlCommand::RequestDrain(request) => request.generation == own,
        ControlCommand::ReportDrain(progress) => progress.generation == own,
        ControlCommand::Claim { generation, .. } | ControlCommand::Lead { generation, .. } => {
            *generation == own
        }
        // That somebody reaps is true whoever says it, and leases end by their own tokens.
        ControlCommand::Read
        | ControlCommand::ReadReplica(_)
        | ControlCommand::ReadReports(_)
        | ControlCommand::ReadJournal(_)
        | ControlCommand::BeatReaper => true,
        _ => false,
    }
}

/// The queue as one controller of the generation sees it.
struct Watched {
    port: Arc<dyn QueuePort>,
    generation: u64,
    unfenced: Mutex<Vec<String>>,
    kinds: Mutex<std::collections::BTreeSet<String>>,
}

#[async_trait]
impl QueuePort for Watched {
    fn shard_count(&self) -> u16 {
        self.port.shard_count()
    }

    async fn call(&self, shard: u16, command: Command) -> Result<Reply, QueueError> {
        self.port.call(shard, command).await
    }

    async fn control(&self, command: ControlCommand) -> Result<ControlReply, QueueError> {
        let text = format!("{command:?}");
        if !is_fenced(&command, self.generation) {
            self.unfenced.lock().expect("no panic").push(text.clone());
        }
        let kind = |text: &str| {
            let end = text.find(|letter: char| !letter.is_alphanumeric()).unwrap_or(text.len());
            text[..end].to_owned()
        };
        let mut kinds = vec![kind(&text)];
        kinds.extend(text.split_once("write: ").map(|(_, write)| kind(write)));
        self.kinds.lock().expect("no panic").extend(kinds);
        self.port.control(command).await
    }

    async fn woken(&self, hint: Hint) {
        self.port.woken(hint).await;
    }

    async fn wake(&self, hint: Hint) {
        self.port.wake(hint).await;
    }
}

/// One that led with a clock ahead left a generation that nobody reaches for a while.
#[tokio::test(start_paused = true)]
async fn leader_that_the_queue_does_not_follow_says_so() {
    let mut world = World::start(policy("act")).await;
    world.until("the minimum runs", async || world.ready_nodes().await == 1).await;
    assert!(world.queue.claim(9, "a clock ahead").await.expect("memory"));
    let late = world.add_rival(policy("act"), world.queue.clone(), Usurper(7));
    let is_said =
        async || late.snapshot().event_problems.iter().any(|it| it.contains("newer leader"));
    world.until("it is said", is_said).await;
    assert!(world.snapshot().event_problems.is_empty(), "its own claim was accepted in time");
}

/// Case T35 of autoscaling.
#[tokio::test(start_paused = true)]
async fn older_of_two_leaders_changes_nothing_and_every_write_of_the_newer_says_whose_it_is() {
    let mut world = World::start(policy("act")).await;
    world.until("the minimum runs", async || world.ready_nodes().await == 1).await;
    let older = world.snapshot();
    assert!(older.is_leader && older.generation == 1, "{older:?}");

    let watched = Arc::new(Watched {
        port: world.port.clone(),
        generation: 7,
        unfenced: Mutex::default(),
        kinds: Mutex::default(),
    });
    let queue = WorkQueue::new(watched.clone());
    let newer = world.add_rival(policy("act"), queue, Usurper(7));
    world.until("the newer leads", async || newer.snapshot().is_leader).await;
    let claimed = async || !world.queue.claim(6, "anything").await.expect("memory");
    world.until("the queue knows of it", claimed).await;
    let decisions_of_older = world.snapshot().scale_decisions;

    world.enqueue_groups(0..40).await;
    world.until("four nodes work", async || world.ready_nodes().await == 4).await;
    let nodes = world.provider.nodes();
    let makes = |place: usize, speed: f64| {
        let told = Told { pods_left: Some(0), speed: Some((8, speed)), ..Told::default() };
        world.agents.tell(&nodes[place].node, told);
    };
    (0..4).for_each(|place| makes(place, 20.0));
    makes(2, 9.0);
    let named = async || world.queue.view().await.expect("memory").stragglers.len();
    world.until("a slow replica is named", async || named().await == 1).await;
    makes(2, 20.0);
    world.until("that is taken back", async || named().await == 0).await;
    world.agents.may_drain.store(false, std::sync::atomic::Ordering::Relaxed);
    world.fill_buffer(4).await;
    world.until("three drains are asked for", async || world.drains().await.len() == 3).await;
    let drains = world.queue.view().await.expect("memory").drains;
    assert!(drains.iter().all(|drain| drain.generation == 7), "{drains:?}");
    world.empty_buffer().await;
    let cancelled =
        async || world.drains().await.iter().all(|(_, state)| *state == DrainState::Cancelled);
    world.until("they are taken back", cancelled).await;
    world.agents.may_drain.store(true, std::sync::atomic::Ordering::Relaxed);
    world.fill_buffer(4).await;
    world.until("one node is left", async || world.node_records().await == 1).await;

    let older = world.snapshot();
    assert!(older.is_leader, "it believes so to the end");
    assert_eq!(older.scale_decisions, decisions_of_older, "and carries nothing out");
    let unfenced = watched.unfenced.lock().expect("no panic").clone();
    assert!(unfenced.is_empty(), "{unfenced:?}");
    let kinds = watched.kinds.lock().expect("no panic").clone();
    for kind in ["Claim", "RequestDrain", "ReportDrain", "RemoveNode", "RemoveDrain"] {
        assert!(kinds.contains(kind), "{kind} was not seen: {kinds:?}");
    }
    for kind in ["PutStraggler", "RemoveStraggler", "PutLedger", "AddJournal"] {
        assert!(kinds.contains(kind), "{kind} was not seen: {kinds:?}");
    }
}
