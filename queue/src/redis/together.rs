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
use crate::command::{COMMAND_UNITS_LIMIT, Command};

/// Calls of one shard that are under way at a time: while some are answered, Redis has the others.
const CALLS_UNDER_WAY: usize = 4;
/// Units, written and wanted, of requests that share a call: with more of them it would save
/// little, and Redis would serve nobody else for longer.
const SHARED_UNITS_LIMIT: usize = 32;
/// Bytes of requests that share a call.
const SHARED_BYTES_LIMIT: usize = 256 << 10;

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

impl Shard {
    /// How to deliver a call to it.
    pub fn delivery(&self, may_repeat: bool, must_last: bool) -> Delivery<'_> {
        Delivery { may_repeat, mark_key: self.mark.as_deref().filter(|_| must_last) }
    }

    /// What to tell the caller of the queue.
    pub fn explain(&self, error: &DecodeError) -> QueueError {
        error.to_queue_error(self.link.name())
    }
}

/// A shard, and the way of the requests to it.
pub(super) struct Exchanges {
    pub shard: Arc<Shard>,
    waiting: mpsc::UnboundedSender<Passenger>,
}

impl Exchanges {
    /// Begins to carry requests to a shard, as a task of `tasks`.
    pub fn begin(shard: Shard, tasks: &mut JoinSet<()>) -> Self {
        let (waiting, boarding) = mpsc::unbounded_channel();
        let shard = Arc::new(shard);
        tasks.spawn(carry(shard.clone(), boarding));
        Self { shard, waiting }
    }

    /// Sends a request, alone or with others.
    ///
    /// # Errors
    /// The call had no answer, or not one of its shape.
    pub async fn ask(&self, request: Request) -> Result<Answer, QueueError> {
        let (answer, answered) = oneshot::channel();
        // Where the task has ended, so has the client.
        let _ = self.waiting.send(Passenger { request, answer });
        answered.await.unwrap_or_else(|_| Err(QueueError::no_reply()))
    }
}

async fn carry(shard: Arc<Shard>, mut waiting: mpsc::UnboundedReceiver<Passenger>) {
    let places = Arc::new(Semaphore::new(CALLS_UNDER_WAY));
    let (silences, mut silence) = mpsc::unbounded_channel();
    let mut calls = JoinSet::new();
    let mut left_behind = None;
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        // Who has waited while others had no answer has waited as long as they.
        if let Ok(error) = silence.try_recv() {
            while let Some(passenger) = left_behind.take().or_else(|| waiting.try_recv().ok()) {
                let _ = passenger.answer.send(Err(QueueError::clone(&error)));
            }
        }
        let first = match left_behind.take() {
            Some(first) => first,
            None => match waiting.recv().await {
                Some(first) => first,
                None => break,
            },
        };
        let aboard = board(first, &mut waiting, &mut left_behind);
        let (shard, silences) = (shard.clone(), silences.clone());
        calls.spawn(async move {
            if let Some(error) = travel(&shard, aboard).await {
                let _ = silences.send(error);
            }
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
        units <= SHARED_UNITS_LIMIT
            && bytes <= SHARED_BYTES_LIMIT
            && request.lease.as_ref().is_none_or(|lease| leases.insert(lease.clone()))
    };
    // One that is larger by itself goes alone.
    fits(&first.request);
    let mut aboard = vec![first];
    while let Ok(next) = waiting.try_recv() {
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

/// Sends a call and tells everybody aboard what came of it; gives the error when it had no answer
/// in time.
async fn travel(shard: &Shard, aboard: Vec<Passenger>) -> Option<QueueError> {
    let requests: Vec<&Request> = aboard.iter().map(|passenger| &passenger.request).collect();
    match call(shard, &requests).await {
        Ok(answers) => {
            for (passenger, answer) in aboard.into_iter().zip(answers) {
                let _ = passenger.answer.send(Ok(answer));
            }
            None
        }
        // What is wrong with one must not be the fault of all: each goes by itself. What was
        // carried out already is answered again.
        Err(error) if !error.is_passing() && aboard.len() > 1 => {
            for Passenger { request, answer } in aboard {
                let alone = call(shard, &[&request]).await.map_err(|error| shard.explain(&error));
                let _ = answer.send(alone.and_then(|answers| {
                    answers.into_iter().next().ok_or_else(QueueError::no_reply)
                }));
            }
            None
        }
        Err(error) => {
            let explained = shard.explain(&error);
            for passenger in aboard {
                let _ = passenger.answer.send(Err(explained.clone()));
            }
            error.is_silence().then_some(explained)
        }
    }
}

/// One call for all requests; an answer for each.
async fn call(shard: &Shard, requests: &[&Request]) -> Result<Vec<Answer>, DecodeError> {
    let arguments: Vec<&[u8]> =
        requests.iter().flat_map(|request| request.arguments.iter().map(Vec::as_slice)).collect();
    let must_last = requests.iter().any(|request| request.must_last);
    // What grants is not sent again from here: its holder may have closed its gate meanwhile.
    let may_repeat = requests.iter().all(|request| request.lease.is_none());
    let (link, delivery) = (&shard.link, shard.delivery(may_repeat, must_last));
    let value: Value =
        link.call_function(Function::Exchange, &shard.keys, &arguments, delivery).await?;
    divide(value, requests)
}

/// Divides the answer of a call among its requests: first come the replies of all of them, then
/// their leases, then the specs.
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

/// The values of a lease: its head and its grants.
fn take_lease(values: &mut IntoIter<Value>, is_there: bool) -> Result<Vec<Value>, DecodeError> {
    if !is_there {
        return Ok(Vec::new());
    }
    let mut lease = take(values, decode::LEASE_HEAD)?;
    let grants = decode::count_of_grants(&lease)?;
    lease.extend(take(values, grants * decode::GRANT_VALUES)?);
    Ok(lease)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn passenger(writes: usize, limit: usize, lease: Option<&str>) -> Passenger {
        passenger_of_bytes(writes, limit, lease, 10)
    }

    fn passenger_of_bytes(
        writes: usize,
        limit: usize,
        lease: Option<&str>,
        bytes: usize,
    ) -> Passenger {
        let arguments = vec![vec![0; bytes]];
        let lease = lease.map(str::to_owned);
        let request = Request { arguments, writes, limit, must_last: false, lease };
        // The receiver lives as long as the test.
        let (answer, receiver) = oneshot::channel();
        std::mem::forget(receiver);
        Passenger { request, answer }
    }

    /// How many of those who wait go with the first one, and whether another one is left behind.
    fn boarded(all: Vec<Passenger>) -> (usize, bool) {
        let (sender, mut waiting) = mpsc::unbounded_channel();
        let mut all = all.into_iter();
        let first = all.next().unwrap();
        all.for_each(|passenger| sender.send(passenger).ok().unwrap());
        let mut left_behind = None;
        let aboard = board(first, &mut waiting, &mut left_behind);
        (aboard.len(), left_behind.is_some())
    }

    #[test]
    fn those_who_wait_go_together_while_their_call_is_small() {
        let holders: Vec<String> = (0..80).map(|number| format!("n/b/{number}|Generate")).collect();
        let all = |writes: usize, bytes: usize| -> Vec<Passenger> {
            let lease = |holder: &String| passenger_of_bytes(writes, 1, Some(holder), bytes);
            holders.iter().map(lease).collect()
        };
        assert_eq!(boarded(all(1, 10)), (SHARED_UNITS_LIMIT / 2, true));
        assert_eq!(boarded(all(9, 10)), (SHARED_UNITS_LIMIT / 10, true));
        assert_eq!(boarded(all(1, SHARED_BYTES_LIMIT / 3)), (3, true));
        assert_eq!(boarded(all(500, 10)), (1, true), "the first one always goes");
    }

    #[test]
    fn two_leases_of_one_holder_never_share_a_call() {
        let (a, b) = (Some("n/b/p|Generate"), Some("n/b/p|Reward"));
        assert_eq!(boarded(vec![passenger(0, 1, a), passenger(0, 1, b)]), (2, false));
        let all = vec![passenger(0, 1, a), passenger(1, 0, None), passenger(1, 1, a)];
        assert_eq!(boarded(all), (2, true));
    }

    #[test]
    fn request_that_nobody_waits_for_any_more_is_granted_nothing() {
        let mut gone = passenger(0, 1, Some("n/b/q|Generate"));
        gone.answer = oneshot::channel().0;
        let all = vec![passenger(1, 0, None), gone, passenger(1, 0, None)];
        assert_eq!(boarded(all), (2, false));
    }

    fn text(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    fn grant(unit: &str) -> Vec<Value> {
        let token = [7, 0, 0, 0].map(Value::Int);
        [text(unit)].into_iter().chain(token).chain([text("")]).collect()
    }

    #[test]
    fn answer_of_a_call_is_divided_among_its_requests() {
        let requests = [
            passenger(2, 1, Some("a")).request,
            passenger(1, 0, None).request,
            passenger(0, 2, Some("b")).request,
        ];
        let mut values = vec![text("OK"), text("FENCED"), text("OK")];
        values.extend([Value::Int(5), text("0"), Value::Int(1)]);
        values.extend(grant("g.0000"));
        values.extend([Value::Int(5), text("9"), Value::Int(0)]);
        let asked: Vec<&Request> = requests.iter().collect();
        let answers = divide(Value::Array(values.clone()), &asked).unwrap();
        let lengths: Vec<(usize, usize)> =
            answers.iter().map(|answer| (answer.replies.len(), answer.lease.len())).collect();
        assert_eq!(lengths, [(2, 9), (1, 0), (0, 3)]);
        assert_eq!(answers[1].replies, [text("OK")]);
        for length in 0..values.len() {
            let cut = Value::Array(values[..length].to_vec());
            assert!(divide(cut, &asked).is_err(), "{length} values are not enough");
        }
    }
}
