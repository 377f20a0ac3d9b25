//! A pod as the agent needs it: who it is, when it may leave, and what it belongs to.

use std::fmt;
use std::time::Duration;

use ebbtide_core::time::UnixMillis;

/// Names one pod for good: a successor of the same name has another UID.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodId {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
}

impl fmt::Display for PodId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// In which order pods leave a node; an earlier one first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// Everything else.
    Ordinary,
    /// What the cluster or the node needs: priority 2,000,000,000 and more.
    Critical,
    /// Custom workers: they hold work.
    Worker,
    /// Engines: they hold streams.
    Engine,
}

impl Tier {
    /// All tiers, in order.
    pub const ALL: [Self; 4] = [Self::Ordinary, Self::Critical, Self::Worker, Self::Engine];
}

/// Why a pod stays where it is, whatever happens to the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StayReason {
    /// A DaemonSet would make it anew on the same node.
    DaemonSet,
    /// The kubelet made it of a file; its API object is a mirror.
    Static,
    /// It is Ebbtide's own: agent or controller.
    Own,
    /// It has ended: nothing of it runs.
    Finished,
}

impl StayReason {
    /// The reason in words.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::DaemonSet => "daemon_set",
            Self::Static => "static",
            Self::Own => "own",
            Self::Finished => "finished",
        }
    }
}

/// A deletion under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Termination {
    /// When it is to be over, on the API server's clock.
    pub by: UnixMillis,
    /// The grace that it was given.
    pub grace: Duration,
}

/// The labels that LeaderWorkerSet puts on the pods of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupLabels {
    /// `leaderworkerset.sigs.k8s.io/name`.
    pub name: String,
    /// `leaderworkerset.sigs.k8s.io/group-index`.
    pub group_index: u32,
    /// `leaderworkerset.sigs.k8s.io/worker-index`; 0 is the leader.
    pub worker_index: u32,
}

/// When a pod came to run, on the API server's clock and in whole seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PodStart {
    /// When it was bound to the node.
    pub scheduled: Option<UnixMillis>,
    /// When the last of its containers began to run that runs now; `None` while one does not.
    pub started: Option<UnixMillis>,
    /// Whether one of its containers was started again since.
    pub is_restarted: bool,
}

/// A port of an engine's pod on which the engine answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnginePort {
    /// Its base URL, for everybody in the cluster; `None` while the pod does not run.
    pub url: Option<String>,
    /// Other URLs that may stand for it on its node.
    pub also: Vec<String>,
    /// The run that it works for, where its pod says so.
    pub run: Option<String>,
}

/// A pod that is bound to the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenPod {
    /// Which one.
    pub id: PodId,
    /// When its turn to leave comes.
    pub tier: Tier,
    /// Why it stays, if it does.
    pub stays: Option<StayReason>,
    /// Its priority.
    pub priority: i32,
    /// The time it asks for between SIGTERM and SIGKILL.
    pub grace: Duration,
    /// When it was created, on the API server's clock; `None` when it does not say.
    pub created: Option<UnixMillis>,
    /// How it came to run.
    pub start: PodStart,
    /// Its deletion, if one is under way.
    pub termination: Option<Termination>,
    /// The group that it belongs to, if it does.
    pub group: Option<GroupLabels>,
    /// Where its engines answer, if it is an engine's pod that has not ended.
    pub engines: Vec<EnginePort>,
}

impl SeenPod {
    /// An ordinary running pod with the grace that Kubernetes gives by default.
    pub fn ordinary(namespace: &str, name: &str, uid: &str) -> Self {
        let id =
            PodId { namespace: namespace.to_owned(), name: name.to_owned(), uid: uid.to_owned() };
        Self {
            id,
            tier: Tier::Ordinary,
            stays: None,
            priority: 0,
            grace: Duration::from_secs(30),
            created: None,
            start: PodStart::default(),
            termination: None,
            group: None,
            engines: Vec::new(),
        }
    }
}
