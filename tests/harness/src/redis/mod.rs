//! Real Redis servers: one, a Cluster, or a master with replicas and Sentinels; and Valkey.

mod authority;
mod cluster;
mod sentinels;
mod talk;

use std::sync::Arc;

use rustix::process::Signal;

pub use authority::RedisAuthority;
pub use cluster::RedisCluster;
pub use sentinels::RedisSentinels;

use crate::{
    EVENT_LIMIT, Error, Part,
    folder::RunFolder,
    parts,
    port::free_port,
    process::{Launch, Service},
    report,
};

/// A running Redis of this test's own; killed on drop.
#[derive(Debug)]
pub struct Redis {
    service: Service,
    port: u16,
    tls_port: Option<u16>,
    bus_port: Option<String>,
    /// Its certificate's files live as long as it does.
    _authority: Option<Arc<RedisAuthority>>,
}

/// How a [`Redis`] is started.
#[derive(Debug, Default, Clone)]
pub struct RedisOptions {
    appendonly: bool,
    is_valkey: bool,
    authority: Option<Arc<RedisAuthority>>,
    extra_arguments: Vec<String>,
}

impl RedisOptions {
    /// Keeps data over a restart and over a kill.
    #[must_use]
    pub fn appendonly(mut self) -> Self {
        self.appendonly = true;
        self
    }

    /// Further arguments of `redis-server`, such as `["--maxmemory", "8mb"]`.
    #[must_use]
    pub fn arguments(mut self, arguments: &[&str]) -> Self {
        self.extra_arguments.extend(arguments.iter().map(ToString::to_string));
        self
    }

    /// Runs Valkey in place of Redis.
    #[must_use]
    pub fn valkey(mut self) -> Self {
        self.is_valkey = true;
        self
    }

    /// Speaks TLS on a second port, with a certificate of this authority.
    #[must_use]
    pub fn tls(mut self, authority: &Arc<RedisAuthority>) -> Self {
        self.authority = Some(authority.clone());
        self
    }

    /// Adds a user, by the words of `ACL SETUSER`; the default user stays as it is.
    #[must_use]
    pub fn user(self, name: &str, rules: &[&str]) -> Self {
        let words = [&["--user", name], rules].concat();
        self.arguments(&words)
    }

    /// Starts it and waits until it answers.
    ///
    /// # Errors
    ///
    /// [`Error::Missing`] without `redis-server`; others when it does not get ready.
    pub async fn start(self) -> Result<Redis, Error> {
        let part: &Part = if self.is_valkey { &parts::VALKEY } else { &parts::REDIS };
        let located = part.locate()?;
        let port = free_port()?;
        let tls_port = self.authority.is_some().then(free_port).transpose()?;
        let tls = self.authority.iter().zip(tls_port).flat_map(|(it, port)| it.arguments(port));
        let launch = Launch::new("redis", &located.path)
            .arguments(["--bind", "127.0.0.1", "--port", &port.to_string()])
            .arguments(["--save", "", "--appendonly", if self.appendonly { "yes" } else { "no" }])
            // A replica gets its data at once; Redis would wait five seconds for further ones.
            .arguments(["--repl-diskless-sync-delay", "0"])
            .arguments(tls)
            .arguments(&self.extra_arguments);
        let service = Service::start(launch, RunFolder::create("redis")?)?;
        let mut redis =
            Redis { service, port, tls_port, bus_port: None, _authority: self.authority };
        redis.ready().await?;
        report::took_part(part, &located.version);
        Ok(redis)
    }
}

impl Redis {
    /// Starts one without persistence.
    ///
    /// # Errors
    ///
    /// As [`RedisOptions::start`].
    pub async fn start() -> Result<Self, Error> {
        Self::options().start().await
    }

    /// To start one with options.
    #[must_use]
    pub fn options() -> RedisOptions {
        RedisOptions::default()
    }

    /// `redis://127.0.0.1:PORT`; stays the same over restarts.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// `127.0.0.1:PORT`.
    #[must_use]
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Its port without TLS.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its port with TLS; 0 without an authority.
    #[must_use]
    pub fn tls_port(&self) -> u16 {
        self.tls_port.unwrap_or(0)
    }

    /// The port that nodes of a Cluster know each other by.
    fn cluster_port(&self) -> u16 {
        self.tls_port.unwrap_or(self.port)
    }

    /// Sends one command; gives the texts of the answer, nested ones one after the other.
    ///
    /// # Errors
    ///
    /// When it does not answer within two seconds, or refuses.
    pub async fn talk(&self, words: &[&str]) -> Result<Vec<String>, Error> {
        talk::talk(self.port, words).await
    }

    /// Ends it in order and waits for that; connections are refused until [`Self::restart`].
    ///
    /// # Errors
    ///
    /// When it did not end within 20 s; it is killed then.
    pub async fn stop(&mut self) -> Result<(), Error> {
        self.service.terminate(EVENT_LIMIT).await
    }

    /// Kills it, as a crash would.
    pub fn kill(&mut self) {
        self.service.kill();
    }

    /// Starts it again on the same port and data, after ending it in order when it still runs.
    ///
    /// # Errors
    ///
    /// When it does not end, or does not get ready again.
    pub async fn restart(&mut self) -> Result<(), Error> {
        if self.service.is_running() {
            self.stop().await?;
        }
        self.service.spawn()?;
        self.ready().await
    }

    /// The same with further arguments, which it keeps; where one repeats, the last one holds.
    ///
    /// # Errors
    ///
    /// As [`Self::restart`].
    pub async fn restart_with(&mut self, arguments: &[&str]) -> Result<(), Error> {
        self.service.add_arguments(arguments);
        self.restart().await
    }

    /// Freezes it: connections stay open and nothing is answered.
    ///
    /// # Errors
    ///
    /// When the signal cannot be sent.
    pub fn pause(&self) -> Result<(), Error> {
        self.service.signal(Signal::STOP)
    }

    /// Ends a [`Self::pause`].
    ///
    /// # Errors
    ///
    /// When the signal cannot be sent.
    pub fn resume(&self) -> Result<(), Error> {
        self.service.signal(Signal::CONT)
    }

    /// While it loads its data Redis answers `-LOADING`, which is not yet ready; one that wants a
    /// password is.
    async fn ready(&mut self) -> Result<(), Error> {
        let port = self.port;
        let answers = || async move {
            match talk::talk(port, &["PING"]).await {
                Ok(_) => true,
                Err(error) => error.to_string().contains("NOAUTH"),
            }
        };
        self.service.ready("an answer to PING", EVENT_LIMIT, answers).await
    }
}
