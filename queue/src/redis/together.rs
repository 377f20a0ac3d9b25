//! Exchanges that travel together: while calls are under way on a shard, those that come meanwhile
//! wait, and are sent as one when an answer is there.
//!
//! A call that is alone is sent at once. Under load the fixed cost of a call of Redis, and of the
//! wait for a replica, is shared by all the workers of this process that finish their units one by
//! one.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::vec::IntoIter;

use ebbtide_core::work::PromptGroup;
use redis::Value;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;

use super::decode::{self, DecodeError};
use super::library::Function;
use super::link::{Delivery, Link};
use crate::client::QueueError;
use crate::command::{COMMAND_BYTES_LIMIT, COMMAND_UNITS_LIMIT, Command};

/// Calls of one shard that are under way at a time: while one is answered, Redis has the other.
const CALLS_UNDER_WAY: usize = 2;
/// Requests of one call: each looks at the units that those before it could not take.
const REQUESTS_LIMIT: usize = 64;

/// What EXCHANGE is asked for by one caller.
pub(super) struct Request {
    pub arguments: Vec<Vec<u8>>,
    /// How many writes there are, and so replies.
    pub writes: usize,
    /// How many units it wants; 0 leases nothing.
    pub limit: usize,
    /// Whether safe mode makes the caller wait until the writes last.
    pub must_last: bool,
    /// Whose lease it is: one at a time is remembered.
    lease: Option<String>,
}

impl Request {
    /// The part that a command has in an exchange.
    pub fn of(command: &Command, arguments: Vec<Vec<u8>>, must_last: bool) -> Self {
        let (writes, lease) = match command {
            Command::Write { writes, .. } => (writes.len(), None),
            Command::Exchange { writes, lease } => (writes.len(), Some(lease)),
            Command::Lease(lease) => (0, Some(lease)),
            _ => (0, None),
        };
        let limit = lease.map_or(0, |lease| lease.limit.min(COMMAND_UNITS_LIMIT));
        let lease = lease.map(|lease| format!("{}|{:?}", lease.holder, lease.stage));
        Self { arguments, writes, limit, must_last, lease }
    }

    fn bytes(&self) -> usize {
        self.arguments.iter().map(Vec::len).sum()
    }
}

/// The answer to one request: the replies to its writes, its lease, and the specs of the call.
pub(super) struct Answer {
    pub replies: Vec<Value>,
    pub lease: Vec<Value>,
    pub specs: Arc<HashMap<Vec<u8>, Arc<PromptGroup>>>,
}

struct Passenger {
    request: Request,
    answer: oneshot::Sender<Result<Answer, QueueError>>,
}

/// Where a shard is.
pub(super) struct Shard {
    pub link: Link,
    pub keys: Vec<String>,
    /// The key to mark before a wait for a replica, if that is what makes writes last.
    pub mark: Option<String>,
}

/// The way of one shard's requests; ends with its [`Exchanges`].
#[derive(Clone)]
pub(super) struct Exchanges(mpsc::UnboundedSender<Passenger>);

impl Exchanges {
    /// Begins to carry requests to a shard, as a task of `tasks`.
    pub fn begin(shard: Shard, tasks: &mut JoinSet<()>) -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        tasks.spawn(carry(Arc::new(shard), receiver));
        Self(sender)
    }

    /// Sends a request, alone or with others.
    ///
    /// # Errors
    /// The call had no answer, or not one of its shape.
    pub async fn ask(&self, request: Request) -> Result<Answer, QueueError> {
        let (answer, answered) = oneshot::channel();
        // Where the task has ended, so has the client.
        let _ = self.0.send(Passenger { request, answer });
        answered.await.unwrap_or_else(|_| Err(QueueError::no_reply()))
    }
}

async fn carry(shard: Arc<Shard>, mut waiting: mpsc::UnboundedReceiver<Passenger>) {
    let places = Arc::new(Semaphore::new(CALLS_UNDER_WAY));
    let mut calls = JoinSet::new();
    let mut left_behind = None;
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        let first = match left_behind.take() {
            Some(first) => first,
            None => match waiting.recv().await {
                Some(first) => first,
                None => break,
            },
        };
        let aboard = board(first, &mut waiting, &mut left_behind);
        let shard = shard.clone();
        calls.spawn(async move {
            travel(&shard, aboard).await;
            drop(place);
        });
        while calls.try_join_next().is_some() {}
    }
    calls.join_all().await;
}

/// Those who go together, as many as one call may carry.
fn board(
    first: Passenger,
    waiting: &mut mpsc::UnboundedReceiver<Passenger>,
    left_behind: &mut Option<Passenger>,
) -> Vec<Passenger> {
    let (mut units, mut bytes, mut leases) = (0, 0, HashSet::new());
    let mut fits = |request: &Request| {
        units += request.writes + request.limit;
        bytes += request.bytes();
        units <= COMMAND_UNITS_LIMIT
            && bytes <= COMMAND_BYTES_LIMIT
            && request.lease.as_ref().is_none_or(|lease| leases.insert(lease.clone()))
    };
    // One that is larger than the limits by itself still goes, alone.
    fits(&first.request);
    let mut aboard = vec![first];
    while aboard.len() < REQUESTS_LIMIT
        && let Ok(next) = waiting.try_recv()
    {
        // Nobody waits for it any more: it must not be granted anything.
        if next.answer.is_closed() {
            continue;
        }
        if !fits(&next.request) {
            *left_behind = Some(next);
            break;
        }
        aboard.push(next);
    }
    aboard
}

async fn travel(shard: &Shard, aboard: Vec<Passenger>) {
    let requests: Vec<&Request> = aboard.iter().map(|passenger| &passenger.request).collect();
    match call(shard, &requests).await {
        Ok(answers) => {
            for (passenger, answer) in aboard.into_iter().zip(answers) {
                let _ = passenger.answer.send(Ok(answer));
            }
        }
        // What is wrong with one must not be the fault of all: each goes by itself. What was carried
        // out already is answered again.
        Err(QueueError::Protocol { .. }) if aboard.len() > 1 => {
            for Passenger { request, answer } in aboard {
                let alone = call(shard, &[&request]).await;
                let _ = answer.send(alone.and_then(|answers| {
                    answers.into_iter().next().ok_or_else(QueueError::no_reply)
                }));
            }
        }
        Err(error) => {
            for passenger in aboard {
                let _ = passenger.answer.send(Err(error.clone()));
            }
        }
    }
}

/// One call for all requests; an answer for each.
async fn call(shard: &Shard, requests: &[&Request]) -> Result<Vec<Answer>, QueueError> {
    let arguments: Vec<&[u8]> =
        requests.iter().flat_map(|request| request.arguments.iter().map(Vec::as_slice)).collect();
    let must_last = requests.iter().any(|request| request.must_last);
    let delivery = Delivery {
        // What grants is not sent again from here: its holder may have closed its gate meanwhile.
        may_repeat: requests.iter().all(|request| request.lease.is_none()),
        mark_key: shard.mark.as_deref().filter(|_| must_last),
    };
    let value: Value = shard
        .link
        .call_function(Function::Exchange, &shard.keys, &arguments, delivery)
        .await
        .map_err(|error| error.to_queue_error())?;
    divide(value, requests).map_err(|error| QueueError::Protocol {
        problem: format!("{}: {error}", shard.link.name()),
    })
}

/// Divides the answer of a call among its requests: first come the replies of all of them, then their
/// leases, then the specs.
fn divide(value: Value, requests: &[&Request]) -> Result<Vec<Answer>, DecodeError> {
    let mut values = decode::list(value)?;
    let replies = requests
        .iter()
        .map(|request| take(&mut values, request.writes))
        .collect::<Result<Vec<_>, _>>()?;
    let leases = requests
        .iter()
        .map(|request| take_lease(&mut values, request.limit > 0))
        .collect::<Result<Vec<_>, _>>()?;
    let specs = Arc::new(decode::specs(values)?);
    let answer = |(replies, lease)| Answer { replies, lease, specs: specs.clone() };
    Ok(replies.into_iter().zip(leases).map(answer).collect())
}

fn take(values: &mut IntoIter<Value>, count: usize) -> Result<Vec<Value>, DecodeError> {
    let taken: Vec<Value> = values.take(count).collect();
    if taken.len() < count { Err(decode::too_short()) } else { Ok(taken) }
}

/// The values of a lease, as [`decode::lease`] reads them.
fn take_lease(values: &mut IntoIter<Value>, is_there: bool) -> Result<Vec<Value>, DecodeError> {
    if !is_there {
        return Ok(Vec::new());
    }
    let mut lease = take(values, decode::LEASE_HEAD)?;
    let grants = decode::count_of_grants(&lease)?;
    lease.extend(take(values, grants * decode::GRANT_VALUES)?);
    Ok(lease)
}
