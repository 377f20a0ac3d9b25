//! `spec.reward.signal` and `spec.environment.signal`: whose word tells how much a service has to
//! do.

use super::kinds::{Pattern, text};
use super::section::Section;

/// Longest URL.
const URL_LIMIT: usize = 1024;

/// Longest key of Redis, and name of a group of consumers.
const KEY_LIMIT: usize = 512;

/// Longest query.
const QUERY_LIMIT: usize = 4096;

/// The keys of a signal.
const SOURCES: [&str; 4] = ["redisList", "redisStream", "sqs", "prometheus"];

/// Where it is read what waits for a service and what it works on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServiceSignal {
    /// `redisList`.
    RedisList(RedisList),
    /// `redisStream`.
    RedisStream(RedisStream),
    /// `sqs`: `queueUrl`, required. Visible messages wait, those in flight are worked on.
    Sqs(QueueUrl),
    /// `prometheus`.
    Prometheus(PrometheusQueries),
}

/// A list whose items wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedisList {
    /// `url`: none is the Redis of the run.
    pub url: Option<RedisUrl>,
    /// `key`: required.
    pub key: RedisKey,
    /// `inFlightKey`: a list with what workers have taken and not done; none is a list that does
    /// not tell.
    pub in_flight_key: Option<RedisKey>,
}

/// A stream that a group of consumers reads: its lag waits, what is pending is worked on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedisStream {
    /// `url`: none is the Redis of the run.
    pub url: Option<RedisUrl>,
    /// `key`: required.
    pub key: RedisKey,
    /// `group`: required.
    pub group: RedisKey,
}

/// Queries that each answer with one number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrometheusQueries {
    /// `url`: required, the address before `/api/v1`.
    pub url: HttpUrl,
    /// `waiting`: required.
    pub waiting: PromQuery,
    /// `inFlight`: none is a source that does not tell.
    pub in_flight: Option<PromQuery>,
}

impl ServiceSignal {
    /// One of the sources, exactly.
    pub(super) fn read(signal: &mut Section<'_, '_>) -> Option<Self> {
        let given: Vec<&str> = SOURCES.into_iter().filter(|key| signal.has(key)).collect();
        let list = signal.optional_section("redisList", |list| RedisList {
            url: list.optional("url", text()),
            key: list.required("key", text()),
            in_flight_key: list.optional("inFlightKey", text()),
        });
        let stream = signal.optional_section("redisStream", |stream| RedisStream {
            url: stream.optional("url", text()),
            key: stream.required("key", text()),
            group: stream.required("group", text()),
        });
        let sqs = signal.optional_section("sqs", |sqs| sqs.required("queueUrl", text()));
        let prometheus = signal.optional_section("prometheus", |prometheus| PrometheusQueries {
            url: prometheus.required("url", text()),
            waiting: prometheus.required("waiting", text()),
            in_flight: prometheus.optional("inFlight", text()),
        });
        match given[..] {
            [_] => {}
            [] => signal.miss(SOURCES[0], ", or redisStream, sqs or prometheus"),
            [_, second, ..] => {
                let first = given[0];
                signal.complain(second, format_args!("is one source too many beside {first}"));
            }
        }
        list.map(Self::RedisList)
            .or(stream.map(Self::RedisStream))
            .or(sqs.map(Self::Sqs))
            .or(prometheus.map(Self::Prometheus))
    }

    /// Whether it tells what is worked on, not only what waits.
    pub fn tells_in_flight(&self) -> bool {
        match self {
            Self::RedisList(list) => list.in_flight_key.is_some(),
            Self::RedisStream(_) | Self::Sqs(_) => true,
            Self::Prometheus(queries) => queries.in_flight.is_some(),
        }
    }
}

macro_rules! text_type {
    ($(#[$doc:meta])* $name:ident, $form:literal, $regex:literal, $limit:ident, $example:literal,
     $is_valid:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash)]
        pub struct $name(String);

        impl $name {
            /// As text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl Pattern for $name {
            const FORM: &'static str = $form;
            const EXAMPLE: &'static str = $example;
            const REGEX: &'static str = $regex;
            const LENGTH_LIMIT: usize = $limit;
        }

        impl std::str::FromStr for $name {
            type Err = ();

            fn from_str(text: &str) -> Result<Self, ()> {
                let is_valid: fn(&str) -> bool = $is_valid;
                let is_within = text.chars().count() <= $limit;
                (is_within && is_valid(text)).then(|| Self(text.to_owned())).ok_or(())
            }
        }
    };
}

text_type!(
    /// The address of a Redis. A policy is no place for a password: there is none in it.
    RedisUrl,
    "be a redis, rediss, redis+sentinel or redis+cluster URL without user and password, with ca as \
     its only parameter if it has one",
    "^(redis|rediss|valkey|valkeys)([+](sentinel|cluster))?://[!->A-~]+([?]ca=[!-%'-?A-~]+)?$",
    URL_LIMIT,
    "redis://10.0.0.7:6379",
    |text| {
        let Some((scheme, rest)) = text.split_once("://") else { return false };
        let (server, topology) = scheme.split_once('+').unwrap_or((scheme, ""));
        let is_known = ["redis", "rediss", "valkey", "valkeys"].contains(&server)
            && ["", "sentinel", "cluster"].contains(&topology)
            && !scheme.ends_with('+');
        let (place, parameters) = match rest.split_once('?') {
            Some((place, parameters)) => (place, Some(parameters)),
            None => (rest, None),
        };
        // The others are the login of Sentinels.
        let is_ca = |text: &str| {
            text.strip_prefix("ca=").is_some_and(|path| is_printed(path) && !path.contains('&'))
        };
        let has_login = rest.contains('@') || !parameters.is_none_or(is_ca);
        is_known && is_printed(place) && !has_login
    }
);
text_type!(
    /// A key of Redis, or the name of a group of consumers.
    RedisKey,
    "be 1 to 512 printable ASCII characters without a space",
    "^[!-~]{1,512}$",
    KEY_LIMIT,
    "scoring:todo",
    is_printed
);
text_type!(
    /// The URL of a queue of Amazon SQS.
    QueueUrl,
    "be the URL of a queue, https://sqs.REGION.amazonaws.com/ACCOUNT/NAME",
    "^https?://[!-~]+$",
    URL_LIMIT,
    "https://sqs.us-east-2.amazonaws.com/123456789012/scoring",
    |text| {
        let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
        rest.is_some_and(is_printed)
    }
);
text_type!(
    /// An address that is asked over HTTP.
    HttpUrl,
    "be an http URL without user, password, query and fragment",
    "^http://[!\"$->A-~]+$",
    URL_LIMIT,
    "http://prometheus.monitoring:9090",
    |text| {
        let rest = text.strip_prefix("http://");
        rest.is_some_and(|rest| is_printed(rest) && !rest.contains(['@', '?', '#']))
    }
);
text_type!(
    /// A query in PromQL.
    PromQuery,
    "be a query of 1 to 4096 characters",
    "^[^\\x00-\\x1F]+$",
    QUERY_LIMIT,
    "sum(sandbox_requests_waiting)",
    |text| !text.is_empty() && !text.chars().any(|c| c < ' ')
);

fn is_printed(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic())
}
