//! One server, with a connection that is kept: made again when it breaks, moved when the server
//! stops being the master, with bounded pauses between tries.
//!
//! While the server is away every call fails at once: nobody waits for it but the keeper of the
//! connection. This is what keeps one silent server from slowing the work on all the others.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::{FromRedisValue, Pipeline, Value, from_redis_value};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::super::address::Endpoint;
use super::super::library::LIBRARY;
use super::connected::{Connected, Lane};
use super::dial::{Dialer, refused, server_name};
use super::error::{LinkError, LinkErrorKind};
use super::sentinel::Sentinels;
use super::{CALL_TIME_LIMIT, RECONNECT_DELAY_MAX, RECONNECT_DELAY_MIN};
use crate::client::Backoff;

/// How long a server that left a call unanswered has for a PING before it counts as away.
const SUSPECT_TIME_LIMIT: Duration = Duration::from_millis(500);

/// Where a server is found.
pub(super) enum Place {
    At(Endpoint),
    /// Wherever the Sentinels say the master is, asked before each connection.
    Master(Sentinels),
}

/// A server, its connections, and what is known of it.
pub(in crate::redis) struct Server {
    dialer: Dialer,
    place: Place,
    state: watch::Sender<State>,
    /// The worst that calls ran into and the keeper has not seen yet.
    trouble: Mutex<Option<Trouble>>,
    is_in_trouble: Notify,
    generations: AtomicU64,
    /// Whether it has little memory left.
    pub is_memory_short: AtomicBool,
    /// Whether this client has worked with it since its memory was looked at.
    pub is_in_use: AtomicBool,
}

/// A server and the task that keeps its connection; ends with the last handle.
pub(super) struct Kept {
    pub server: Arc<Server>,
    _keeper: JoinSet<()>,
}

#[derive(Clone)]
enum State {
    Dialing,
    Up(Arc<Connected>),
    Away(LinkError),
}

/// What a call on a connection ran into.
struct Trouble {
    generation: u64,
    error: LinkError,
}

impl Server {
    /// Begins to connect.
    pub(super) fn keep(dialer: Dialer, place: Place) -> Kept {
        let server = Arc::new(Self {
            dialer,
            place,
            state: watch::Sender::new(State::Dialing),
            trouble: Mutex::default(),
            is_in_trouble: Notify::new(),
            generations: AtomicU64::new(0),
            is_memory_short: AtomicBool::new(false),
            is_in_use: AtomicBool::new(false),
        });
        let mut keeper = JoinSet::new();
        keeper.spawn(keep(server.clone()));
        Kept { server, _keeper: keeper }
    }

    /// Sends a pipeline; gives one value for each command, errors of the server included.
    pub(super) async fn send(
        &self,
        pipeline: &Pipeline,
        lane: Lane,
    ) -> Result<Vec<Value>, LinkError> {
        let connected = self.connected().await?;
        let server = server_name(&connected.endpoint);
        let line = connected.line(lane, &self.dialer).await?;
        let mut connection = line.connection.clone();
        let sent = connection.send_packed_commands(pipeline, 0, pipeline.len()).await;
        let sent = sent.map_err(|error| LinkError::of_connection(&server, &error));
        let trouble = match &sent {
            Ok(values) => values
                .iter()
                .filter_map(refused)
                .find(|refusal| matches!(refusal.code(), "READONLY" | "MASTERDOWN"))
                .map(|refusal| LinkError::of_refusal(&server, refusal)),
            Err(_) if lane == Lane::Waits => {
                connected.give_up_waiting(&line).await;
                None
            }
            Err(error) => Some(error.clone()),
        };
        if let Some(error) = trouble {
            self.report(&connected, error);
        }
        sent
    }

    /// Tells the keeper. After a broken connection the next call waits for what comes of it.
    fn report(&self, connected: &Connected, error: LinkError) {
        let generation = connected.generation;
        if error.kind == LinkErrorKind::Broken {
            self.state.send_if_modified(|state| {
                let is_it = matches!(state, State::Up(up) if up.generation == generation);
                if is_it {
                    *state = State::Dialing;
                }
                is_it
            });
        }
        let mut trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        let is_known = trouble.as_ref().is_some_and(|known| {
            known.generation == generation && known.error.kind != LinkErrorKind::Silent
        });
        if !is_known {
            *trouble = Some(Trouble { generation, error });
        }
        drop(trouble);
        self.is_in_trouble.notify_one();
    }

    /// Makes the library known to the server.
    pub async fn load_library(&self) -> Result<(), LinkError> {
        let mut load = redis::pipe();
        load.cmd("FUNCTION").arg("LOAD").arg("REPLACE").arg(LIBRARY.source.as_str()).ignore();
        self.query(&load).await
    }

    /// Sends a pipeline and reads its replies; the first error of the server is the answer.
    pub async fn query<T: FromRedisValue>(&self, pipeline: &Pipeline) -> Result<T, LinkError> {
        let values = self.send(pipeline, Lane::Calls).await?;
        decode(&self.name(), values)
    }

    /// What it is called in messages.
    pub fn name(&self) -> String {
        self.endpoint().map_or_else(|| "redis".to_owned(), |endpoint| server_name(&endpoint))
    }

    /// Where it is, as far as that is known.
    pub fn endpoint(&self) -> Option<Endpoint> {
        match (&self.place, &*self.state.borrow()) {
            (Place::At(endpoint), _) => Some(endpoint.clone()),
            (Place::Master(_), State::Up(connected)) => Some(connected.endpoint.clone()),
            (Place::Master(_), _) => None,
        }
    }

    /// Whether calls can be sent now.
    pub fn is_up(&self) -> bool {
        matches!(&*self.state.borrow(), State::Up(_))
    }

    async fn connected(&self) -> Result<Arc<Connected>, LinkError> {
        let mut states = self.state.subscribe();
        let settled = states.wait_for(|state| !matches!(state, State::Dialing));
        let state =
            timeout(CALL_TIME_LIMIT * 2, settled).await.map(|state| state.map(|s| s.clone()));
        match state {
            Ok(Ok(State::Up(connected))) => Ok(connected),
            Ok(Ok(State::Away(error))) => Err(error),
            _ => Err(LinkError::new(LinkErrorKind::Away, self.name(), "still connecting")),
        }
    }

    async fn dial(&self) -> Result<Connected, LinkError> {
        let (endpoint, calls) = match &self.place {
            Place::At(endpoint) => (endpoint.clone(), self.dialer.dial(endpoint).await?),
            Place::Master(sentinels) => sentinels.dial_master(&self.dialer).await?,
        };
        let generation = self.generations.fetch_add(1, Ordering::Relaxed);
        Ok(Connected::new(generation, endpoint, calls))
    }
}

/// Reads the values of a pipeline; the first error of the server is the answer.
pub(super) fn decode<T: FromRedisValue>(server: &str, values: Vec<Value>) -> Result<T, LinkError> {
    if let Some(refusal) = values.iter().find_map(refused) {
        return Err(LinkError::of_refusal(server, refusal));
    }
    from_redis_value(Value::Array(values))
        .map_err(|error| LinkError::new(LinkErrorKind::Unreadable, server, error))
}

/// Connects, watches the connection, connects again, for as long as the server is wanted.
async fn keep(server: Arc<Server>) {
    let mut backoff = Backoff::new(RECONNECT_DELAY_MIN, RECONNECT_DELAY_MAX);
    let mut is_known_away = false;
    loop {
        let problem = match server.dial().await {
            Ok(connected) => {
                let connected = Arc::new(connected);
                let since = Instant::now();
                if std::mem::take(&mut is_known_away) {
                    tracing::info!(server = server_name(&connected.endpoint), "redis is back");
                }
                server.state.send_replace(State::Up(connected.clone()));
                let problem = stands_until(&connected, &server).await;
                if since.elapsed() > RECONNECT_DELAY_MAX {
                    backoff.reset();
                    if problem.kind != LinkErrorKind::Silent {
                        // It worked until now: calls wait for the one try that costs no pause.
                        server.state.send_replace(State::Dialing);
                        continue;
                    }
                }
                problem
            }
            Err(problem) => problem,
        };
        if !std::mem::replace(&mut is_known_away, true) {
            tracing::warn!(%problem, "redis is away");
        }
        server.state.send_replace(State::Away(problem));
        tokio::time::sleep(backoff.next_pause()).await;
    }
}

/// Waits until the connection must be replaced; gives the reason.
async fn stands_until(connected: &Connected, server: &Server) -> LinkError {
    loop {
        server.is_in_trouble.notified().await;
        let trouble = server.trouble.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(trouble) = trouble.filter(|it| it.generation == connected.generation) else {
            continue;
        };
        let is_silent = trouble.error.kind == LinkErrorKind::Silent;
        if !is_silent || !connected.answers_within(SUSPECT_TIME_LIMIT).await {
            return trouble.error;
        }
    }
}
