//! Differences between JSON values, and their application.
//!
//! A difference of objects has the keys that changed, each with its difference; null takes a key
//! away, so that values themselves hold no null. Of a list of named things (objects with `id` or
//! `name`) that has the same names in the same order, a difference has the changed items by their
//! place, under `@`; otherwise it names the new order under `@order`, and under `@` the items that
//! changed or came, by name. Any other list, and any scalar, is there as a whole.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

const ITEMS: &str = "@";
const ORDER: &str = "@order";

/// The difference that leads from `old` to `new`; `None` when they are equal.
///
/// Both stay text, and only what differs is taken apart: of a large fleet a record is megabytes,
/// and its tree many times that.
pub(super) fn between(old: &RawValue, new: &RawValue) -> Option<String> {
    if old.get() == new.get() {
        return None;
    }
    if let Some((old, new)) = members(old).zip(members(new)) {
        return Some(between_objects(&old, &new));
    }
    let lists = items(old).zip(items(new));
    let change = lists.and_then(|(old, new)| between_lists(&old, &new));
    Some(change.unwrap_or_else(|| new.get().to_owned()))
}

type Members<'a> = BTreeMap<String, &'a RawValue>;

/// The keys of an object with their values, those that are null left out.
fn members(value: &RawValue) -> Option<Members<'_>> {
    let mut members: Members<'_> = serde_json::from_str(value.get()).ok()?;
    members.retain(|_, value| value.get() != "null");
    Some(members)
}

fn items(value: &RawValue) -> Option<Vec<&RawValue>> {
    serde_json::from_str(value.get()).ok()
}

fn is_object(value: &RawValue) -> bool {
    value.get().starts_with('{')
}

fn between_objects(old: &Members<'_>, new: &Members<'_>) -> String {
    let mut change = Writing::default();
    for key in old.keys().filter(|key| !new.contains_key(*key)) {
        change.add(key, "null");
    }
    for (key, value) in new {
        match old.get(key) {
            // An object that comes where a list or a scalar was would be merged into it.
            Some(known) if is_object(known) == is_object(value) => {
                if let Some(difference) = between(known, value) {
                    change.add(key, &difference);
                }
            }
            _ => change.add(key, value.get()),
        }
    }
    change.end()
}

/// The difference of two lists of named things; `None` for any others.
fn between_lists(old: &[&RawValue], new: &[&RawValue]) -> Option<String> {
    let (old_names, new_names) = names_of(old).zip(names_of(new))?;
    let is_same_order = old_names == new_names;
    let places: BTreeMap<&str, &RawValue> =
        old_names.iter().map(AsRef::as_ref).zip(old.iter().copied()).collect();
    let mut changed = Writing::default();
    for (place, (name, item)) in new_names.iter().zip(new).enumerate() {
        let difference = match places.get(name.as_ref()) {
            Some(known) => between(known, item),
            None => Some(item.get().to_owned()),
        };
        if let Some(difference) = difference {
            let key = if is_same_order { Cow::Owned(place.to_string()) } else { name.clone() };
            changed.add(&key, &difference);
        }
    }
    let mut change = Writing::default();
    if !is_same_order {
        change.add(ORDER, &Value::from(new_names).to_string());
    }
    change.add(ITEMS, &changed.end());
    Some(change.end())
}

/// An object on its way to text.
#[derive(Default)]
struct Writing(String);

impl Writing {
    fn add(&mut self, key: &str, value: &str) {
        self.0.push(if self.0.is_empty() { '{' } else { ',' });
        self.0.push_str(&Value::from(key).to_string());
        self.0.push(':');
        self.0.push_str(value);
    }

    fn end(mut self) -> String {
        if self.0.is_empty() {
            self.0.push('{');
        }
        self.0.push('}');
        self.0
    }
}

/// What has a name.
#[derive(Deserialize)]
struct Named<'a> {
    #[serde(borrow)]
    id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    name: Option<Cow<'a, str>>,
}

/// The names of a list of named things, each once; `None` for any other list.
fn names_of<'a>(list: &[&'a RawValue]) -> Option<Vec<Cow<'a, str>>> {
    let name = |item: &&'a RawValue| {
        let named: Named<'a> = serde_json::from_str(item.get()).ok()?;
        named.id.or(named.name).filter(|name| !name.is_empty())
    };
    let names: Vec<Cow<'a, str>> = list.iter().map(name).collect::<Option<_>>()?;
    let distinct: BTreeSet<&str> = names.iter().map(AsRef::as_ref).collect();
    (distinct.len() == list.len()).then_some(names)
}

/// `base` with a difference applied.
pub(super) fn apply(base: Value, change: &Value) -> Value {
    let Value::Object(change) = change else { return change.clone() };
    if let Some(Value::Object(items)) = change.get(ITEMS) {
        let list = if let Value::Array(list) = base { list } else { Vec::new() };
        return Value::Array(apply_to_list(list, change.get(ORDER), items));
    }
    let mut object = if let Value::Object(object) = base { object } else { Map::new() };
    for (key, difference) in change {
        if difference.is_null() {
            object.remove(key);
        } else {
            let known = object.remove(key).unwrap_or(Value::Null);
            object.insert(key.clone(), apply(known, difference));
        }
    }
    Value::Object(object)
}

fn apply_to_list(
    mut list: Vec<Value>,
    order: Option<&Value>,
    items: &Map<String, Value>,
) -> Vec<Value> {
    let Some(Value::Array(order)) = order else {
        for (place, difference) in items {
            let item = place.parse().ok().and_then(|place: usize| list.get_mut(place));
            if let Some(item) = item {
                *item = apply(item.take(), difference);
            }
        }
        return list;
    };
    let mut known: BTreeMap<String, Value> =
        list.into_iter().map(|item| (name_of(&item).to_owned(), item)).collect();
    let names = order.iter().filter_map(Value::as_str);
    names
        .map(|name| {
            let item = known.remove(name).unwrap_or(Value::Null);
            match items.get(name) {
                Some(difference) => apply(item, difference),
                None => item,
            }
        })
        .collect()
}

fn name_of(item: &Value) -> &str {
    item.get("id").or_else(|| item.get("name")).and_then(Value::as_str).unwrap_or_default()
}
