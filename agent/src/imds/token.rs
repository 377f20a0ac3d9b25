//! The session token: what is granted, read; shared by all reads, fetched by one of them at a time,
//! renewed in time.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::ImdsError;

/// Lifetime asked for a token, in seconds: the longest there is, six hours.
pub(super) const TTL_SECONDS: u64 = 21_600;

/// Longest token, in bytes. Today's have 56; a header of this length is taken by every server.
const TEXT_BYTES_MAX: usize = 1024;

/// How long before its end a token is renewed, unless it lives too short for that.
const RENEWAL_LEAD: Duration = Duration::from_secs(300);

/// A session token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Token {
    text: Arc<str>,
    renew_at: Instant,
    ends_at: Instant,
}

impl Token {
    /// The token in an answer that came at `now`; `None` when it has none that a header can carry.
    ///
    /// `promised`: how many seconds it lives, as the answer says. Nonsense, or nothing, stands for
    /// what was asked: a token that ends earlier is refused, and replaced then.
    pub(super) fn granted(body: &str, promised: Option<&str>, now: Instant) -> Option<Self> {
        let text = body.trim();
        let is_text = !text.is_empty() && text.len() <= TEXT_BYTES_MAX;
        if !is_text || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return None;
        }
        let seconds = promised.and_then(|text| text.trim().parse().ok());
        let seconds = seconds.filter(|seconds| (1..=TTL_SECONDS).contains(seconds));
        let ttl = Duration::from_secs(seconds.unwrap_or(TTL_SECONDS));
        let lead = RENEWAL_LEAD.min(ttl / 10);
        Some(Self { text: text.into(), renew_at: now + (ttl - lead), ends_at: now + ttl })
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct TokenStore {
    token: Mutex<Option<Token>>,
    /// Held by the one that fetches; keeps when and how the last fetch failed.
    fetching: tokio::sync::Mutex<Option<(Instant, ImdsError)>>,
}

impl TokenStore {
    /// A valid token: the one at hand, or a new one.
    ///
    /// Reads that need one at the same time share one call, and its failure. A token that is due
    /// for renewal still serves everybody but the one that renews it.
    pub(super) async fn current<F>(&self, fetch: impl Fn() -> F) -> Result<Token, ImdsError>
    where
        F: Future<Output = Result<Token, ImdsError>>,
    {
        let asked_at = Instant::now();
        let at_hand = self.valid(asked_at);
        let mut last_failure = match &at_hand {
            Some(token) if token.renew_at > asked_at => return Ok(token.clone()),
            Some(token) => match self.fetching.try_lock() {
                Ok(guard) => guard,
                Err(_) => return Ok(token.clone()),
            },
            None => self.fetching.lock().await,
        };
        if let Some(token) =
            self.valid(Instant::now()).filter(|token| Some(token) != at_hand.as_ref())
        {
            return Ok(token);
        }
        if let Some((failed_at, error)) = &*last_failure
            && *failed_at >= asked_at
        {
            return Err(error.clone());
        }
        match fetch().await {
            Ok(token) => {
                *self.token() = Some(token.clone());
                *last_failure = None;
                Ok(token)
            }
            Err(error) => {
                *last_failure = Some((Instant::now(), error.clone()));
                at_hand.ok_or(error)
            }
        }
    }

    /// Forgets a token that was refused, unless it was replaced meanwhile.
    pub(super) fn discard(&self, refused: &Token) {
        self.token().take_if(|token| token == refused);
    }

    fn valid(&self, now: Instant) -> Option<Token> {
        self.token().clone().filter(|token| token.ends_at > now)
    }

    fn token(&self) -> MutexGuard<'_, Option<Token>> {
        self.token.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn token_is_renewed_before_it_ends() {
        let now = Instant::now();
        let token = Token::granted("AQAE==\n", Some("60"), now).expect("a token");
        assert_eq!(token.text(), "AQAE==");
        assert_eq!(token.ends_at, now + Duration::from_secs(60));
        assert_eq!(token.renew_at, now + Duration::from_secs(54));
    }

    #[test]
    fn answer_without_a_token_grants_none() {
        let long = "x".repeat(TEXT_BYTES_MAX + 1);
        for body in ["", " \n", "two words", "<?xml version=\"1.0\"?>\n", "tök", "a\u{0}b", &long]
        {
            assert_eq!(Token::granted(body, Some("60"), Instant::now()), None, "{body:?}");
        }
    }

    proptest! {
        #[test]
        fn whatever_is_granted_can_be_sent_and_ends_within_six_hours(
            body in "\\PC{0,40}|[!-~]{1,80}",
            promised in proptest::option::of("-?[0-9]{1,20}|\\PC{0,10}| [0-9]{1,5} "),
        ) {
            let now = Instant::now();
            let Some(token) = Token::granted(&body, promised.as_deref(), now) else {
                return Ok(());
            };
            prop_assert!(reqwest::header::HeaderValue::from_str(token.text()).is_ok());
            prop_assert!(token.ends_at > now, "{:?}", promised);
            prop_assert!(token.ends_at <= now + Duration::from_secs(TTL_SECONDS));
            prop_assert!(token.renew_at <= token.ends_at);
        }
    }
}
