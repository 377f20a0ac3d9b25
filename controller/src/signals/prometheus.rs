//! Queries of Prometheus, or of what speaks its HTTP API. Each must answer with one number: no
//! series is no zero, and neither is an answer with warnings, which may lack a part.

use std::time::Duration;

use async_trait::async_trait;
use ebbtide_core::policy::{PromQuery, PrometheusQueries};
use serde::Deserialize;
use serde_json::Value;

use super::{Reading, SignalSource};

/// Longest time of one query, so that two fit into a read.
const QUERY_LIMIT: Duration = Duration::from_millis(1_900);

/// Largest answer that is read: one sample has a few hundred bytes.
const BODY_BYTES_MAX: usize = 64 << 10;

/// Largest count that is believed.
const COUNT_MAX: f64 = 1e12;

/// Longest part of an answer that is repeated, in characters.
const SHOWN_CHARS: usize = 200;

/// See the module.
pub(super) struct PrometheusSource {
    queries: PrometheusQueries,
    http: Result<reqwest::Client, String>,
}

/// The envelope of every answer.
#[derive(Deserialize)]
struct Answer {
    status: String,
    #[serde(default)]
    data: Option<Data>,
    #[serde(default)]
    error: String,
    #[serde(default)]
    warnings: Vec<String>,
}

#[derive(Deserialize)]
struct Data {
    #[serde(rename = "resultType")]
    kind: String,
    result: Value,
}

impl PrometheusSource {
    pub fn new(queries: PrometheusQueries) -> Self {
        let http = reqwest::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .timeout(QUERY_LIMIT)
            .build();
        Self { queries, http: http.map_err(|error| error.to_string()) }
    }

    async fn ask(&self, query: &PromQuery) -> Result<u64, String> {
        let http = self.http.as_ref().map_err(Clone::clone)?;
        let url = format!("{}/api/v1/query", self.queries.url.as_str().trim_end_matches('/'));
        let url = reqwest::Url::parse_with_params(&url, [("query", query.as_str())]);
        let url = url.map_err(|error| format!("{}: {error}", self.queries.url))?;
        let failed = |error: reqwest::Error| match error.is_timeout() {
            true => format!("Prometheus gave no answer within {QUERY_LIMIT:?}"),
            false => format!("Prometheus does not answer: {}", innermost(&error)),
        };
        let mut response = http.get(url).send().await.map_err(failed)?;
        let status = response.status();
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(failed)? {
            body.extend_from_slice(&chunk);
            if body.len() > BODY_BYTES_MAX {
                return Err(format!("Prometheus answered more than {BODY_BYTES_MAX} bytes"));
            }
        }
        number(&body).map_err(|why| format!("Prometheus ({status}): {why}"))
    }
}

#[async_trait]
impl SignalSource for PrometheusSource {
    async fn read(&self) -> Result<Reading, String> {
        let waiting = self.ask(&self.queries.waiting).await?;
        let in_flight = match &self.queries.in_flight {
            Some(query) => Some(self.ask(query).await?),
            None => None,
        };
        Ok(Reading { waiting, in_flight })
    }
}

/// What the connection really failed with.
fn innermost(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

/// The one number of an answer, rounded up.
pub(super) fn number(body: &[u8]) -> Result<u64, String> {
    let shown = || {
        let text = String::from_utf8_lossy(body);
        text.chars().take(SHOWN_CHARS).flat_map(char::escape_debug).collect::<String>()
    };
    let answer: Answer =
        serde_json::from_slice(body).map_err(|_| format!("no answer to a query: {}", shown()))?;
    if answer.status != "success" {
        return Err(format!("the query failed: {}", answer.error));
    }
    if let Some(warning) = answer.warnings.first() {
        return Err(format!("the answer may lack a part: {warning}"));
    }
    let data = answer.data.ok_or_else(|| format!("no data: {}", shown()))?;
    // A sample is a moment and a number, as a text.
    let number = match (data.kind.as_str(), &data.result) {
        ("scalar", sample) => sample.get(1),
        ("vector", Value::Array(series)) => match &series[..] {
            [one] => one.pointer("/value/1"),
            _ => return Err(format!("{} series, expected exactly one", series.len())),
        },
        (kind, _) => return Err(format!("expected a vector or a scalar, got a {kind}")),
    };
    let text = number.and_then(Value::as_str).unwrap_or("nothing");
    match text.parse::<f64>() {
        Ok(value) if (0.0..=COUNT_MAX).contains(&value) => Ok(whole(value)),
        _ => Err(format!("expected a number from 0, got {text}")),
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded before")]
fn whole(value: f64) -> u64 {
    value.ceil() as u64
}
