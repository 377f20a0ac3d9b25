//! AWS Health: scheduled changes of instances. One event comes as several messages, pages and
//! copies of other regions, which share their `communicationId`.

use std::collections::BTreeSet;

use jiff::fmt::rfc2822::DateTimeParser;
use serde::Deserialize;

use super::shapes::{Envelope, millis_of, name_event};
use super::{Event, Happening, Maintenance};
use crate::object::Object;
use crate::observation::InstanceId;
use crate::time::UnixMillis;

/// Reads `Sat, 05 Jun 2016 15:10:09 GMT`: the weekday of AWS's own sample is wrong.
const TIMES: DateTimeParser = DateTimeParser::new().relaxed_weekday(true);

/// The category of what is planned for instances.
const SCHEDULED_CHANGE: &str = "scheduledChange";

/// Every category that AWS documents.
const CATEGORIES: [&str; 4] = [SCHEDULED_CHANGE, "issue", "accountNotification", "investigation"];

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct HealthDetail {
    service: String,
    event_type_category: String,
    event_type_code: String,
    communication_id: Option<String>,
    #[serde(default)]
    status_code: String,
    start_time: Option<String>,
    end_time: Option<String>,
    #[serde(default)]
    affected_entities: Vec<Object<Entity>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entity {
    entity_value: String,
    #[serde(default)]
    status: String,
}

/// # Errors
/// What is wrong: the event has no name or no category, or a scheduled change of EC2 has no
/// beginning.
pub(super) fn read_health(envelope: &Envelope, detail: HealthDetail) -> Result<Event, String> {
    let id = match &detail.communication_id {
        Some(communication) => name_event(&["health", &envelope.account, communication]),
        None if envelope.id.is_empty() => {
            return Err("it has neither communicationId nor id".to_owned());
        }
        None => name_event(&["health", &envelope.id]),
    };
    if !CATEGORIES.contains(&detail.event_type_category.as_str()) {
        return Err(format!("eventTypeCategory is {:?}", detail.event_type_category));
    }
    let sent_at = envelope.time.map(millis_of);
    let is_change = detail.service == "EC2" && detail.event_type_category == SCHEDULED_CHANGE;
    let is_over = detail.status_code == "closed";
    if !is_change || is_over {
        return Ok(Event { id, sent_at, happening: Happening::OtherHealth });
    }
    let starts_at = time_of("startTime", detail.start_time.as_deref().unwrap_or_default())?;
    let ends_at = detail.end_time.as_deref().map(|text| time_of("endTime", text)).transpose()?;
    let maintenance = Maintenance {
        starts_at,
        ends_at,
        is_retirement: is_retirement(&detail.event_type_code),
        instances: instances_of(envelope, &detail),
    };
    Ok(Event { id, sent_at, happening: Happening::Maintenance(maintenance) })
}

fn time_of(member: &str, text: &str) -> Result<UnixMillis, String> {
    TIMES.parse_timestamp(text).map(millis_of).map_err(|_| format!("{member} is {text:?}"))
}

/// Source: the codes of EC2 in AWS Health, such as `AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED` and
/// `AWS_EC2_PERSISTENT_INSTANCE_RETIREMENT_SCHEDULED`.
fn is_retirement(code: &str) -> bool {
    code.contains("RETIREMENT") || code.contains("INSTANCE_STOP")
}

/// The entities that are instances and not done with; the envelope's resources when it has none.
fn instances_of(envelope: &Envelope, detail: &HealthDetail) -> Vec<InstanceId> {
    let entities = detail.affected_entities.iter().map(|Object(entity)| entity);
    let entities = entities.filter(|entity| entity.status != "RESOLVED");
    let mut values: Vec<&str> = entities.map(|entity| entity.entity_value.as_str()).collect();
    if detail.affected_entities.is_empty() {
        values = envelope.resources.iter().map(String::as_str).collect();
    }
    // An ARN ends in the id, behind a slash.
    let ids = values.into_iter().filter_map(|value| InstanceId::of_ec2(value.rsplit('/').next()?));
    ids.collect::<BTreeSet<_>>().into_iter().collect()
}
