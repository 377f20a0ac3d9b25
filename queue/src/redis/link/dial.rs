//! One connection to one server: TCP, TLS, login, and a first answer.
//!
//! The stream is made here and not by the client library, so that certificates are read once and
//! every step that can fail is told apart: a name, a port, a certificate, a password.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::{MultiplexedConnection, PubSub};
use redis::io::tcp::socket2::{SockRef, TcpKeepalive};
use redis::{AsyncConnectionConfig, RedisConnectionInfo, Value};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use super::super::address::{Endpoint, Login, RedisAddress};
use super::error::{LinkError, LinkErrorKind, of_dialing};
use super::trust::connector;
use super::{CALL_TIME_LIMIT, PEER_SILENCE_LIMIT};

/// Bytes to and from a server, encrypted or not.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// How to connect to the servers of one address.
#[derive(Clone)]
pub(super) struct Dialer {
    login: Login,
    database: i64,
    tls: Option<TlsConnector>,
}

/// A connection that was logged in and has answered; closed on drop.
pub(super) struct Line {
    pub connection: MultiplexedConnection,
    _driver: JoinSet<()>,
}

impl Dialer {
    /// Reads the certificates to trust; touches no network.
    pub fn new(address: &RedisAddress) -> Result<Self, LinkError> {
        let tls =
            address.tls.as_ref().map(|tls| connector(tls, &address.to_string())).transpose()?;
        Ok(Self { login: address.login.clone(), database: address.database, tls })
    }

    /// The same for the Sentinels of the address.
    pub fn for_sentinels(&self, login: &Login) -> Self {
        Self { login: login.clone(), database: 0, tls: self.tls.clone() }
    }

    /// Connects, logs in and waits for a first answer.
    pub async fn dial(&self, endpoint: &Endpoint) -> Result<Line, LinkError> {
        let server = server_name(endpoint);
        in_time(&server, "no connection", self.dial_to(endpoint, &server)).await
    }

    async fn dial_to(&self, endpoint: &Endpoint, server: &str) -> Result<Line, LinkError> {
        let stream = self.open(endpoint, server).await?;
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(CALL_TIME_LIMIT));
        // Nothing is said yet: the login is ours, for the sake of its errors.
        let silent = RedisConnectionInfo::default().set_skip_set_lib_name();
        let (mut connection, driver) =
            MultiplexedConnection::new_with_config(&silent, stream, config)
                .await
                .map_err(|error| LinkError::of_connection(server, &error))?;
        let mut tasks = JoinSet::new();
        tasks.spawn(driver);
        let mut hello = redis::pipe();
        if let Some(password) = &self.login.password {
            let auth = hello.cmd("AUTH");
            if let Some(user) = &self.login.user {
                auth.arg(user);
            }
            auth.arg(password.reveal());
        }
        if self.database != 0 {
            hello.cmd("SELECT").arg(self.database);
        }
        hello.cmd("PING");
        let answers = connection.send_packed_commands(&hello, 0, hello.len()).await;
        let answers = answers.map_err(|error| self.first_words_failed(server, &error))?;
        match answers.iter().find_map(refused) {
            Some(refusal) => Err(self.login_refused(server, refusal)),
            None => Ok(Line { connection, _driver: tasks }),
        }
    }

    /// A server that is spoken to in the wrong protocol hangs up or answers gibberish.
    fn first_words_failed(&self, server: &str, error: &redis::RedisError) -> LinkError {
        if let Some(error) = io_error_in(error) {
            let error = of_dialing(server, error);
            if error.kind == LinkErrorKind::Unfit {
                return error;
            }
        }
        let mut failed = LinkError::of_connection(server, error);
        match failed.kind {
            LinkErrorKind::Unreadable if self.tls.is_none() => LinkError::unfit(
                server,
                "it does not answer as Redis does; if this is its TLS port, write rediss in place \
                 of redis",
            ),
            LinkErrorKind::Broken if self.tls.is_none() => {
                failed.problem += "; if this is its TLS port, write rediss in place of redis";
                failed
            }
            _ => failed,
        }
    }

    fn login_refused(&self, server: &str, refusal: &redis::ServerError) -> LinkError {
        let details = refusal.details().unwrap_or_default();
        if details.contains("without any password configured") {
            let problem = "it has no password: leave user:password@ out of the address";
            return LinkError::unfit(server, problem);
        }
        if details.contains("DB index is out of range") {
            let problem = format!("it has no database {}", self.database);
            return LinkError::unfit(server, problem);
        }
        if refusal.code() == "DENIED" {
            let problem = "it is in protected mode: give it a password or an address to bind to";
            return LinkError::unfit(server, problem);
        }
        let mut error = LinkError::of_refusal(server, refusal);
        let is_crowded = details.contains("max number of clients");
        if is_crowded || error.code().is_some_and(|code| code != "ERR") {
            error.kind = LinkErrorKind::Away;
        }
        error
    }

    /// Subscribes to a channel on a connection of its own.
    pub async fn subscribe(&self, at: &Endpoint, channel: &str) -> Result<PubSub, LinkError> {
        let server = server_name(at);
        let subscribing = async {
            let stream = self.open(at, &server).await?;
            let mut us = RedisConnectionInfo::default().set_skip_set_lib_name();
            if let Some(user) = &self.login.user {
                us = us.set_username(user);
            }
            if let Some(password) = &self.login.password {
                us = us.set_password(password.reveal());
            }
            let subscription = async {
                let mut subscription = PubSub::new(&us, stream).await?;
                subscription.subscribe(channel).await?;
                Ok(subscription)
            };
            let failed = |error| LinkError::of_connection(&server, &error);
            subscription.await.map_err(failed)
        };
        in_time(&server, "no subscription", subscribing).await
    }

    async fn open(&self, at: &Endpoint, server: &str) -> Result<Box<dyn Stream>, LinkError> {
        let failed = |error: io::Error| of_dialing(server, &error);
        let stream = TcpStream::connect((at.host.as_str(), at.port)).await.map_err(failed)?;
        watch_peer(&stream).map_err(failed)?;
        let Some(tls) = &self.tls else { return Ok(Box::new(stream)) };
        let name = ServerName::try_from(at.host.clone())
            .map_err(|_| LinkError::unfit(server, "its host is no name that TLS can check"))?;
        let handshake = tokio::time::timeout(CALL_TIME_LIMIT / 2, tls.connect(name, stream));
        let stream = handshake.await.map_err(|_| {
            let problem = "no answer to the begin of TLS; if it does not speak TLS on this port, \
                           write redis in place of rediss";
            LinkError::new(LinkErrorKind::Away, server, problem)
        })?;
        Ok(Box::new(stream.map_err(failed)?))
    }
}

/// What a server is called in messages.
pub(super) fn server_name(endpoint: &Endpoint) -> String {
    format!("redis {endpoint}")
}

/// The error in an answer.
pub(super) fn refused(value: &Value) -> Option<&redis::ServerError> {
    match value {
        Value::ServerError(error) => Some(error),
        _ => None,
    }
}

fn io_error_in(error: &redis::RedisError) -> Option<&io::Error> {
    type Source = Arc<dyn std::error::Error + Send + Sync>;
    std::error::Error::source(error)?.downcast_ref::<Source>()?.downcast_ref()
}

async fn in_time<T>(
    server: &str,
    what: &str,
    doing: impl Future<Output = Result<T, LinkError>>,
) -> Result<T, LinkError> {
    let limit: Duration = CALL_TIME_LIMIT;
    tokio::time::timeout(limit, doing).await.unwrap_or_else(|_| {
        let problem = format!("{what} within {} s", limit.as_secs());
        Err(LinkError::new(LinkErrorKind::Away, server, problem))
    })
}

/// Without this, a peer that vanished would be waited for a quarter of an hour, the kernel's limit.
fn watch_peer(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(PEER_SILENCE_LIMIT))?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(PEER_SILENCE_LIMIT))?;
    Ok(())
}
