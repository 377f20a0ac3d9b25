//! Records as flat maps of text, so that an operator can read them with `redis-cli HGETALL`.
//!
//! Any serde struct of texts, numbers, words (enums without data) and options travels this way:
//! an absent option has no field, everything else is its plain text.

use std::collections::BTreeMap;

use serde::de::value::MapDeserializer;
use serde::de::{DeserializeOwned, Error as _, IntoDeserializer, Visitor};
use serde::{Serialize, forward_to_deserialize_any};
use thiserror::Error;

/// A record as its fields travel.
pub type Fields = BTreeMap<String, String>;

/// A record that is not what it should be.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("control record {fields:?}: {problem}")]
pub struct FieldError {
    problem: String,
    fields: Fields,
}

/// The fields of a record.
pub fn to_fields<T: Serialize>(record: &T) -> Fields {
    let value = serde_json::to_value(record).expect("records are flat structs with text keys");
    let members = value.as_object().cloned().unwrap_or_default();
    let text = |value: serde_json::Value| match value {
        serde_json::Value::String(text) => text,
        other => other.to_string(),
    };
    members.into_iter().map(|(name, value)| (name, text(value))).collect()
}

/// Reads a record back from its fields.
///
/// # Errors
/// A field that is missing or does not parse.
pub fn from_fields<T: DeserializeOwned>(fields: &Fields) -> Result<T, FieldError> {
    let entries = fields.iter().map(|(name, text)| (name.as_str(), FieldText(text)));
    T::deserialize(MapDeserializer::new(entries)).map_err(|error: serde::de::value::Error| {
        FieldError { problem: error.to_string(), fields: fields.clone() }
    })
}

/// One field: text that becomes whatever type the record asks for.
#[derive(Clone, Copy)]
struct FieldText<'a>(&'a str);

impl<'de> IntoDeserializer<'de> for FieldText<'de> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

macro_rules! parsed {
    ($($method:ident => $visit:ident: $type:ty),* $(,)?) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
            let expected = concat!("a field of type ", stringify!($type));
            let value: $type = self.0.parse().map_err(|_| {
                Self::Error::custom(format!("expected {expected}, got {:?}", self.0))
            })?;
            visitor.$visit(value)
        }
    )*};
}

impl<'de> serde::Deserializer<'de> for FieldText<'de> {
    type Error = serde::de::value::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        visitor.visit_borrowed_str(self.0)
    }

    parsed! {
        deserialize_bool => visit_bool: bool,
        deserialize_u16 => visit_u16: u16,
        deserialize_u32 => visit_u32: u32,
        deserialize_u64 => visit_u64: u64,
        deserialize_i64 => visit_i64: i64,
        deserialize_f64 => visit_f64: f64,
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        if self.0.is_empty() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        visitor.visit_enum(self.0.into_deserializer())
    }

    forward_to_deserialize_any! {
        i8 i16 i32 i128 u8 u128 f32 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map struct identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use super::super::records::{NodeRecord, NodeRole, NodeState, TrainerRecord};
    use super::*;
    use ebbtide_core::fabric::FabricVerdict;
    use ebbtide_core::ids::PolicyVersion;
    use ebbtide_core::observation::TrainerPhase;
    use ebbtide_core::time::UnixMillis;

    #[test]
    fn node_record_survives_its_own_fields() {
        let node: ebbtide_core::ids::NodeName = "n1.internal".parse().expect("valid");
        let record = NodeRecord {
            holder: "n1.internal/1/agent-2".parse().expect("valid"),
            replica: (&node).into(),
            node,
            instance_id: Some("i-0abc".to_owned()),
            instance_type: None,
            role: NodeRole::Rollout,
            pods_left: None,
            idle_since: None,
            slow_since: Some(UnixMillis(8)),
            drained_for: None,
            zone: None,
            market: Some(ebbtide_core::policy::Market::OnDemand),
            state: NodeState::NotReady,
            fabric: FabricVerdict::Passed,
            in_flight: 3,
            tokens_per_second: 12.5,
            generating: Some(2),
            capacity: Some(64),
            environment_waiting: Some(1),
            running: Some(5),
            waiting: None,
            kv_cache_use: Some(0.25),
            weights_version: Some(PolicyVersion(7)),
            notice_kind: None,
            notice_deadline: None,
            heartbeat: UnixMillis(9),
        };
        let fields = to_fields(&record);
        assert_eq!(fields["state"], "not_ready");
        assert_eq!(fields["market"], "on_demand");
        assert!(!fields.contains_key("zone"));
        assert_eq!(from_fields::<NodeRecord>(&fields), Ok(record));
    }

    #[test]
    fn wrong_field_is_named() {
        let record = TrainerRecord {
            phase: TrainerPhase::Wait,
            step: 1,
            groups_per_step: 2,
            nodes: None,
            incarnation: None,
            heartbeat: UnixMillis(3),
        };
        let mut fields = to_fields(&record);
        fields.insert("step".to_owned(), "many".to_owned());
        let error = from_fields::<TrainerRecord>(&fields).expect_err("step is no number");
        assert!(error.to_string().contains("many"), "{error}");
    }
}
