//! What the readers of a policy ask for, noted as a schema of Kubernetes while they walk over no
//! text at all: so the schema has exactly the keys that are read.
//!
//! Defaults that follow another key are none of the schema: written into a resource they would
//! contradict that key when it is changed.

use serde_json::{Map, Value, json};

/// The schema in the making; paths are those of the report, `spec.pools[]` being each pool.
#[derive(Default)]
pub(super) struct Outline {
    root: Map<String, Value>,
}

impl Outline {
    /// A value may stand there.
    pub fn key(&mut self, path: &str, schema: Value) {
        let Value::Object(schema) = schema else { return };
        self.at(path).extend(schema);
    }

    /// Without a value there, this one counts.
    pub fn set_default(&mut self, path: &str, value: Value) {
        self.at(path).insert("default".to_owned(), value);
    }

    /// A mapping stands there; unless it is required or optional, one with nothing but defaults
    /// stands for none.
    pub fn section(&mut self, path: &str) {
        let is_required = self.is_required(path);
        let section = self.at(path);
        section.insert("type".to_owned(), json!("object"));
        let is_optional = section.remove(OPTIONAL).is_some();
        if !is_required && !is_optional {
            section.insert("default".to_owned(), json!({}));
        }
    }

    /// The mapping there may be missing, with all that it holds.
    pub fn optional(&mut self, path: &str) {
        self.at(path).insert(OPTIONAL.to_owned(), json!(true));
    }

    /// A list of 1 to `limit` mappings stands there; gives the path of each of them.
    pub fn sections(&mut self, path: &str, limit: usize) -> String {
        let list = self.at(path);
        list.insert("type".to_owned(), json!("array"));
        list.insert("minItems".to_owned(), json!(1));
        list.insert("maxItems".to_owned(), json!(limit));
        let item = format!("{path}[]");
        self.at(&item).insert("type".to_owned(), json!("object"));
        item
    }

    /// The key there may not be missing.
    pub fn require(&mut self, path: &str) {
        let (section, key) = path.rsplit_once('.').unwrap_or(("", path));
        let required = self.at(section).entry("required").or_insert(json!([]));
        if let Value::Array(keys) = required {
            keys.push(json!(key));
        }
    }

    /// The schema of what stands at `path`; the empty path is the whole document.
    pub fn at(&mut self, path: &str) -> &mut Map<String, Value> {
        let mut place = &mut self.root;
        for part in path.split('.').filter(|part| !part.is_empty()) {
            let (key, is_item) = match part.strip_suffix("[]") {
                Some(key) => (key, true),
                None => (part, false),
            };
            place = child(child(place, "properties"), key);
            if is_item {
                place = child(place, "items");
            }
        }
        place
    }

    /// The whole schema.
    pub fn into_schema(mut self) -> Map<String, Value> {
        fill_in_defaults(&mut self.root);
        self.root
    }

    fn is_required(&mut self, path: &str) -> bool {
        let (section, key) = path.rsplit_once('.').unwrap_or(("", path));
        let required = self.at(section).get("required").and_then(Value::as_array);
        required.is_some_and(|keys| keys.iter().any(|known| known == key))
    }
}

/// The default of a mapping has those of its keys: a cluster holds it against the rules as it is.
fn fill_in_defaults(schema: &mut Map<String, Value>) {
    let mut defaults = Map::new();
    if let Some(Value::Object(keys)) = schema.get_mut("properties") {
        for (key, child) in keys {
            let Value::Object(child) = child else { continue };
            fill_in_defaults(child);
            if let Some(default) = child.get("default") {
                defaults.insert(key.clone(), default.clone());
            }
        }
    }
    if let Some(Value::Object(default)) = schema.get_mut("default") {
        *default = defaults;
    }
}

/// A note of the outline itself, taken off again.
const OPTIONAL: &str = "optional";

fn child<'a>(parent: &'a mut Map<String, Value>, key: &str) -> &'a mut Map<String, Value> {
    let place = parent.entry(key).or_insert_with(|| json!({}));
    if !place.is_object() {
        *place = json!({});
    }
    place.as_object_mut().expect("it was just made one")
}
