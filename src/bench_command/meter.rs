//! What a number of cycles took: time, work of Redis, work of this process.

use anyhow::Context;
use tokio::time::Instant;

use super::server::Server;

/// Runs from the first call to the last answer.
pub struct Meter {
    began: Instant,
    redis_busy: Option<f64>,
    own_busy: Option<f64>,
}

/// How fast something was done, and whose limit that was.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    /// How many in a second.
    pub per_second: f64,
    /// How long Redis worked for one, in seconds.
    pub redis_seconds: Option<f64>,
    /// Part of its core that Redis was busy, in percent.
    pub redis_percent: Option<f64>,
    /// Part of its core that this process was busy, in percent.
    pub client_percent: Option<f64>,
}

impl Meter {
    /// Begins now.
    ///
    /// # Errors
    /// Redis gives no answer.
    pub async fn start(server: Option<&Server>) -> anyhow::Result<Self> {
        let redis_busy = busy_seconds(server).await?;
        Ok(Self { began: Instant::now(), redis_busy, own_busy: own_busy_seconds() })
    }

    /// Ends now, with `count` cycles done.
    ///
    /// # Errors
    /// Nothing was done, or Redis gives no answer.
    pub async fn stop(self, server: Option<&Server>, count: usize) -> anyhow::Result<Rate> {
        let seconds = self.began.elapsed().as_secs_f64();
        let own = self.own_busy.zip(own_busy_seconds()).map(|(before, after)| after - before);
        let redis = busy_seconds(server).await?;
        let redis = self.redis_busy.zip(redis).map(|(before, after)| after - before);
        let count = (count > 0).then_some(count as f64).context("nothing was done")?;
        Ok(Rate {
            per_second: count / seconds,
            redis_seconds: redis.map(|busy| busy / count),
            redis_percent: redis.map(|busy| busy / seconds * 100.0),
            client_percent: own.map(|busy| busy / seconds * 100.0),
        })
    }
}

async fn busy_seconds(server: Option<&Server>) -> anyhow::Result<Option<f64>> {
    match server {
        Some(server) => server.busy_seconds().await.map(Some),
        None => Ok(None),
    }
}

/// How long this process's main thread has run; the benchmark has no other that works. Its first
/// number is in nanoseconds.
fn own_busy_seconds() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/self/schedstat").ok()?;
    let nanoseconds: f64 = text.split_whitespace().next()?.parse().ok()?;
    Some(nanoseconds / 1e9)
}
