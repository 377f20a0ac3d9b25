//! What services have to do whose queues are others': Redis lists and streams, SQS, Prometheus.
//!
//! Each source is asked by a task of its own, over and over, so that one that does not answer holds
//! up nothing: sizing takes the newest answer with its age. A read that failed, and an answer that
//! is too old, are unknown and say why; they are never zero.

mod prometheus;
mod redis;
mod sqs;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use ebbtide_core::policy::{FleetPolicy, ServiceSignal};
use ebbtide_core::scale::Role;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::aws::SdkConfig;
use crate::metrics::ApiCalls;

/// Longest time of one read.
const READ_LIMIT: Duration = Duration::from_secs(4);

/// Shortest time between two reads.
const READ_EVERY_MIN: Duration = Duration::from_secs(1);

/// An older answer does not count: a few reads have failed to come since.
const AGE_LIMIT: Duration = Duration::from_secs(30);

/// Longest time between two reads, however long a tick is: one that fails to come, and the time
/// that the next takes, leave the one before young enough.
const READ_EVERY_MAX: Duration = Duration::from_secs(10);

/// What a service has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    /// Items that wait.
    pub waiting: u64,
    /// Items that are worked on; `None` when the source does not tell.
    pub in_flight: Option<u64>,
}

/// One source.
#[async_trait]
pub trait SignalSource: Send + Sync {
    /// Reads it.
    ///
    /// # Errors
    /// Why it is unknown, in words.
    async fn read(&self) -> Result<Reading, String>;
}

/// Every source that a policy may name.
pub trait SignalSources: Send + Sync {
    /// The source of a signal. Nothing is called yet.
    fn open(&self, signal: &ServiceSignal) -> Arc<dyn SignalSource>;
}

/// The real sources.
pub struct RealSources {
    redis_url: String,
    aws: SdkConfig,
    calls: ApiCalls,
}

impl RealSources {
    /// With the Redis of the run, for signals that name none.
    pub fn new(redis_url: &str, aws: &SdkConfig, calls: ApiCalls) -> Self {
        Self { redis_url: redis_url.to_owned(), aws: aws.clone(), calls }
    }
}

impl SignalSources for RealSources {
    fn open(&self, signal: &ServiceSignal) -> Arc<dyn SignalSource> {
        match signal {
            ServiceSignal::RedisList(list) => {
                Arc::new(redis::ListSource::new(list.clone(), &self.redis_url))
            }
            ServiceSignal::RedisStream(stream) => {
                Arc::new(redis::StreamSource::new(stream.clone(), &self.redis_url))
            }
            ServiceSignal::Sqs(url) => {
                Arc::new(sqs::SqsSource::new(&self.aws, url, self.calls.clone()))
            }
            ServiceSignal::Prometheus(queries) => {
                Arc::new(prometheus::PrometheusSource::new(queries.clone()))
            }
        }
    }
}

/// No source at all: what a policy names stays unknown.
pub struct NoSources;

impl SignalSources for NoSources {
    fn open(&self, _signal: &ServiceSignal) -> Arc<dyn SignalSource> {
        Arc::new(Self)
    }
}

#[async_trait]
impl SignalSource for NoSources {
    async fn read(&self) -> Result<Reading, String> {
        Err("this controller reads no signals of others".to_owned())
    }
}

/// The newest answer, and when it came.
type Answer = Option<(Instant, Result<Reading, String>)>;

/// The sources of the policy in force.
pub(crate) struct Signals {
    sources: Arc<dyn SignalSources>,
    watched: BTreeMap<Role, Watched>,
}

struct Watched {
    signal: ServiceSignal,
    every: Duration,
    answer: watch::Receiver<Answer>,
    /// Ends with this.
    _task: JoinSet<()>,
}

impl Watched {
    /// Whether somebody goes on to ask it. A task that has failed is begun anew at the next turn.
    fn is_asked(&self) -> bool {
        self.answer.has_changed().is_ok()
    }
}

impl Signals {
    pub fn new(sources: Arc<dyn SignalSources>) -> Self {
        Self { sources, watched: BTreeMap::new() }
    }

    /// Asks the sources that the policy names from now on, and no others.
    pub fn follow(&mut self, policy: &FleetPolicy) {
        let every = policy.rollout.tick.clamp(READ_EVERY_MIN, READ_EVERY_MAX);
        for role in Role::SERVICES {
            let signal = policy.service(role).and_then(|service| service.signal.clone());
            let Some(signal) = signal else {
                self.watched.remove(&role);
                continue;
            };
            let is_followed = |known: &Watched| {
                known.signal == signal && known.every == every && known.is_asked()
            };
            if self.watched.get(&role).is_some_and(is_followed) {
                continue;
            }
            let (answers, answer) = watch::channel(None);
            let mut task = JoinSet::new();
            task.spawn(ask_over_and_over(self.sources.open(&signal), role, every, answers));
            self.watched.insert(role, Watched { signal, every, answer, _task: task });
        }
    }

    /// The newest answer of each source with its age, or why it is unknown.
    pub fn readings(&self) -> BTreeMap<Role, Result<(Reading, Duration), String>> {
        let newest = |watched: &Watched| match &*watched.answer.borrow() {
            _ if !watched.is_asked() => Err("it is not asked any more: that failed".to_owned()),
            None => Err("it has not answered yet".to_owned()),
            Some((_, Err(why))) => Err(why.clone()),
            Some((at, Ok(reading))) => match at.elapsed() {
                age if age <= AGE_LIMIT => Ok((*reading, age)),
                age => {
                    let (age, limit) = (age.as_secs(), AGE_LIMIT.as_secs());
                    Err(format!("its answer is {age}s old, at most {limit}s count"))
                }
            },
        };
        self.watched.iter().map(|(role, watched)| (*role, newest(watched))).collect()
    }
}

async fn ask_over_and_over(
    source: Arc<dyn SignalSource>,
    role: Role,
    every: Duration,
    answers: watch::Sender<Answer>,
) {
    let mut last_problem = None;
    while !answers.is_closed() {
        let answer = match tokio::time::timeout(READ_LIMIT, source.read()).await {
            Ok(answer) => answer,
            Err(_) => Err(format!("no answer within {READ_LIMIT:?}")),
        };
        let problem = answer.as_ref().err().cloned();
        if problem.is_some() && problem != last_problem {
            let problem = problem.as_deref().unwrap_or_default();
            tracing::warn!(%role, %problem, "signal of a service is unknown");
        }
        last_problem = problem;
        answers.send_replace(Some((Instant::now(), answer)));
        tokio::time::sleep(every).await;
    }
}
