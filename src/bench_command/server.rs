//! A raw connection to the Redis that is measured: for the floor, and for what INFO tells.
//!
//! Only one server that is spoken to without TLS can be asked like this. Behind Sentinels, in a
//! Cluster or over TLS the queue itself is measured, and what needs INFO is left out.

use std::time::Duration;

use anyhow::Context;
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{AsyncConnectionConfig, ConnectionAddr, InfoDict, IntoConnectionInfo};
use tokio::time::{Instant, sleep};

/// The client's own 500 ms would end a measurement on a busy machine.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);
/// Between two looks at the memory that Redis frees beside its work, and how many at most.
const FREEING_LOOK_INTERVAL: Duration = Duration::from_millis(20);
const FREEING_LOOKS_LIMIT: usize = 1_500;
/// How long others are watched.
const WATCH_TIME: Duration = Duration::from_millis(500);
/// Of `maxmemory`, what the queue fills at most (contract, section 2).
const FILLED_PART: f64 = 0.85;
/// Of the memory that the machine has left, what is used at most.
const USED_PART_OF_FREE: f64 = 0.7;

/// One server, asked directly.
#[derive(Clone)]
pub struct Server {
    connection: MultiplexedConnection,
    is_local: bool,
}

/// Who else uses the server.
#[derive(Debug, Clone, PartialEq)]
pub struct Others {
    /// Keys in all databases.
    pub keys: u64,
    /// Calls a second that are not ours.
    pub calls_per_second: f64,
}

impl Server {
    /// Connects; `None` where the address is not that of one server without TLS.
    ///
    /// # Errors
    /// It cannot be reached.
    pub async fn connect(url: &str) -> anyhow::Result<Option<Self>> {
        if !["redis://", "valkey://"].iter().any(|scheme| url.starts_with(scheme)) {
            return Ok(None);
        }
        let url = url.replacen("valkey://", "redis://", 1);
        let info = url.into_connection_info().context("the address of Redis")?;
        let is_local = matches!(info.addr(), ConnectionAddr::Tcp(host, _) if is_loopback(host));
        let info = info.set_tcp_settings(TcpSettings::default().set_nodelay(true));
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(RESPONSE_TIMEOUT));
        let client = redis::Client::open(info)?;
        let connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        Ok(Some(Self { connection, is_local }))
    }

    /// A handle for calls.
    pub fn connection(&self) -> MultiplexedConnection {
        self.connection.clone()
    }

    async fn info(&self) -> anyhow::Result<InfoDict> {
        let info = redis::cmd("INFO").query_async(&mut self.connection()).await;
        info.context("INFO of Redis")
    }

    /// Seconds that the thread which serves calls has worked since it began.
    ///
    /// # Errors
    /// No answer.
    pub async fn busy_seconds(&self) -> anyhow::Result<f64> {
        let info = self.info().await?;
        let sum = |suffix: &str| {
            let part = |kind: &str| info.get::<f64>(&format!("used_cpu_{kind}{suffix}"));
            Some(part("user")? + part("sys")?)
        };
        sum("_main_thread").or_else(|| sum("")).context("INFO of Redis does not tell its CPU time")
    }

    /// Bytes in use, once everything that was deleted is freed.
    ///
    /// # Errors
    /// No answer.
    pub async fn used_bytes(&self) -> anyhow::Result<u64> {
        for _ in 0..FREEING_LOOKS_LIMIT {
            let info = self.info().await?;
            if info.get::<u64>("lazyfree_pending_objects").unwrap_or(0) == 0 {
                return info.get("used_memory").context("INFO of Redis does not tell its memory");
            }
            sleep(FREEING_LOOK_INTERVAL).await;
        }
        anyhow::bail!("Redis has not freed in time what was deleted")
    }

    /// Bytes that may be added; `None` when nobody tells.
    ///
    /// # Errors
    /// No answer.
    pub async fn free_bytes(&self) -> anyhow::Result<Option<u64>> {
        let info = self.info().await?;
        let number = |field: &str| info.get::<u64>(field).unwrap_or(0);
        let below_limit = match number("maxmemory") {
            0 => None,
            limit => Some((limit as f64 * FILLED_PART) as u64),
        };
        let below_limit = below_limit.map(|limit| limit.saturating_sub(number("used_memory")));
        let on_machine = if self.is_local {
            std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| available_bytes(&text))
        } else {
            let total = number("total_system_memory");
            (total > 0).then(|| total.saturating_sub(number("used_memory_rss")))
        };
        let on_machine = on_machine.map(|bytes| (bytes as f64 * USED_PART_OF_FREE) as u64);
        Ok(below_limit.into_iter().chain(on_machine).min())
    }

    /// What it is, for the head of the report: `Redis 7.0.15, AOF off`.
    ///
    /// # Errors
    /// No answer.
    pub async fn describe(&self) -> anyhow::Result<String> {
        let info = self.info().await?;
        let text = |field: &str| info.get::<String>(field).unwrap_or_default();
        let (name, version) = match info.get::<String>("valkey_version") {
            Some(version) => ("Valkey", version),
            None => ("Redis", text("redis_version")),
        };
        let aof = if info.get::<u8>("aof_enabled") == Some(1) { "on" } else { "off" };
        Ok(format!("{name} {version}, AOF {aof}"))
    }

    /// Who else uses it: looks for half a second.
    ///
    /// # Errors
    /// No answer.
    pub async fn others(&self) -> anyhow::Result<Others> {
        let before = self.info().await?;
        let began = Instant::now();
        sleep(WATCH_TIME).await;
        let after = self.info().await?;
        let calls = |info: &InfoDict| info.get::<u64>("total_commands_processed").unwrap_or(0);
        // One of them is the second INFO.
        let theirs = calls(&after).saturating_sub(calls(&before) + 1);
        let keyspaces = (0..16).filter_map(|db| after.get::<String>(&format!("db{db}")));
        Ok(Others {
            keys: keyspaces.filter_map(|text| keys_in(&text)).sum(),
            calls_per_second: theirs as f64 / began.elapsed().as_secs_f64(),
        })
    }
}

fn is_loopback(host: &str) -> bool {
    let address = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

/// Of `keys=12,expires=0,avg_ttl=0`, the keys.
fn keys_in(keyspace: &str) -> Option<u64> {
    keyspace.split(',').find_map(|part| part.strip_prefix("keys="))?.parse().ok()
}

/// Of `/proc/meminfo`, what new memory there is without swapping.
fn available_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_memory_are_read_from_their_lines() {
        assert_eq!(keys_in("keys=12,expires=3,avg_ttl=0"), Some(12));
        assert_eq!(keys_in(""), None);
        let meminfo = "MemTotal:       24640088 kB\nMemAvailable:   23068672 kB\n";
        assert_eq!(available_bytes(meminfo), Some(23_068_672 * 1024));
        assert_eq!(available_bytes("nothing of the kind"), None);
    }

    #[test]
    fn only_hosts_of_this_machine_are_local() {
        for (host, expected) in [
            ("127.0.0.1", true),
            ("localhost", true),
            ("[::1]", true),
            ("10.0.0.5", false),
            ("redis.rl", false),
        ] {
            assert_eq!(is_loopback(host), expected, "{host}");
        }
    }
}
