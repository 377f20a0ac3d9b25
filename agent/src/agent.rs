//! One node agent: everything it needs is passed in, everything it does ends with it.
//!
//! [`Agent::run`] is one future. Nothing that it starts outlives it: dropping it is a kill, with
//! no last word to the queue, and cancelling `shutdown` is SIGTERM, after which everything held is
//! handed back and the future ends by itself.

use std::future::pending;
use std::sync::{Arc, Mutex};

use ebbtide_core::ids::PolicyVersion;
use ebbtide_core::notice::NoticeKind;
use ebbtide_core::time::UnixMillis;
use ebbtide_queue::client::{WorkQueue, wall_clock_now};
use ebbtide_queue::control::NodeState;
use futures::FutureExt;
use prometheus::Registry;
use thiserror::Error;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::config::AgentConfig;
use crate::connect::{Connector, LatePort, QueueAccess, connect_with_retries};
use crate::engine::Engine;
use crate::gate::{ClosedFor, LeaseGate};
use crate::hosting::{self, Roster};
use crate::imds::{self, ImdsClient};
use crate::interruption::{self, DrainReport, Inputs};
use crate::kubernetes::{Membership, NoPods, NodePods, NodeSight};
use crate::ledger::{AgentCounts, Desk};
use crate::marks::{NoMarks, NodeMarks};
use crate::meeting;
use crate::metrics::Metrics;
use crate::pulse::Pulses;
use crate::rhythm::{Rhythm, first_of};
use crate::server;
use crate::shared::{InstanceFacts, NodeStanding, Shared};
use crate::slowness;
use crate::socket;
use crate::webhook::Webhook;
use crate::wedged;
use crate::workers::{self, WorkerDesk, Workers};

/// Sightings that may wait: three sources look at most ten times a second.
const SIGHTINGS_WAITING: usize = 32;

/// The world around an agent.
pub struct Outside {
    /// The work queue of the run.
    pub queue: QueueAccess,
    /// The instance metadata service; none on a machine that has none.
    pub imds: Option<ImdsClient>,
    /// The engines of the node that it is told, 0 to 8.
    pub engines: Vec<Arc<dyn Engine>>,
    /// Marks on the Kubernetes node.
    pub marks: Arc<dyn NodeMarks>,
    /// Who else is told about notices.
    pub webhook: Option<Webhook>,
    /// The pods of the Kubernetes node, and what others say about it.
    pub pods: Arc<dyn NodePods>,
    /// The node's wall clock.
    pub wall_clock: fn() -> UnixMillis,
}

impl Outside {
    /// A world of a queue alone: no metadata service, no engine, no Kubernetes, the real clock.
    pub fn new(queue: QueueAccess) -> Self {
        Self {
            queue,
            imds: None,
            engines: Vec::new(),
            marks: Arc::new(NoMarks),
            webhook: None,
            pods: Arc::new(NoPods),
            wall_clock: wall_clock_now,
        }
    }

    /// As [`Outside::new`], with a queue that is open already.
    pub fn with_queue(queue: WorkQueue) -> Self {
        Self::new(QueueAccess::Open(queue))
    }
}

/// Why an agent could not begin.
#[derive(Debug, Error)]
pub enum AgentError {
    /// Its probes cannot be served.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// Where.
        address: std::net::SocketAddr,
        /// Why not.
        source: std::io::Error,
    },
    /// Custom workers cannot be served.
    #[error("cannot serve custom workers on {}: {problem}", path.display())]
    Socket {
        /// Where.
        path: std::path::PathBuf,
        /// Why not, and what to do.
        problem: String,
    },
    /// Its metrics clash.
    #[error("metrics cannot be registered: {0}")]
    Metrics(#[from] prometheus::Error),
}

/// What an agent did, when it ends in peace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentReport {
    /// What it did in all.
    pub counts: AgentCounts,
    /// The drains that it carried out, the newest last.
    pub drains: Vec<DrainReport>,
}

/// An agent that has not begun.
pub struct Agent {
    shared: Arc<Shared>,
    imds: Option<ImdsClient>,
    marks: Arc<dyn NodeMarks>,
    pods: Arc<dyn NodePods>,
    connecting: Option<(Connector, Arc<LatePort>)>,
}

/// Looks at an agent from outside, also after it was killed; cheap to clone.
#[derive(Clone)]
pub struct AgentHandle {
    shared: Arc<Shared>,
}

/// Runs an agent until `shutdown` is cancelled and everything is handed back.
///
/// # Errors
/// It could not begin.
pub async fn run(
    config: AgentConfig,
    outside: Outside,
    shutdown: CancellationToken,
) -> Result<AgentReport, AgentError> {
    Agent::new(config, outside).run(shutdown).await
}

impl Agent {
    /// An agent of this world; nothing happens until it runs.
    pub fn new(config: AgentConfig, outside: Outside) -> Self {
        let (queue, connecting) = outside.queue.into_queue();
        let shared = Shared {
            queue,
            gate: LeaseGate::default(),
            desk: Desk::default(),
            workers: WorkerDesk::default(),
            lease_turn: tokio::sync::Mutex::default(),
            engines: Roster::of(outside.engines, &config),
            webhook: outside.webhook.map(Arc::new),
            metrics: Metrics::new(),
            pulses: Pulses::default(),
            rhythm: Rhythm::begin(),
            wall_clock: outside.wall_clock,
            standing: watch::Sender::new(NodeStanding::default()),
            identity: Mutex::new(InstanceFacts::default()),
            run_version: watch::Sender::new(PolicyVersion::default()),
            published: watch::Sender::default(),
            queue_answered_at: watch::Sender::new(None),
            is_reclaimed: watch::Sender::new(false),
            engine_pod: watch::Sender::default(),
            deleted_pods: Mutex::default(),
            straggler: watch::Sender::default(),
            queue_trouble: watch::Sender::default(),
            membership: watch::Sender::default(),
            config,
        };
        shared.gate.close(ClosedFor::KeysUnread);
        let Outside { imds, marks, pods, .. } = outside;
        Self { shared: Arc::new(shared), imds, marks, pods, connecting }
    }

    /// A handle to look at this agent.
    pub fn handle(&self) -> AgentHandle {
        AgentHandle { shared: self.shared.clone() }
    }

    /// Runs until `shutdown` is cancelled and everything held is handed back, ten seconds later at
    /// the latest. Dropping the future is a kill.
    ///
    /// # Errors
    /// It could not begin.
    pub async fn run(self, shutdown: CancellationToken) -> Result<AgentReport, AgentError> {
        let span = tracing::info_span!("agent", node = %self.shared.config.node());
        self.run_loops(shutdown).instrument(span).await
    }

    async fn run_loops(self, shutdown: CancellationToken) -> Result<AgentReport, AgentError> {
        let Self { shared, imds, marks, pods, connecting } = self;
        tracing::info!(
            run = %shared.config.run,
            holder = %shared.config.holder,
            replica = %shared.config.replica,
            engines = shared.engines.present(),
            "agent begins"
        );
        let _closing = CloseOnDrop(shared.clone());
        let serving = serve(&shared).await?;
        let serving_workers = socket::serve(&shared).await?;
        let (sightings, sighted) = mpsc::channel(SIGHTINGS_WAITING);
        let (views, viewed) = watch::channel(None);
        let (sights, seen) = watch::channel(NodeSight::default());
        let (found, watched) = (seen.clone(), seen.clone());
        let inputs = Inputs { sightings: sighted, views: viewed, sights: seen, shutdown };
        let kubernetes = interruption::Kubernetes { marks: marks.clone(), pods: pods.clone() };
        first_of([
            interruption::run(shared.clone(), kubernetes, inputs).boxed(),
            hosting::host(shared.clone(), found).boxed(),
            meeting::meet(&shared, views).boxed(),
            slowness::tell(&shared, marks.clone()).boxed(),
            wedged::tend(&shared, marks, pods.clone(), watched).boxed(),
            watch_imds(&shared, imds, sightings).boxed(),
            pods.follow(shared.config.node(), &sights),
            connect(connecting).boxed(),
            serving.boxed(),
            serving_workers.boxed(),
            workers::tend(&shared).boxed(),
        ])
        .await;
        meeting::say_goodbye(&shared).await;
        let report = AgentHandle { shared }.report();
        tracing::info!(
            completed = report.counts.units_completed,
            handed_back = report.counts.handed_back_total(),
            "agent ends"
        );
        Ok(report)
    }
}

/// Closes the books at the moment at which the agent ends, however it ends.
struct CloseOnDrop(Arc<Shared>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.desk.ledger().close();
        self.0.workers.change(Workers::close);
    }
}

async fn serve(shared: &Arc<Shared>) -> Result<impl Future<Output = ()> + use<>, AgentError> {
    let registry = Registry::new();
    shared.metrics.register(&registry)?;
    let listener = match shared.config.listen {
        Some(address) => {
            let bound = server::bind(address).await;
            Some(bound.map_err(|source| AgentError::Listen { address, source })?)
        }
        None => None,
    };
    let shared = shared.clone();
    Ok(async move {
        match listener {
            Some(listener) => server::serve(listener, &shared, registry).await,
            None => pending().await,
        }
    })
}

async fn watch_imds(
    shared: &Shared,
    imds: Option<ImdsClient>,
    sightings: mpsc::Sender<imds::Sighting>,
) {
    if let Some(imds) = imds {
        imds::watch(shared, &imds, sightings).await;
    }
    pending().await
}

async fn connect(connecting: Option<(Connector, Arc<LatePort>)>) {
    if let Some((connector, late)) = connecting {
        let port = connect_with_retries(&connector, |error| late.note_failure(error)).await;
        late.open(port);
    }
    pending().await
}

impl AgentHandle {
    /// What the agent did so far. After a kill, `tokens_waiting` is what the kill cost.
    pub fn counts(&self) -> AgentCounts {
        self.shared.counts()
    }

    /// Units that it holds.
    pub fn held(&self) -> usize {
        self.shared.held()
    }

    /// How far its node is on its way into or out of service.
    pub fn state(&self) -> NodeState {
        meeting::node_state(&self.shared)
    }

    /// The strongest notice that counts now.
    pub fn notice(&self) -> Option<NoticeKind> {
        self.shared.standing.borrow().notice.map(|(kind, _)| kind)
    }

    /// Pods that are still to leave its node, 0 once the evictions have ended; `None` while that
    /// is not known, or no drain is under way.
    pub fn pods_left(&self) -> Option<usize> {
        self.shared.standing.borrow().drain?.pods_left
    }

    /// The EP group that its node serves, by the labels of the engine pod.
    pub fn membership(&self) -> Option<Membership> {
        self.shared.membership.borrow().clone()
    }

    /// Whether it may lease work now.
    pub fn is_gate_open(&self) -> bool {
        self.shared.gate.is_open()
    }

    /// What it did, as when it ended now.
    pub fn report(&self) -> AgentReport {
        AgentReport { counts: self.counts(), drains: self.shared.standing.borrow().reports.clone() }
    }

    /// Waits until the agent is as wanted; looked at whenever units, its standing or its lease gate
    /// change. Give it a time limit.
    pub async fn wait_until(&self, is_wanted: impl Fn(&Self) -> bool) {
        let mut changes = self.shared.desk.subscribe();
        let mut workers = self.shared.workers.subscribe();
        let mut standing = self.shared.standing.subscribe();
        let mut gate = self.shared.gate.subscribe();
        while !is_wanted(self) {
            // The senders live in `self`, so the waits cannot end with an error.
            tokio::select! {
                _ = changes.changed() => {}
                _ = workers.changed() => {}
                _ = standing.changed() => {}
                () = gate.changed() => {}
            }
        }
    }
}
