//! JSON objects that come from outside: a body has one meaning or none.
//!
//! A member that is read stands once; one that is not read changes nothing, whatever it is. `serde`
//! alone would also take an array for an object, its values by position: here it is refused. Errors
//! say which member, and where.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};

/// An object, and nothing else that `T` could be read from.
pub(crate) struct Object<T>(pub T);

/// Reads a body that is one object; a byte order mark in front of it is skipped.
///
/// # Errors
/// No JSON object, or one whose members are not what `T` wants.
pub(crate) fn read_object<'a, T: Deserialize<'a>>(body: &'a str) -> serde_json::Result<T> {
    serde_json::from_str(without_mark(body)).map(|Object(read)| read)
}

/// A body without the byte order mark that some writers put in front of it.
pub(crate) fn without_mark(body: &str) -> &str {
    body.strip_prefix('\u{feff}').unwrap_or(body)
}

impl<'a, T: Deserialize<'a>> Deserialize<'a> for Object<T> {
    fn deserialize<D: Deserializer<'a>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ObjectVisitor(PhantomData)).map(Self)
    }
}

struct ObjectVisitor<T>(PhantomData<T>);

impl<'a, T: Deserialize<'a>> Visitor<'a> for ObjectVisitor<T> {
    type Value = T;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'a>>(self, members: A) -> Result<T, A::Error> {
        T::deserialize(MapAccessDeserializer::new(members))
    }
}
