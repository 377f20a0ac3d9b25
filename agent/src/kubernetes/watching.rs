//! Lists objects and watches them from there: what is known is always what stood at one moment.
//!
//! The smallest form of what `kube`'s own runtime does: a few objects, one reader, no store. A
//! stream that ends is taken up where it was left; anything wrong with it begins a new list.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::pin::pin;
use std::time::Duration;

use ebbtide_queue::client::Backoff;
use futures::StreamExt;
use kube::Api;
use kube::api::{ListParams, WatchParams};
use kube::core::{Resource, WatchEvent};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::request::{RequestError, request};

/// How long the server keeps one watch open: also the longest time for which a connection that was
/// cut without a word goes unnoticed.
const WATCH_SECONDS: u32 = 120;

/// Silence after which a watch is given up: the server should have ended it before.
const SILENCE_LIMIT: Duration = Duration::from_secs(WATCH_SECONDS as u64 + 10);

/// Shortest time between the beginnings of two watches, in case each ends at once.
const WATCH_EVERY: Duration = Duration::from_secs(1);

/// Bounds of the pause after a failure.
const PAUSE_MIN: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// What became of a look at the objects.
pub(super) enum Look<'a, T> {
    /// These are all there are, by UID.
    Seen(&'a BTreeMap<String, T>),
    /// The server did not answer, or answered nonsense.
    Failed(&'a RequestError),
}

/// Tells every change of the objects that `fields` selects, for as long as it is polled.
pub(super) async fn follow<K, T>(
    api: &Api<K>,
    fields: &str,
    read: fn(&K) -> T,
    mut tell: impl FnMut(Look<'_, T>),
) where
    K: Resource + Clone + Debug + DeserializeOwned,
{
    let mut backoff = Backoff::new(PAUSE_MIN, PAUSE_MAX);
    let mut watched = Watched { api, fields, read, known: BTreeMap::new(), version: String::new() };
    loop {
        let Err(error) = watched.follow_once(&mut backoff, &mut tell).await;
        tell(Look::Failed(&error));
        sleep(backoff.next_pause()).await;
    }
}

struct Watched<'a, K, T> {
    api: &'a Api<K>,
    fields: &'a str,
    read: fn(&K) -> T,
    known: BTreeMap<String, T>,
    version: String,
}

impl<K, T> Watched<'_, K, T>
where
    K: Resource + Clone + Debug + DeserializeOwned,
{
    /// Lists, then watches until something goes wrong.
    async fn follow_once(
        &mut self,
        backoff: &mut Backoff,
        tell: &mut impl FnMut(Look<'_, T>),
    ) -> Result<std::convert::Infallible, RequestError> {
        let parameters = ListParams::default().fields(self.fields);
        let list = request(self.api.list(&parameters)).await?;
        self.version = list.metadata.resource_version.unwrap_or_default();
        self.known = list.items.iter().map(|object| (uid(object), (self.read)(object))).collect();
        tell(Look::Seen(&self.known));
        loop {
            let begun = Instant::now();
            self.watch(backoff, tell).await?;
            sleep_until(begun + WATCH_EVERY).await;
        }
    }

    /// One watch, until the server ends it.
    async fn watch(
        &mut self,
        backoff: &mut Backoff,
        tell: &mut impl FnMut(Look<'_, T>),
    ) -> Result<(), RequestError> {
        let parameters = WatchParams::default().fields(self.fields).timeout(WATCH_SECONDS);
        let events = request(self.api.watch(&parameters, &self.version)).await?;
        backoff.reset();
        let mut events = pin!(events);
        loop {
            let next = timeout(SILENCE_LIMIT, events.next()).await;
            match next.map_err(|_| RequestError::Silent)? {
                Some(Ok(event)) => {
                    if self.take_in(event)? {
                        tell(Look::Seen(&self.known));
                    }
                }
                Some(Err(error)) => return Err(RequestError::Away(error)),
                None => return Ok(()),
            }
        }
    }

    /// Takes in one event; returns whether an object has changed.
    fn take_in(&mut self, event: WatchEvent<K>) -> Result<bool, RequestError> {
        let object = match &event {
            WatchEvent::Added(object)
            | WatchEvent::Modified(object)
            | WatchEvent::Deleted(object) => object,
            WatchEvent::Bookmark(bookmark) => {
                self.version.clone_from(&bookmark.metadata.resource_version);
                return Ok(false);
            }
            // 410 in most cases: too much has happened since the last look.
            WatchEvent::Error(status) => return Err(RequestError::Refused(status.clone())),
        };
        if let Some(version) = &object.meta().resource_version {
            self.version.clone_from(version);
        }
        if matches!(event, WatchEvent::Deleted(_)) {
            self.known.remove(&uid(object));
        } else {
            self.known.insert(uid(object), (self.read)(object));
        }
        Ok(true)
    }
}

fn uid(object: &impl Resource) -> String {
    object.meta().uid.clone().unwrap_or_default()
}
