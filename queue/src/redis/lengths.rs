//! How long the lists and streams of others are: what waits for workers that take it from there.
//!
//! Only reads. A list that does not exist is empty, since Redis removes empty ones; a stream or a
//! group that does not exist is an error, since that is no way for work to end.

use std::collections::HashMap;

use redis::{Value, from_redis_value};

use super::address::{AddressError, RedisAddress};
use super::link::{Link, LinkError};
use crate::client::QueueError;

/// A Redis whose lists and streams are looked at.
pub struct RedisLengths {
    link: Link,
}

/// What a group of consumers has before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupBacklog {
    /// Entries that no consumer was given yet; `None` while Redis does not know, which is so after
    /// entries between were deleted or the group was set back.
    pub waiting: Option<u64>,
    /// Entries that consumers were given and have not acknowledged.
    pub pending: u64,
}

impl RedisLengths {
    /// Begins to connect.
    ///
    /// # Errors
    /// The URL is malformed, or a Cluster does not answer.
    pub async fn connect(url: &str) -> Result<Self, QueueError> {
        let address: RedisAddress = url
            .parse()
            .map_err(|error: AddressError| QueueError::Unsuitable { problem: error.to_string() })?;
        let link = Link::connect(&address).await.map_err(|error| error.to_queue_error())?;
        Ok(Self { link })
    }

    /// Items of a list.
    ///
    /// # Errors
    /// No answer, or the key holds something else.
    pub async fn list(&self, key: &str) -> Result<u64, QueueError> {
        let mut question = redis::pipe();
        question.cmd("LLEN").arg(key);
        let (length,): (u64,) = self.ask(key, &question).await?;
        Ok(length)
    }

    /// What a group of consumers of a stream has before it.
    ///
    /// # Errors
    /// No answer, or there is no such stream or group.
    pub async fn group(&self, key: &str, group: &str) -> Result<GroupBacklog, QueueError> {
        let mut question = redis::pipe();
        question.cmd("XINFO").arg("GROUPS").arg(key);
        let (groups,): (Vec<HashMap<String, Value>>,) = self.ask(key, &question).await?;
        let is_it = |found: &HashMap<String, Value>| text(found, "name").as_deref() == Some(group);
        let unknown = |problem: String| QueueError::Unsuitable { problem };
        let Some(found) = groups.iter().find(|found| is_it(found)) else {
            let name = self.link.name();
            return Err(unknown(format!("{name}: stream {key} has no group {group}")));
        };
        let pending = number(found, "pending");
        let pending = pending.ok_or_else(|| unknown("XINFO GROUPS tells no pending".to_owned()))?;
        Ok(GroupBacklog { waiting: number(found, "lag"), pending })
    }

    async fn ask<T: redis::FromRedisValue>(
        &self,
        key: &str,
        question: &redis::Pipeline,
    ) -> Result<T, QueueError> {
        let answer = self.link.query(key, question).await;
        answer.map_err(|error: LinkError| error.to_queue_error())
    }
}

fn text(found: &HashMap<String, Value>, field: &str) -> Option<String> {
    from_redis_value(found.get(field)?.clone()).ok()
}

/// A count; `None` when it is nil, missing, or below zero.
fn number(found: &HashMap<String, Value>, field: &str) -> Option<u64> {
    match found.get(field)? {
        Value::Int(number) => u64::try_from(*number).ok(),
        _ => None,
    }
}
