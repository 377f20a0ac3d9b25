//! A real `redis-server`.

use std::time::Duration;

use rustix::process::Signal;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use crate::{
    Error,
    folder::RunFolder,
    parts,
    port::free_port,
    process::{Launch, Service},
    report,
};

const READY_LIMIT: Duration = Duration::from_secs(20);
const STOP_LIMIT: Duration = Duration::from_secs(20);
const PING_LIMIT: Duration = Duration::from_secs(1);

/// A running Redis of this test's own; killed on drop.
#[derive(Debug)]
pub struct Redis {
    service: Service,
    port: u16,
}

/// How a [`Redis`] is started.
#[derive(Debug, Default, Clone)]
pub struct RedisOptions {
    appendonly: bool,
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

    /// Starts it and waits until it answers.
    ///
    /// # Errors
    ///
    /// [`Error::Missing`] without `redis-server`; others when it does not get ready.
    pub async fn start(self) -> Result<Redis, Error> {
        let located = parts::REDIS.locate()?;
        let port = free_port()?;
        let launch = Launch::new("redis", &located.path)
            .arguments(["--bind", "127.0.0.1", "--port", &port.to_string()])
            .arguments(["--save", "", "--appendonly", if self.appendonly { "yes" } else { "no" }])
            .arguments(&self.extra_arguments);
        let service = Service::start(launch, RunFolder::create("redis")?)?;
        let mut redis = Redis { service, port };
        redis.ready().await?;
        report::took_part(&parts::REDIS, &located.version);
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

    /// Its port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Ends it in order and waits for that; connections are refused until [`Self::restart`].
    ///
    /// # Errors
    ///
    /// When it did not end within 20 s; it is killed then.
    pub async fn stop(&mut self) -> Result<(), Error> {
        self.service.terminate(STOP_LIMIT).await
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

    async fn ready(&mut self) -> Result<(), Error> {
        let port = self.port;
        self.service.ready("an answer to PING", READY_LIMIT, || answers_ping(port)).await
    }
}

/// While it loads its data Redis answers `-LOADING`, which is not yet ready.
async fn answers_ping(port: u16) -> bool {
    let ping = async {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.write_all(b"PING\r\n").await?;
        let mut answer = [0_u8; 5];
        stream.read_exact(&mut answer).await?;
        std::io::Result::Ok(&answer == b"+PONG")
    };
    matches!(timeout(PING_LIMIT, ping).await, Ok(Ok(true)))
}
