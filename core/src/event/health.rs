//! AWS Health: scheduled changes of instances. One event comes as several messages, pages and
//! copies of other regions, which share their `communicationId`.

use std::collections::BTreeSet;

use jiff::fmt::rfc2822::DateTimeParser;
use serde::Deserialize;

use super::shapes::{Envelope, instance_id, millis_of, name_event};
use super::{Event, Happening, Maintenance};
use crate::observation::InstanceId;
use crate::time::UnixMillis;

/// Reads `Sat, 05 Jun 2016 15:10:09 GMT`: the weekday of AWS's own sample is wrong.
const TIMES: DateTimeParser = DateTimeParser::new().relaxed_weekday(true);

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct HealthDetail {
    service: String,
    event_type_category: String,
    #[serde(default)]
    event_type_code: String,
    communication_id: Option<String>,
    #[serde(default)]
    status_code: String,
    start_time: Option<String>,
    end_time: Option<String>,
    #[serde(default)]
    affected_entities: Vec<Entity>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entity {
    entity_value: String,
    #[serde(default)]
    status: String,
}

/// The event; `None` when a scheduled change of EC2 does not say when it begins.
pub(super) fn read_health(envelope: &Envelope, detail: HealthDetail) -> Option<Event> {
    let id = match &detail.communication_id {
        Some(communication) => name_event(&["health", &envelope.account, communication]),
        None => name_event(&["health", &envelope.id]),
    };
    let sent_at = envelope.time.map(millis_of);
    let is_change = detail.service == "EC2" && detail.event_type_category == "scheduledChange";
    let is_over = detail.status_code == "closed";
    if !is_change || is_over {
        return Some(Event { id, sent_at, happening: Happening::OtherHealth });
    }
    let starts_at = time_of(detail.start_time.as_deref()?)?;
    let ends_at = match &detail.end_time {
        Some(text) => Some(time_of(text)?),
        None => None,
    };
    let maintenance = Maintenance {
        starts_at,
        ends_at,
        is_retirement: is_retirement(&detail.event_type_code),
        instances: instances_of(envelope, &detail),
    };
    Some(Event { id, sent_at, happening: Happening::Maintenance(maintenance) })
}

fn time_of(text: &str) -> Option<UnixMillis> {
    TIMES.parse_timestamp(text).ok().map(millis_of)
}

/// Source: the codes of EC2 in AWS Health, such as `AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED` and
/// `AWS_EC2_PERSISTENT_INSTANCE_RETIREMENT_SCHEDULED`.
fn is_retirement(code: &str) -> bool {
    code.contains("RETIREMENT") || code.contains("INSTANCE_STOP")
}

/// The entities that are instances and not done with; the envelope's resources when it has none.
fn instances_of(envelope: &Envelope, detail: &HealthDetail) -> Vec<InstanceId> {
    let is_open = |entity: &&Entity| entity.status != "RESOLVED";
    let entities = detail.affected_entities.iter().filter(is_open);
    let mut values: Vec<&str> = entities.map(|entity| entity.entity_value.as_str()).collect();
    if detail.affected_entities.is_empty() {
        values = envelope.resources.iter().map(String::as_str).collect();
    }
    // An ARN ends in the id, behind a slash.
    let ids = values.into_iter().filter_map(|value| instance_id(value.rsplit('/').next()?));
    ids.collect::<BTreeSet<_>>().into_iter().collect()
}
