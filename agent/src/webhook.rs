//! Tells the world of an operator about a notice: one HTTP call, beside everything else.
//!
//! The body is a template of the operator's (Jinja syntax); everything that goes into it is
//! escaped for a JSON string. A template that does not compile, or that names something unknown,
//! is refused at start, not at the first notice.

use std::time::Duration;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{Request, StatusCode, Uri};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use minijinja::value::{Serde, ValueKind};
use minijinja::{AutoEscape, Environment, Output, State, UndefinedBehavior, Value};
use rustls::crypto::ring;
use serde::Serialize;
use thiserror::Error;
use tokio::time::{sleep, timeout};

use ebbtide_queue::client::Backoff;

/// The body without a template: what chat systems with incoming webhooks understand.
const DEFAULT_TEMPLATE: &str = concat!(
    r#"{"text":"node {{ node }} ({{ instance_id or "unknown instance" }}, {{ zone or "?" }}): "#,
    r#"{{ reason }}{% if remaining_seconds is not none %}, {{ remaining_seconds }} s left"#,
    r#"{% endif %}, {{ units }} units in flight (run {{ run }})"}"#
);

/// Tries of one call.
const TRIES: u32 = 3;

/// Time limit of one try.
const TRY_LIMIT: Duration = Duration::from_secs(5);

/// Bounds of the pause between two tries.
const PAUSE_MIN: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Name of the one template.
const TEMPLATE: &str = "webhook";

/// What a template may name.
#[derive(Debug, Clone, Default, Serialize)]
pub struct WebhookNotice {
    /// The run.
    pub run: String,
    /// The node.
    pub node: String,
    /// Its replica.
    pub replica: String,
    /// EC2 instance id, once IMDS told it.
    pub instance_id: Option<String>,
    /// Instance type, once IMDS told it.
    pub instance_type: Option<String>,
    /// Availability zone, once IMDS told it.
    pub zone: Option<String>,
    /// What happens, such as `spot_terminate` or `scale_in`.
    pub reason: String,
    /// Seconds left, when a deadline is known.
    pub remaining_seconds: Option<u64>,
    /// Units held.
    pub units: u64,
}

/// Why a webhook cannot be used.
#[derive(Debug, Error)]
pub enum WebhookError {
    /// Its address.
    #[error("webhook must be an http:// or https:// URL, got {0:?}")]
    Url(String),
    /// One of its headers.
    #[error("webhook header must be NAME: VALUE, got the name {0:?}")]
    Header(String),
    /// Its template.
    #[error("webhook template: {0:#}")]
    Template(#[from] minijinja::Error),
    /// The system's certificates.
    #[error("webhook over https needs the system's certificates: {0}")]
    Certificates(std::io::Error),
}

/// Why a notice was not told.
#[derive(Debug, Error)]
pub(crate) enum TellError {
    #[error("{0}")]
    Template(#[from] minijinja::Error),
    #[error("it answered {0}")]
    Status(StatusCode),
    #[error("it does not answer: {0}")]
    Unreachable(#[from] hyper_util::client::legacy::Error),
    #[error("no answer within {} s", .0.as_secs_f64())]
    TimedOut(Duration),
    #[error("request cannot be made: {0}")]
    Request(#[from] hyper::http::Error),
}

impl TellError {
    /// Whether another try may help: not when the other side understood and refused.
    fn is_retriable(&self) -> bool {
        match self {
            Self::Status(status) => {
                status.is_server_error() || *status == StatusCode::TOO_MANY_REQUESTS
            }
            Self::Unreachable(_) | Self::TimedOut(_) => true,
            Self::Template(_) | Self::Request(_) => false,
        }
    }
}

/// A webhook, ready to be called.
pub struct Webhook {
    uri: Uri,
    headers: Vec<(HeaderName, HeaderValue)>,
    templates: Environment<'static>,
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    try_limit: Duration,
}

impl Webhook {
    /// A webhook at `url`; `headers` are lines `NAME: VALUE`, whose values may be secrets and are
    /// never shown. Without a template the body is `{"text": "…"}`. Nothing is sent.
    ///
    /// # Errors
    /// The URL, a header or the template is malformed, or the template names something that no
    /// notice has.
    pub fn new(
        url: &str,
        headers: &[String],
        template: Option<String>,
    ) -> Result<Self, WebhookError> {
        let uri: Option<Uri> = url.parse().ok();
        let is_web =
            |uri: &Uri| matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some();
        let uri = uri.filter(is_web).ok_or_else(|| WebhookError::Url(url.to_owned()))?;
        let headers = headers.iter().map(|line| header_of(line)).collect::<Result<_, _>>()?;
        let templates = compile(template.unwrap_or_else(|| DEFAULT_TEMPLATE.to_owned()))?;
        let connector = hyper_rustls::HttpsConnectorBuilder::new()
            .with_provider_and_native_roots(ring::default_provider())
            .map_err(WebhookError::Certificates)?
            .https_or_http()
            .enable_http1()
            .build();
        let client = Client::builder(TokioExecutor::new()).build(connector);
        let webhook = Self { uri, headers, templates, client, try_limit: TRY_LIMIT };
        // With and without what may be missing.
        webhook.body(&WebhookNotice::default())?;
        Ok(webhook)
    }

    /// Tells a notice; a few tries, each with a time limit.
    ///
    /// # Errors
    /// The last try's.
    pub(crate) async fn tell(&self, notice: &WebhookNotice) -> Result<(), TellError> {
        let mut backoff = Backoff::new(PAUSE_MIN, PAUSE_MAX);
        loop {
            let tried = timeout(self.try_limit, self.tell_once(notice)).await;
            let error = match tried.unwrap_or(Err(TellError::TimedOut(self.try_limit))) {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            let pause = backoff.next_pause();
            if !error.is_retriable() || backoff.failures() >= TRIES {
                return Err(error);
            }
            tracing::debug!(%error, "webhook is called again");
            sleep(pause).await;
        }
    }

    async fn tell_once(&self, notice: &WebhookNotice) -> Result<(), TellError> {
        let mut request = Request::post(self.uri.clone()).header(CONTENT_TYPE, "application/json");
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let request = request.body(Full::new(Bytes::from(self.body(notice)?)))?;
        let status = self.client.request(request).await?.status();
        if status.is_success() { Ok(()) } else { Err(TellError::Status(status)) }
    }

    fn body(&self, notice: &WebhookNotice) -> Result<String, minijinja::Error> {
        self.templates.get_template(TEMPLATE)?.render(Serde(notice))
    }
}

fn header_of(line: &str) -> Result<(HeaderName, HeaderValue), WebhookError> {
    let (name, value) = line.split_once(':').unwrap_or((line, ""));
    let error = || WebhookError::Header(name.trim().to_owned());
    let parsed = (name.trim().parse(), HeaderValue::from_str(value.trim()));
    match parsed {
        (Ok(name), Ok(mut value)) if !value.is_empty() => {
            value.set_sensitive(true);
            Ok((name, value))
        }
        _ => Err(error()),
    }
}

fn compile(template: String) -> Result<Environment<'static>, minijinja::Error> {
    let mut templates = Environment::new();
    templates.set_undefined_behavior(UndefinedBehavior::Strict);
    templates.set_auto_escape_callback(|_| AutoEscape::None);
    templates.set_formatter(write_escaped);
    templates.add_template_owned(TEMPLATE, template)?;
    Ok(templates)
}

/// Writes a value so that it may stand within a JSON string; what is missing is written as
/// nothing.
fn write_escaped(
    out: &mut Output<'_>,
    state: &mut State<'_, '_>,
    value: &Value,
) -> Result<(), minijinja::Error> {
    match value.kind() {
        ValueKind::None => Ok(()),
        ValueKind::String => {
            let quoted = serde_json::Value::from(value.to_string()).to_string();
            let inner = quoted.get(1..quoted.len() - 1).unwrap_or_default();
            out.write_str(inner).map_err(minijinja::Error::from)
        }
        _ => minijinja::escape_formatter(out, state, value),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may unwrap")]
mod tests;
