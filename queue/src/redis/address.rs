//! Where a run's Redis is: one server, the master behind a set of Sentinels, or a Cluster.
//!
//! | URL | means |
//! |---|---|
//! | `redis://host:6379/db` | one server |
//! | `redis+sentinel://host:26379,host2:26379/MASTER/db` | the master that these Sentinels name |
//! | `redis+cluster://host:6379,host2:6379` | a Cluster; some of its nodes |
//!
//! `rediss` in place of `redis` speaks TLS to every server named or found, and `valkey` may stand
//! for `redis`. `user:password@` or `:password@` goes before the hosts, percent-encoded. Parameters
//! after `?`, joined by `&`: `ca=/path.pem` trusts exactly the authorities in that file (else those
//! of the system); `sentinel_user` and `sentinel_password` log in to the Sentinels themselves.
//!
//! Parsing touches neither network nor files. No message repeats a part of the URL that could hold
//! a password, not even when the URL is malformed.

mod parts;

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use thiserror::Error;

pub(super) use parts::{Endpoint, Login};
use parts::{Parameters, parse_hosts, parse_login};

const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

/// A validated address of Redis or Valkey. Neither `Display` nor `Debug` shows passwords.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedisAddress {
    pub(super) topology: Topology,
    pub(super) nodes: Vec<Endpoint>,
    pub(super) login: Login,
    pub(super) tls: Option<Tls>,
    pub(super) database: i64,
}

/// What stands at the address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Topology {
    Single,
    Sentinel { master: String, login: Login },
    Cluster,
}

/// Whom to trust.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tls {
    /// Certificates of authorities in PEM; those of the system otherwise.
    pub authorities: Option<PathBuf>,
}

/// Why a text is no address: what is wrong, where, and what to write.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("redis URL: {problem}; write {form}")]
pub struct AddressError {
    problem: String,
    form: &'static str,
}

/// The part of a URL before `://`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Single,
    Sentinel,
    Cluster,
}

impl Kind {
    fn form(self) -> &'static str {
        match self {
            Self::Single => "redis://[user:password@]host:6379[/database]",
            Self::Sentinel => {
                "redis+sentinel://[user:password@]host:26379,host:26379/MASTER_NAME[/database]"
            }
            Self::Cluster => "redis+cluster://[user:password@]host:6379,host:6379",
        }
    }

    fn error(self, problem: impl Into<String>) -> AddressError {
        AddressError { problem: problem.into(), form: self.form() }
    }
}

impl FromStr for RedisAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let Some((scheme, rest)) = text.split_once("://") else {
            return Err(Kind::Single.error("it has no scheme"));
        };
        let (kind, is_tls) = parse_scheme(scheme)?;
        let complain = |problem: String| kind.error(problem);
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        if query.contains('@') {
            return Err(kind.error("there is an @ after the ?; encode ? as %3F and @ as %40"));
        }
        let (login, place) = match rest.rsplit_once('@') {
            Some((login, place)) => (parse_login(login).map_err(complain)?, place),
            None => (Login::default(), rest),
        };
        let (hosts, path) = place.split_once('/').unwrap_or((place, ""));
        let port = if kind == Kind::Sentinel { SENTINEL_PORT } else { PORT };
        let nodes = parse_hosts(hosts, port).map_err(complain)?;
        if kind == Kind::Single && nodes.len() > 1 {
            return Err(kind.error(
                "it names several hosts, which redis+sentinel:// and redis+cluster:// may and \
                 redis:// may not",
            ));
        }
        let (master, database) = parse_path(kind, path).map_err(complain)?;
        let parameters = Parameters::parse(query).map_err(complain)?;
        parameters.check(is_tls, kind == Kind::Sentinel).map_err(complain)?;
        let topology = match kind {
            Kind::Single => Topology::Single,
            Kind::Sentinel => Topology::Sentinel { master, login: parameters.sentinel_login },
            Kind::Cluster => Topology::Cluster,
        };
        let tls = is_tls.then_some(Tls { authorities: parameters.authorities });
        Ok(Self { topology, nodes, login, tls, database })
    }
}

fn parse_scheme(scheme: &str) -> Result<(Kind, bool), AddressError> {
    let (server, topology) = scheme.split_once('+').unwrap_or((scheme, ""));
    let is_tls = match server {
        "redis" | "valkey" => Some(false),
        "rediss" | "valkeys" => Some(true),
        _ => None,
    };
    let kind = match topology {
        "" if !scheme.ends_with('+') => Some(Kind::Single),
        "sentinel" => Some(Kind::Sentinel),
        "cluster" => Some(Kind::Cluster),
        _ => None,
    };
    kind.zip(is_tls).ok_or_else(|| {
        Kind::Single.error(
            "the scheme must be redis, redis+sentinel or redis+cluster, with rediss in place of \
             redis for TLS",
        )
    })
}

/// The master's name and the database.
fn parse_path(kind: Kind, path: &str) -> Result<(String, i64), String> {
    let (master, database) = match kind {
        Kind::Sentinel => path.split_once('/').unwrap_or((path, "")),
        _ => ("", path),
    };
    let is_name = |text: &str| {
        text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
    };
    if kind == Kind::Sentinel && (master.is_empty() || !is_name(master)) {
        let problem = "after the hosts, the name of the master as the Sentinels know it must \
                       follow: /MASTER_NAME of letters, digits, dots, dashes and underscores";
        return Err(problem.to_owned());
    }
    let database = match database {
        "" => 0,
        text => match text.parse::<i64>() {
            Ok(number) if number >= 0 => number,
            _ => return Err("the database after the / must be a number from 0".to_owned()),
        },
    };
    if kind == Kind::Cluster && database != 0 {
        return Err("a Cluster has database 0 only".to_owned());
    }
    Ok((master.to_owned(), database))
}

impl RedisAddress {
    /// The same address as a Cluster, for the message to somebody who did not know it was one.
    pub(super) fn cluster_form(&self) -> String {
        let scheme = if self.tls.is_some() { "rediss" } else { "redis" };
        format!("{scheme}+cluster://{}", self.hosts())
    }

    fn hosts(&self) -> String {
        self.nodes.iter().map(Endpoint::to_string).collect::<Vec<_>>().join(",")
    }
}

impl fmt::Display for RedisAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.topology {
            Topology::Single => write!(formatter, "redis {}", self.hosts()),
            Topology::Sentinel { master, .. } => {
                write!(formatter, "redis {master} of sentinels {}", self.hosts())
            }
            Topology::Cluster => write!(formatter, "redis cluster {}", self.hosts()),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests;
