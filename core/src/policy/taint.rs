//! Taints as a fleet policy writes them.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use super::kinds::Pattern;

/// A taint that operators want on a node that goes, beside Ebbtide's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExtraTaint {
    /// Its key, such as `example.com/leaving`.
    pub key: String,
    /// Its value; may be empty.
    pub value: String,
    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    pub effect: String,
}

/// A text that is no taint.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("taint must be key=value:Effect or key:Effect, got {0:?}")]
pub struct TaintError(String);

impl FromStr for ExtraTaint {
    type Err = TaintError;

    fn from_str(text: &str) -> Result<Self, TaintError> {
        let error = || TaintError(text.to_owned());
        let (name, effect) = text.rsplit_once(':').ok_or_else(error)?;
        let (key, value) = name.split_once('=').unwrap_or((name, ""));
        let is_effect = matches!(effect, "NoSchedule" | "PreferNoSchedule" | "NoExecute");
        let is_part = |part: &str| {
            let is_inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
            let is_end = |c: char| c.is_ascii_alphanumeric();
            part.len() <= 63
                && part.chars().all(is_inner)
                && part.starts_with(is_end)
                && part.ends_with(is_end)
        };
        let is_key = match key.split_once('/') {
            Some((prefix, name)) => {
                prefix.len() <= 253 && prefix.split('.').all(is_part) && is_part(name)
            }
            None => is_part(key),
        };
        if !is_effect || !is_key || !(value.is_empty() || is_part(value)) {
            return Err(error());
        }
        let [key, value, effect] = [key, value, effect].map(str::to_owned);
        Ok(Self { key, value, effect })
    }
}

impl fmt::Display for ExtraTaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let equals = if self.value.is_empty() { "" } else { "=" };
        write!(f, "{}{equals}{}:{}", self.key, self.value, self.effect)
    }
}

impl Pattern for ExtraTaint {
    const FORM: &'static str = "be key=value:Effect or key:Effect";
    const EXAMPLE: &'static str = "example.com/leaving=soon:NoExecute";
    const REGEX: &'static str = "^([a-zA-Z0-9]([a-zA-Z0-9_-]{0,61}[a-zA-Z0-9])?\
                                 ([.][a-zA-Z0-9]([a-zA-Z0-9_-]{0,61}[a-zA-Z0-9])?)*/)?\
                                 [a-zA-Z0-9]([a-zA-Z0-9._-]{0,61}[a-zA-Z0-9])?\
                                 (=([a-zA-Z0-9]([a-zA-Z0-9._-]{0,61}[a-zA-Z0-9])?)?)?\
                                 :(NoSchedule|PreferNoSchedule|NoExecute)$";
    const LENGTH_LIMIT: usize = 400;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taint_is_read_as_kubectl_writes_it() {
        for text in ["a=b:NoSchedule", "example.com/going:NoExecute", "x_y.z=1:PreferNoSchedule"] {
            let taint: ExtraTaint = text.parse().expect("a taint");
            assert_eq!(taint.to_string(), text);
        }
        for text in [
            "",
            "a=b",
            "a=b:Never",
            ":NoSchedule",
            "a b:NoSchedule",
            "a=-:NoSchedule",
            "a/:NoExecute",
        ] {
            assert_eq!(text.parse::<ExtraTaint>(), Err(TaintError(text.to_owned())), "{text}");
        }
    }
}
