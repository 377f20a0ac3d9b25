//! Session tokens of the emulated IMDS: granted for a time, checked on every read.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

/// Longest lifetime a client may ask for, in seconds: six hours.
pub(super) const LONGEST_TTL_SECONDS: u64 = 21_600;

/// Tokens kept at once; the one that expires first makes room. A client needs one at a time.
const LIVE_TOKENS_LIMIT: usize = 256;

/// The tokens granted, with the moment each expires.
#[derive(Default)]
pub(super) struct Tokens {
    expiry: HashMap<String, Instant>,
    lifetime: Option<Duration>,
}

impl Tokens {
    /// Grants a token valid from `now` for what was asked, or for the overriding lifetime.
    pub(super) fn grant(&mut self, asked: Duration, now: Instant) -> String {
        self.expiry.retain(|_, expiry| *expiry > now);
        if self.expiry.len() >= LIVE_TOKENS_LIMIT {
            let first = self.expiry.iter().min_by_key(|(_, expiry)| **expiry);
            if let Some(first) = first.map(|(token, _)| token.clone()) {
                self.expiry.remove(&first);
            }
        }
        let token = uuid::Uuid::new_v4().simple().to_string();
        self.expiry.insert(token.clone(), now + self.lifetime.unwrap_or(asked));
        token
    }

    /// Whether `token` was granted here and has not expired or been revoked.
    pub(super) fn is_valid(&self, token: &str, now: Instant) -> bool {
        self.expiry.get(token).is_some_and(|expiry| *expiry > now)
    }

    pub(super) fn override_lifetime(&mut self, lifetime: Option<Duration>) {
        self.lifetime = lifetime;
    }

    pub(super) fn revoke(&mut self) {
        self.expiry.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_is_valid_until_its_lifetime_ends() {
        let mut tokens = Tokens::default();
        let now = Instant::now();
        let token = tokens.grant(Duration::from_secs(60), now);
        assert!(tokens.is_valid(&token, now + Duration::from_secs(59)));
        assert!(!tokens.is_valid(&token, now + Duration::from_secs(60)));
        assert!(!tokens.is_valid("another", now));
    }

    #[test]
    fn overridden_lifetime_beats_what_was_asked() {
        let mut tokens = Tokens::default();
        let now = Instant::now();
        tokens.override_lifetime(Some(Duration::from_millis(10)));
        let token = tokens.grant(Duration::from_secs(60), now);
        assert!(!tokens.is_valid(&token, now + Duration::from_millis(11)));
    }

    #[test]
    fn tokens_kept_are_bounded() {
        let mut tokens = Tokens::default();
        let now = Instant::now();
        for _ in 0..LIVE_TOKENS_LIMIT + 10 {
            tokens.grant(Duration::from_secs(60), now);
        }
        assert_eq!(tokens.expiry.len(), LIVE_TOKENS_LIMIT);
    }
}
