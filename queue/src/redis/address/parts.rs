//! The parts of an address: hosts, login, parameters. Every problem is told without its text.

use std::fmt;
use std::path::PathBuf;

/// Host and port of one server.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::redis) struct Endpoint {
    pub host: String,
    pub port: u16,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            return write!(formatter, "[{}]:{}", self.host, self.port);
        }
        write!(formatter, "{}:{}", self.host, self.port)
    }
}

/// Who we are to a server; neither part when it asks nobody.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::redis) struct Login {
    pub user: Option<String>,
    pub password: Option<Secret>,
}

/// A text that is never shown.
#[derive(Clone, PartialEq, Eq)]
pub(in crate::redis) struct Secret(String);

impl Secret {
    /// The text, for the server only.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("(secret)")
    }
}

/// What stands after the `?`.
#[derive(Default)]
pub(super) struct Parameters {
    pub authorities: Option<PathBuf>,
    pub sentinel_login: Login,
}

impl Parameters {
    pub fn parse(query: &str) -> Result<Self, String> {
        let mut parameters = Self::default();
        let mut seen = Vec::new();
        for (place, pair) in (1..).zip(query.split('&').filter(|pair| !pair.is_empty())) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = percent_decoded(value)
                .filter(|value| !value.is_empty())
                .ok_or_else(|| format!("parameter {place} after the ? has no readable value"))?;
            if seen.contains(&name) {
                return Err(format!("parameter {place} after the ? repeats an earlier one"));
            }
            seen.push(name);
            match name {
                "ca" => parameters.authorities = Some(PathBuf::from(value)),
                "sentinel_user" => parameters.sentinel_login.user = Some(value),
                "sentinel_password" => parameters.sentinel_login.password = Some(Secret(value)),
                _ => {
                    return Err(format!(
                        "parameter {place} after the ? is not known; known are ca, sentinel_user \
                         and sentinel_password"
                    ));
                }
            }
        }
        Ok(parameters)
    }

    /// Refuses what would have no effect.
    pub fn check(&self, is_tls: bool, is_sentinel: bool) -> Result<(), String> {
        let login = &self.sentinel_login;
        let problem = if self.authorities.is_some() && !is_tls {
            "ca is for TLS: use rediss in place of redis, or leave ca out"
        } else if *login != Login::default() && !is_sentinel {
            "sentinel_user and sentinel_password are for redis+sentinel:// only"
        } else if login.user.is_some() && login.password.is_none() {
            "sentinel_user needs sentinel_password"
        } else {
            return Ok(());
        };
        Err(problem.to_owned())
    }
}

pub(super) fn parse_login(text: &str) -> Result<Login, String> {
    let problem = "before the @, user:password or :password must stand, with : / ? # @ and % in \
                   them percent-encoded";
    let (user, password) = text.split_once(':').ok_or(problem)?;
    let user = percent_decoded(user).ok_or(problem)?;
    let password = percent_decoded(password).filter(|text| !text.is_empty()).ok_or(problem)?;
    Ok(Login { user: (!user.is_empty()).then_some(user), password: Some(Secret(password)) })
}

pub(super) fn parse_hosts(text: &str, default_port: u16) -> Result<Vec<Endpoint>, String> {
    let hosts: Vec<&str> = text.split(',').collect();
    let mut nodes = Vec::with_capacity(hosts.len());
    for (place, host) in (1..).zip(&hosts) {
        let endpoint = parse_host(host, default_port)
            .map_err(|problem| format!("host {place} of {} {problem}", hosts.len()))?;
        if nodes.contains(&endpoint) {
            return Err(format!("host {place} of {} repeats an earlier one", hosts.len()));
        }
        nodes.push(endpoint);
    }
    Ok(nodes)
}

fn parse_host(text: &str, default_port: u16) -> Result<Endpoint, &'static str> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']').ok_or("has [ without ]")?;
            host.parse::<std::net::Ipv6Addr>()
                .map_err(|_| "has no IPv6 address between [ and ]")?;
            (host, port)
        }
        None => text.find(':').map_or((text, ""), |colon| text.split_at(colon)),
    };
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    if host.is_empty() {
        return Err("is empty");
    }
    if !text.starts_with('[') && !host.bytes().all(is_name) {
        return Err("has a character that no host name has; a password goes before an @");
    }
    let problem = "must have a port from 1 to 65535 after its colon; a password goes before an @";
    let port = match port.strip_prefix(':') {
        Some(port) => port.parse().ok().filter(|port| *port > 0).ok_or(problem)?,
        None if port.is_empty() => default_port,
        None => return Err(problem),
    };
    Ok(Endpoint { host: host.to_owned(), port })
}

/// The text without percent-encoding; `None` when it is malformed.
fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let decoded = match byte {
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                let digits = std::str::from_utf8(&digits).ok()?;
                digits.bytes().all(|digit| digit.is_ascii_hexdigit()).then_some(())?;
                u8::from_str_radix(digits, 16).ok()?
            }
            plain => plain,
        };
        bytes.push(decoded);
    }
    String::from_utf8(bytes).ok()
}
