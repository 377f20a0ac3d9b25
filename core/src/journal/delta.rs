//! Differences between JSON values, and their application.
//!
//! A difference of objects has the keys that changed, each with its difference; null takes a key
//! away, so that values themselves hold no null. Of a list of named things (objects with `id` or
//! `name`) that has the same names in the same order, a difference has the changed items by their
//! place, under `@`; otherwise it names the new order under `@order`, and under `@` the items that
//! changed or came, by name. Any other list, and any scalar, is there as a whole.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

const ITEMS: &str = "@";
const ORDER: &str = "@order";

/// The difference that leads from `old` to `new`; `None` when they are equal.
pub(super) fn between(old: &Value, new: &Value) -> Option<Value> {
    if old == new {
        return None;
    }
    match (old, new) {
        (Value::Object(old), Value::Object(new)) => Some(between_objects(old, new)),
        (Value::Array(old), Value::Array(new)) => {
            let lists = names_of(old).zip(names_of(new));
            Some(match lists {
                Some((old_names, new_names)) => between_lists((old, &old_names), (new, &new_names)),
                None => Value::Array(new.clone()),
            })
        }
        _ => Some(new.clone()),
    }
}

fn between_objects(old: &Map<String, Value>, new: &Map<String, Value>) -> Value {
    let mut change = Map::new();
    for key in old.keys().filter(|key| !new.contains_key(*key)) {
        change.insert(key.clone(), Value::Null);
    }
    for (key, value) in new {
        let difference = match old.get(key) {
            // An object that comes where a list or a scalar was would be merged into it.
            Some(known) if known.is_object() == value.is_object() => between(known, value),
            _ => Some(value.clone()),
        };
        if let Some(difference) = difference {
            change.insert(key.clone(), difference);
        }
    }
    Value::Object(change)
}

fn between_lists(
    (old, old_names): (&[Value], &[&str]),
    (new, new_names): (&[Value], &[&str]),
) -> Value {
    let is_same_order = old_names == new_names;
    let places: BTreeMap<&str, &Value> = old_names.iter().copied().zip(old).collect();
    let mut items = Map::new();
    for (place, (name, item)) in new_names.iter().zip(new).enumerate() {
        let difference = match places.get(name) {
            Some(known) => between(known, item),
            None => Some(item.clone()),
        };
        if let Some(difference) = difference {
            let key = if is_same_order { place.to_string() } else { (*name).to_owned() };
            items.insert(key, difference);
        }
    }
    let mut change = Map::new();
    if !is_same_order {
        let order = new_names.iter().map(|name| Value::from(*name)).collect();
        change.insert(ORDER.to_owned(), Value::Array(order));
    }
    change.insert(ITEMS.to_owned(), Value::Object(items));
    Value::Object(change)
}

/// The names of a list of named things, each once; `None` for any other list.
fn names_of(list: &[Value]) -> Option<Vec<&str>> {
    let names: Vec<&str> = list.iter().map(name_of).collect();
    let distinct: BTreeSet<&str> = names.iter().copied().filter(|name| !name.is_empty()).collect();
    (distinct.len() == list.len()).then_some(names)
}

fn name_of(item: &Value) -> &str {
    item.get("id").or_else(|| item.get("name")).and_then(Value::as_str).unwrap_or_default()
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

/// The value without keys that are null.
pub(super) fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(object) => {
            let kept = object.into_iter().filter(|(_, value)| !value.is_null());
            Value::Object(kept.map(|(key, value)| (key, without_nulls(value))).collect())
        }
        Value::Array(list) => list.into_iter().map(without_nulls).collect(),
        other => other,
    }
}
