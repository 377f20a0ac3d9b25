//! Lists and streams on Redis.

use async_trait::async_trait;
use ebbtide_core::policy::{RedisList, RedisStream, RedisUrl};
use ebbtide_queue::client::QueueError;
use ebbtide_queue::redis::RedisLengths;
use tokio::sync::OnceCell;

use super::{Reading, SignalSource};

/// A way to Redis that is made at the first read.
struct Way {
    url: String,
    lengths: OnceCell<RedisLengths>,
}

impl Way {
    fn new(url: Option<&RedisUrl>, of_run: &str) -> Self {
        let url = url.map_or(of_run, RedisUrl::as_str).to_owned();
        Self { url, lengths: OnceCell::new() }
    }

    async fn lengths(&self) -> Result<&RedisLengths, String> {
        self.lengths.get_or_try_init(|| RedisLengths::connect(&self.url)).await.map_err(said)
    }
}

fn said(error: QueueError) -> String {
    error.to_string()
}

/// A list, and perhaps one with what was taken from it.
pub(super) struct ListSource {
    list: RedisList,
    way: Way,
}

impl ListSource {
    pub fn new(list: RedisList, of_run: &str) -> Self {
        let way = Way::new(list.url.as_ref(), of_run);
        Self { list, way }
    }
}

#[async_trait]
impl SignalSource for ListSource {
    async fn read(&self) -> Result<Reading, String> {
        let lengths = self.way.lengths().await?;
        let waiting = lengths.list(self.list.key.as_str()).await.map_err(said)?;
        let in_flight = match &self.list.in_flight_key {
            Some(key) => Some(lengths.list(key.as_str()).await.map_err(said)?),
            None => None,
        };
        Ok(Reading { waiting, in_flight })
    }
}

/// A group of consumers of a stream.
pub(super) struct StreamSource {
    stream: RedisStream,
    way: Way,
}

impl StreamSource {
    pub fn new(stream: RedisStream, of_run: &str) -> Self {
        let way = Way::new(stream.url.as_ref(), of_run);
        Self { stream, way }
    }
}

#[async_trait]
impl SignalSource for StreamSource {
    async fn read(&self) -> Result<Reading, String> {
        let (key, group) = (self.stream.key.as_str(), self.stream.group.as_str());
        let backlog = self.way.lengths().await?.group(key, group).await.map_err(said)?;
        let waiting = backlog.waiting.ok_or_else(|| {
            format!("Redis does not know the lag of group {group}: entries of {key} were deleted")
        })?;
        Ok(Reading { waiting, in_flight: Some(backlog.pending) })
    }
}
