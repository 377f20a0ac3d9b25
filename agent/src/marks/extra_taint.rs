//! A taint that an operator wants beside ours, such as one that other controllers understand.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// Effects that Kubernetes knows.
const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

/// A taint as `key=value:Effect` or `key:Effect`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExtraTaint {
    /// Its key.
    pub key: String,
    /// Its value; empty when it has none.
    pub value: String,
    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    pub effect: String,
}

/// A text that is no taint.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("a taint must be key=value:Effect or key:Effect with one of {EFFECTS:?}, got {text:?}")]
pub struct ExtraTaintError {
    text: String,
}

impl FromStr for ExtraTaint {
    type Err = ExtraTaintError;

    fn from_str(text: &str) -> Result<Self, ExtraTaintError> {
        let error = || ExtraTaintError { text: text.to_owned() };
        let (name, effect) = text.rsplit_once(':').ok_or_else(error)?;
        let (key, value) = name.split_once('=').unwrap_or((name, ""));
        if !EFFECTS.contains(&effect) || !is_key(key) || !is_value(value) {
            return Err(error());
        }
        let (key, value, effect) = (key.to_owned(), value.to_owned(), effect.to_owned());
        Ok(Self { key, value, effect })
    }
}

impl fmt::Display for ExtraTaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.value.as_str() {
            "" => write!(f, "{}:{}", self.key, self.effect),
            value => write!(f, "{}={value}:{}", self.key, self.effect),
        }
    }
}

/// Whether the API server would take it as a key: `name` or `dns.prefix/name`.
fn is_key(text: &str) -> bool {
    let (prefix, name) = text.split_once('/').unwrap_or(("x", text));
    let is_dns = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
    let is_prefix = (1..=253).contains(&prefix.len()) && prefix.chars().all(is_dns);
    is_prefix && !name.is_empty() && is_value(name)
}

/// Whether it would take it as a value: at most 63 characters, at both ends a letter or digit.
fn is_value(text: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let is_end = |c: Option<char>| c.is_none_or(|c| c.is_ascii_alphanumeric());
    let mut characters = text.chars();
    let is_bounded = is_end(characters.clone().next()) && is_end(characters.next_back());
    text.len() <= 63 && is_bounded && text.chars().all(is_allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taint_is_read_and_written_the_same() {
        for text in ["going:NoSchedule", "team.io/going=soon:NoExecute", "a=b:PreferNoSchedule"] {
            let taint: ExtraTaint = text.parse().expect("valid");
            assert_eq!(taint.to_string(), text);
        }
    }

    #[test]
    fn what_the_api_server_would_refuse_is_refused() {
        let long = format!("{}:NoSchedule", "k".repeat(64));
        for text in [
            "",
            "going",
            "going:Never",
            "=v:NoSchedule",
            "a b:NoSchedule",
            "Team.io/x:NoSchedule",
            "a=-b:NoSchedule",
            "a=b=c:NoSchedule",
            "/a:NoSchedule",
            long.as_str(),
        ] {
            let error = text.parse::<ExtraTaint>().expect_err(text).to_string();
            assert!(error.contains("key=value:Effect"), "{error}");
        }
    }
}
