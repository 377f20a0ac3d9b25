//! The session token: shared by all reads, fetched by one of them at a time, renewed in time.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::ImdsError;

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
    /// A token granted at `now`.
    pub(super) fn new(text: String, ttl: Duration, now: Instant) -> Self {
        let lead = RENEWAL_LEAD.min(ttl / 10);
        Self { text: text.into(), renew_at: now + (ttl - lead), ends_at: now + ttl }
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
