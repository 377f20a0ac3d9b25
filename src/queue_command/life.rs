//! The life of a unit in the order in which it happened.
//!
//! Segments carry the clock of the node that made them, everything else that of the queue. So the
//! order is not that of the clocks: a higher fencing token comes later, and under one token what
//! has more tokens.

use ebbtide_core::fabric::FabricVerdict;
use ebbtide_core::ids::FencingToken;
use ebbtide_core::ids::{Holder, PolicyVersion};
use ebbtide_core::sample::{Chunk, Origin};
use ebbtide_core::time::UnixMillis;
use ebbtide_queue::command::DrainBehind;
use ebbtide_queue::state::{UnitEvent, UnitTrace};
use serde_json::{Value, json};

use crate::words::{counted, span, thousands};

/// A run of tokens made by one holder under one weight version, engine and fabric verdict.
#[derive(Debug, Clone, PartialEq)]
pub struct Segment {
    /// First token.
    start: u32,
    /// One past the last token.
    end: u32,
    version: PolicyVersion,
    /// Where it was made, from the first chunk's start to the last chunk's end.
    origin: Origin,
}

/// One step in a life.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    Made(Segment),
    Befell(UnitEvent),
}

/// Every step that is known, in its order.
pub fn steps(trace: &UnitTrace) -> Vec<Step> {
    let made = segments(&trace.chunks).into_iter().map(Step::Made);
    let mut steps: Vec<Step> =
        made.chain(trace.history.iter().cloned().map(Step::Befell)).collect();
    steps.sort_by_key(Step::order);
    steps
}

fn segments(chunks: &[Chunk]) -> Vec<Segment> {
    let mut segments = Vec::<Segment>::new();
    for chunk in chunks {
        match segments.last_mut().filter(|segment| segment.goes_on_with(chunk)) {
            Some(segment) => {
                segment.end = chunk.end();
                segment.origin.ended_at = chunk.origin.ended_at;
            }
            None => segments.push(Segment {
                start: chunk.offset,
                end: chunk.end(),
                version: chunk.weight_version,
                origin: chunk.origin.clone(),
            }),
        }
    }
    segments
}

impl Segment {
    fn goes_on_with(&self, chunk: &Chunk) -> bool {
        let (own, others) = (&self.origin, &chunk.origin);
        self.version == chunk.weight_version
            && own.holder == others.holder
            && own.fencing_token == others.fencing_token
            && own.engine == others.engine
            && own.fabric == others.fabric
    }

    fn words(&self) -> String {
        let Origin { holder, fencing_token, engine, fabric, started_at, ended_at } = &self.origin;
        let fabric = match fabric {
            FabricVerdict::NotApplicable => String::new(),
            verdict => format!(", fabric {}", verdict.as_str()),
        };
        format!(
            "tokens {}-{} by {}, version {}, in {} (lease {fencing_token}, {engine}{fabric})",
            self.start,
            self.end.saturating_sub(1),
            holder.node,
            self.version,
            span(ended_at.since(*started_at)),
        )
    }
}

impl Step {
    fn order(&self) -> (FencingToken, u32, bool) {
        match self {
            Self::Made(segment) => (segment.origin.fencing_token, segment.end, false),
            Self::Befell(event) => (event.fencing_token, event.tokens, true),
        }
    }

    /// When it began.
    pub fn at(&self) -> UnixMillis {
        match self {
            Self::Made(segment) => segment.origin.started_at,
            Self::Befell(event) => event.at,
        }
    }

    /// For people.
    pub fn words(&self) -> String {
        match self {
            Self::Made(segment) => segment.words(),
            Self::Befell(event) => event_words(event),
        }
    }

    /// For machines.
    pub fn to_json(&self) -> Value {
        match self {
            Self::Befell(event) => event_json(event),
            Self::Made(Segment { start, end, version, origin }) => json!({
                "what": "segment",
                "atMs": origin.started_at,
                "endedAtMs": origin.ended_at,
                "startToken": start,
                "endToken": end,
                "policyVersion": version,
                "holder": origin.holder.to_string(),
                "fencingToken": origin.fencing_token,
                "engine": origin.engine,
                "fabric": origin.fabric.as_str(),
            }),
        }
    }
}

fn event_words(event: &UnitEvent) -> String {
    let node = |holder: &Option<Holder>| {
        holder.as_ref().map_or("nobody".to_owned(), |holder| holder.node.to_string())
    };
    let by = node(&event.holder);
    let tokens = counted(event.tokens.into(), "token");
    let detail =
        if event.detail.is_empty() { String::new() } else { format!(": {}", event.detail) };
    match event.what.as_str() {
        "handed_back" => {
            format!("handed back by {by} ({}), {tokens} kept", why_words(event))
        }
        "fault" => format!("fault while {by} had it{detail}; {tokens} kept"),
        "lease_expired" => format!("the lease of {by} ran out; {tokens} kept"),
        "restarted" => format!("begun anew under newer weights; {tokens} dropped"),
        "generated" => format!("response complete on {by}, {tokens}; to be scored"),
        "dead" => format!("dead{detail}"),
        "expired" => "expired: the time of its group was over".to_owned(),
        "stale" => "expired: its tokens had become too old".to_owned(),
        "damaged" => format!("mended after damage to its record or tokens; {tokens} kept"),
        other => format!("{other}{detail}"),
    }
}

/// Why a unit was handed back, such as `notice: spot terminate, 115 s left`.
fn why_words(event: &UnitEvent) -> String {
    let words = |word: &str| word.replace('_', " ");
    match DrainBehind::of_detail(&event.detail) {
        (cause, None) => words(cause),
        (cause, Some(DrainBehind { reason, deadline })) => {
            let left = span(deadline.remaining(event.at));
            format!("{}: {}, {left} left", words(cause), words(reason))
        }
    }
}

/// An event with its moment.
pub fn event_line(event: &UnitEvent) -> String {
    format!("{}  {}", clock(event.at), event_words(event))
}

/// An event for machines.
pub fn event_json(event: &UnitEvent) -> Value {
    let (detail, drain) = match event.what.as_str() {
        "handed_back" => DrainBehind::of_detail(&event.detail),
        _ => (event.detail.as_str(), None),
    };
    json!({
        "what": event.what,
        "atMs": event.at,
        "detail": detail,
        "drainReason": drain.map(|drain| drain.reason),
        "drainDeadlineMs": drain.map(|drain| drain.deadline),
        "holder": event.holder.as_ref().map(ToString::to_string),
        "fencingToken": event.fencing_token,
        "tokens": event.tokens,
    })
}

/// A moment as `2026-11-29 18:46:25.123`, in UTC.
pub fn clock(at: UnixMillis) -> String {
    let moment = i64::try_from(at.0).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    moment.map_or_else(
        || format!("{} ms", thousands(at.0)),
        |moment| moment.strftime("%Y-%m-%d %H:%M:%S%.3f").to_string(),
    )
}
