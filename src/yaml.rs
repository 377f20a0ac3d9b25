//! JSON values as YAML for people: block style, keys in order, text in quotes where it could be
//! taken for something else.

use serde_json::Value;

/// The value as a YAML document.
pub fn write(value: &Value) -> String {
    let mut text = String::new();
    write_block(value, 0, &mut text);
    text
}

/// Writes a value on lines of its own.
fn write_block(value: &Value, depth: usize, text: &mut String) {
    let margin = "  ".repeat(depth);
    match value {
        Value::Object(map) if !map.is_empty() => {
            let mut entries: Vec<(&String, &Value)> = map.iter().collect();
            entries.sort_by_key(|(key, _)| *key);
            for (key, value) in entries {
                text.push_str(&format!("{margin}{}:", scalar(key)));
                write_after_key(value, depth + 1, text);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for item in items {
                let mut inner = String::new();
                write_block(item, depth + 1, &mut inner);
                text.push_str(&format!("{margin}- {}", inner.trim_start()));
            }
        }
        other => text.push_str(&format!("{margin}{}\n", flow(other))),
    }
}

fn write_after_key(value: &Value, depth: usize, text: &mut String) {
    let is_block = match value {
        Value::Object(map) => !map.is_empty(),
        Value::Array(items) => !items.is_empty(),
        _ => false,
    };
    if is_block {
        text.push('\n');
        write_block(value, depth, text);
    } else {
        text.push_str(&format!(" {}\n", flow(value)));
    }
}

/// What fits on a line.
fn flow(value: &Value) -> String {
    match value {
        Value::String(text) => scalar(text),
        other => other.to_string(),
    }
}

/// A text, in quotes unless every reader takes it for a text: JSON's quotes are YAML's.
pub fn scalar(text: &str) -> String {
    let is_inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/');
    let is_word = text.starts_with(|c: char| c.is_ascii_alphabetic()) && text.chars().all(is_inner);
    let words = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
    let is_plain = is_word && !words.contains(&text.to_ascii_lowercase().as_str());
    if is_plain { text.to_owned() } else { Value::from(text).to_string() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_written_as_people_write_them() {
        let value = json!({
            "b": [{ "name": "x", "on": [] }, "no", [1, 2.5]],
            "a": { "text": "self.a == 'b'", "empty": {}, "is": true },
        });
        let expected = "\
a:
  empty: {}
  is: true
  text: \"self.a == 'b'\"
b:
  - name: x
    \"on\": []
  - \"no\"
  - - 1
    - 2.5
";
        assert_eq!(write(&value), expected);
    }
}
