//! The HTTP side of the emulated IMDS: faults first, then the token, then the resource. Calls that
//! came through a proxy are refused, and so are those with two tokens.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use tokio::time::Instant;

use super::super::{lock, wall_clock};
use super::tokens::LONGEST_TTL_SECONDS;
use super::{Fault, Imds, path};

const TTL_HEADER: &str = "x-aws-ec2-metadata-token-ttl-seconds";
const TOKEN_HEADER: &str = "x-aws-ec2-metadata-token";

/// Different paths counted at most; requests for further ones are answered but not counted.
const COUNTED_PATHS_LIMIT: usize = 256;

/// Requests that arrived, by path.
#[derive(Default)]
pub(super) struct RequestCounts {
    by_path: BTreeMap<String, u64>,
}

impl RequestCounts {
    pub(super) fn of(&self, path: &str) -> u64 {
        self.by_path.get(path).copied().unwrap_or(0)
    }

    fn add(&mut self, path: &str) {
        if let Some(count) = self.by_path.get_mut(path) {
            *count += 1;
        } else if self.by_path.len() < COUNTED_PATHS_LIMIT {
            self.by_path.insert(path.to_owned(), 1);
        }
    }
}

/// One handler for the whole tree: the service knows paths, not routes.
pub(super) fn router(imds: Arc<Imds>) -> Router {
    Router::new().fallback(serve).with_state(imds)
}

async fn serve(
    State(imds): State<Arc<Imds>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
) -> Response {
    let path = uri.path();
    imds.counts.send_modify(|counts| counts.add(path));
    let fault = lock(&imds.faults).take(path);
    match fault {
        Some(Fault::Status(code)) => {
            return page(StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR));
        }
        Some(Fault::Body(body)) => return text(body),
        Some(Fault::Hang) => std::future::pending().await,
        Some(Fault::Delay(delay)) => tokio::time::sleep(delay).await,
        None => {}
    }
    if headers.contains_key("x-forwarded-for") {
        return page(StatusCode::FORBIDDEN);
    }
    if headers.get_all(TOKEN_HEADER).iter().count() > 1 {
        return page(StatusCode::BAD_REQUEST);
    }
    if method == Method::PUT {
        return grant_token(&imds, path, &headers);
    }
    if method != Method::GET && method != Method::HEAD || path == path::TOKEN {
        return page(StatusCode::METHOD_NOT_ALLOWED);
    }
    if !has_valid_token(&imds, &headers) {
        return page(StatusCode::UNAUTHORIZED);
    }
    match lock(&imds.resources).body(path, wall_clock()) {
        Some(body) => text(body),
        None => page(StatusCode::NOT_FOUND),
    }
}

/// Answers a `PUT`. Dated versions of the path are refused, as documented.
fn grant_token(imds: &Imds, path: &str, headers: &HeaderMap) -> Response {
    if path != path::TOKEN {
        return page(StatusCode::FORBIDDEN);
    }
    let seconds = header(headers, TTL_HEADER).and_then(|value| value.trim().parse::<u64>().ok());
    let Some(seconds) = seconds.filter(|seconds| (1..=LONGEST_TTL_SECONDS).contains(seconds))
    else {
        return page(StatusCode::BAD_REQUEST);
    };
    let token = lock(&imds.tokens).grant(Duration::from_secs(seconds), Instant::now());
    ([(TTL_HEADER, seconds.to_string())], text(token)).into_response()
}

fn has_valid_token(imds: &Imds, headers: &HeaderMap) -> bool {
    header(headers, TOKEN_HEADER)
        .is_some_and(|token| lock(&imds.tokens).is_valid(token, Instant::now()))
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// Values are plain text, JSON ones too.
fn text(body: String) -> Response {
    ([(header::CONTENT_TYPE, "text/plain")], body).into_response()
}

/// Everything that is no value is an XHTML page, which a client must not take for JSON.
fn page(status: StatusCode) -> Response {
    let reason = status.canonical_reason().unwrap_or("Error");
    let code = status.as_u16();
    let body = format!(
        "<?xml version=\"1.0\" encoding=\"iso-8859-1\"?>\n\
         <!DOCTYPE html PUBLIC \"-//W3C//DTD XHTML 1.0 Transitional//EN\"\n\
         \t\"http://www.w3.org/TR/xhtml1/DTD/xhtml1-transitional.dtd\">\n\
         <html xmlns=\"http://www.w3.org/1999/xhtml\" xml:lang=\"en\" lang=\"en\">\n \
         <head>\n  <title>{code} - {reason}</title>\n </head>\n \
         <body>\n  <h1>{code} - {reason}</h1>\n </body>\n</html>\n"
    );
    (status, [(header::CONTENT_TYPE, "text/html")], body).into_response()
}
