//! The body of a request. Small ones come as they come; of large ones, or of unknown size, only so
//! many are in memory at a time, and each has only so much time.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::header;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::front::Front;
use super::refusal::{Code, Refusal};

/// Bytes up to which a body is small: 256 connections × 64 KiB are 16 MiB. Renewals are.
const SMALL_BODY_BYTES: u64 = 64 << 10;

/// Large bodies at a time: 16 × 4 MiB are 64 MiB, a few times that once they are read.
const LARGE_BODIES_MAX: usize = 16;

/// Time in which a body must have come.
const BODY_LIMIT: Duration = Duration::from_secs(10);

/// Places for large bodies.
pub(super) fn places() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(LARGE_BODIES_MAX))
}

/// See the module. The place is free again when this is dropped.
pub(super) struct Body {
    bytes: Bytes,
    _place: Option<OwnedSemaphorePermit>,
}

impl Body {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl FromRequest<Front> for Body {
    type Rejection = Refusal;

    async fn from_request(request: Request, front: &Front) -> Result<Self, Refusal> {
        let length = request.headers().get(header::CONTENT_LENGTH);
        let length = length.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
        // The semaphore is never closed.
        let place = match length {
            Some(length) if length <= SMALL_BODY_BYTES => None,
            _ => front.large_bodies().acquire_owned().await.ok(),
        };
        let read = timeout(BODY_LIMIT, Bytes::from_request(request, front)).await;
        let bytes = read.map_err(|_| {
            let seconds = BODY_LIMIT.as_secs();
            Refusal::new(Code::BadRequest, format!("the body must come within {seconds} s"))
        })??;
        Ok(Self { bytes, _place: place })
    }
}
