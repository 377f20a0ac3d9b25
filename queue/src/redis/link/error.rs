//! Why a call through a link gave no reply, and whether waiting or an operator helps.

use std::io;

use redis::{RedisError, ServerError};
use thiserror::Error;

use super::super::access;
use crate::client::QueueError;

/// A failed call, with the server that it failed at.
#[derive(Debug, Clone, Error)]
#[error("{server}: {problem}")]
pub(in crate::redis) struct LinkError {
    pub kind: LinkErrorKind,
    pub server: String,
    pub problem: String,
}

/// What a failure means for the call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::redis) enum LinkErrorKind {
    /// No connection: nothing was sent.
    Away,
    /// The connection broke before the answer came: whether it was carried out is not known.
    Broken,
    /// No answer in time: whether it was or will be carried out is not known.
    Silent,
    /// The server refused it, with this code; nothing was done.
    Refused(String),
    /// No call succeeds until an operator changes something.
    Unfit,
    /// An answer that makes no sense.
    Unreadable,
}

/// Refusals that pass by themselves, or once another part is back; each with what it means.
const PASSING: [(&str, &str); 11] = [
    ("LOADING", ""),
    ("BUSY", ""),
    ("TRYAGAIN", ""),
    ("MOVED", ""),
    ("ASK", ""),
    ("READONLY", "; it is a replica: use the address of its master"),
    ("MASTERDOWN", "; it is a replica that has lost its master"),
    ("CLUSTERDOWN", "; a part of the cluster has no master"),
    ("NOREPLICAS", "; fewer replicas are connected than its min-replicas-to-write asks for"),
    ("MISCONF", "; it cannot save its data: look at its disk and log"),
    ("OOM", "; its memory is full: raise maxmemory, or wait until work is taken"),
];

impl LinkError {
    pub fn new(kind: LinkErrorKind, server: impl ToString, problem: impl ToString) -> Self {
        Self { kind, server: server.to_string(), problem: problem.to_string() }
    }

    pub fn unfit(server: impl ToString, problem: impl ToString) -> Self {
        Self::new(LinkErrorKind::Unfit, server, problem)
    }

    /// What a connection that stood until then ended with.
    pub fn of_connection(server: impl ToString, error: &RedisError) -> Self {
        let kind = if error.is_timeout() {
            LinkErrorKind::Silent
        } else if error.is_io_error() || error.is_connection_dropped() {
            LinkErrorKind::Broken
        } else {
            LinkErrorKind::Unreadable
        };
        let problem = match kind {
            LinkErrorKind::Silent => "no answer in time".to_owned(),
            _ => error.to_string(),
        };
        Self::new(kind, server, problem)
    }

    /// What the server answered in place of a reply.
    pub fn of_refusal(server: impl ToString, error: &ServerError) -> Self {
        let details = error.details().unwrap_or_default();
        let code = error.code();
        // A script's command that the user may not call is an ERR of the script.
        let code = if access::is_denial(details) { "NOPERM" } else { code };
        let what_to_do = match code {
            "NOPERM" => access::HOW_TO_GRANT,
            "WRONGPASS" => "; write the right user:password@ into the address, percent-encoded",
            "NOAUTH" => "; it asks for a password: write user:password@ into the address",
            _ => PASSING.iter().find(|(passing, _)| *passing == code).map_or("", |(_, hint)| hint),
        };
        let details = details.trim_end_matches('.');
        let problem = format!("{code} {details}{what_to_do}");
        match code {
            "NOPERM" | "WRONGPASS" | "NOAUTH" => Self::unfit(server, problem),
            _ => Self::new(LinkErrorKind::Refused(code.to_owned()), server, problem),
        }
    }

    /// The server's code, when it refused.
    pub fn code(&self) -> Option<&str> {
        match &self.kind {
            LinkErrorKind::Refused(code) => Some(code),
            _ => None,
        }
    }

    /// Whether the same call may succeed later without anybody changing anything.
    pub fn is_passing(&self) -> bool {
        match &self.kind {
            LinkErrorKind::Away | LinkErrorKind::Broken | LinkErrorKind::Silent => true,
            LinkErrorKind::Refused(code) => PASSING.iter().any(|(passing, _)| passing == code),
            LinkErrorKind::Unfit | LinkErrorKind::Unreadable => false,
        }
    }

    /// Whether there was no answer in time.
    pub fn is_silence(&self) -> bool {
        matches!(self.kind, LinkErrorKind::Silent)
    }

    /// What to tell the caller of the queue.
    pub fn to_queue_error(&self) -> QueueError {
        let (what, problem) = (self.server.clone(), self.problem.clone());
        match self.kind {
            _ if self.is_passing() => QueueError::Unavailable { what, problem },
            LinkErrorKind::Unfit => QueueError::Unsuitable { problem: self.to_string() },
            _ => QueueError::Protocol { problem: self.to_string() },
        }
    }
}

/// What connecting by TCP and TLS failed with.
pub(super) fn of_dialing(server: &str, error: &io::Error) -> LinkError {
    use tokio_rustls::rustls::{AlertDescription, CertificateError, Error, InvalidMessage};
    let tls = error.get_ref().and_then(|source| source.downcast_ref::<Error>());
    let what_to_do = match tls {
        None => {
            return LinkError::new(LinkErrorKind::Away, server, error);
        }
        // A bad signature is that of another authority with the name of ours.
        Some(Error::InvalidCertificate(
            CertificateError::UnknownIssuer | CertificateError::BadSignature,
        )) => {
            "nobody we trust has signed its certificate: add ?ca=/path.pem with its authority to \
             the address"
        }
        Some(Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        )) => {
            "its certificate is for another name: use that name in the address, or issue one that \
             names this host"
        }
        Some(Error::InvalidCertificate(
            CertificateError::Expired | CertificateError::ExpiredContext { .. },
        )) => "its certificate has expired: renew it",
        Some(Error::InvalidMessage(InvalidMessage::InvalidContentType)) => {
            "it does not speak TLS on this port: use its TLS port, or redis in place of rediss"
        }
        Some(Error::AlertReceived(AlertDescription::CertificateRequired)) => {
            "it asks for a client certificate, which is not supported: set tls-auth-clients no"
        }
        Some(_) => "look at its TLS settings",
    };
    LinkError::unfit(server, format!("TLS: {error}; {what_to_do}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(line: &[u8]) -> QueueError {
        let value = redis::parse_redis_value(line).expect("a reply");
        let redis::Value::ServerError(error) = value else { panic!("an error reply") };
        LinkError::of_refusal("redis r:1", &error).to_queue_error()
    }

    #[test]
    fn waiting_helps_exactly_where_the_server_recovers_by_itself() {
        for (line, helps) in [
            ("-LOADING Redis is loading", true),
            ("-BUSY Redis is busy", true),
            ("-CLUSTERDOWN Hash slot not served", true),
            ("-MOVED 1 a:1", true),
            ("-TRYAGAIN Multiple keys", true),
            ("-NOREPLICAS Not enough", true),
            ("-READONLY You can't write", true),
            ("-OOM command not allowed", true),
            ("-NOPERM this user", false),
            ("-WRONGPASS invalid", false),
            ("-NOAUTH Authentication required.", false),
            ("-ERR wrong number", false),
            ("-CROSSSLOT Keys", false),
        ] {
            let error = refusal(format!("{line}\r\n").as_bytes());
            assert_eq!(error.is_retriable(), helps, "{line}: {error}");
        }
    }

    #[test]
    fn refusals_say_what_to_do() {
        for (line, hint) in [
            ("-NOPERM this user has no permissions to run the 'info' command", "ACL SETUSER"),
            ("-WRONGPASS invalid username-password pair", "right user:password@"),
            ("-NOAUTH Authentication required.", "write user:password@"),
            ("-NOREPLICAS Not enough good replicas", "min-replicas-to-write"),
        ] {
            let message = refusal(format!("{line}\r\n").as_bytes()).to_string();
            assert!(message.contains(hint), "{line}: {message}");
        }
    }
}
