//! Holds answers to a description in the words of JSON Schema, as far as `openapi.json` uses them.

use serde_json::Value;

/// Everything that is wrong with `value`, each with its place.
pub fn problems(document: &Value, schema: &Value, value: &Value, place: &str) -> Vec<String> {
    if let Some(reference) = schema["$ref"].as_str() {
        let name = reference.rsplit('/').next().unwrap();
        return problems(document, &document["components"]["schemas"][name], value, place);
    }
    if let Some(choices) = schema["oneOf"].as_array() {
        let fitting = choices.iter().filter(|s| problems(document, s, value, place).is_empty());
        return if fitting.count() == 1 { vec![] } else { vec![format!("{place}: none of oneOf")] };
    }
    let mut found = Vec::new();
    if !is_of_type(&schema["type"], value) {
        found.push(format!("{place}: must be {}, got {value}", schema["type"]));
        return found;
    }
    if let Some(words) = schema["enum"].as_array().filter(|words| !words.contains(value)) {
        found.push(format!("{place}: must be one of {words:?}, got {value}"));
    }
    let (least, most) = (schema["minimum"].as_f64(), schema["maximum"].as_f64());
    let is_outside = |number: f64| {
        least.is_some_and(|least| number < least) || most.is_some_and(|most| number > most)
    };
    if value.as_f64().is_some_and(is_outside) {
        found.push(format!("{place}: {value} is out of its range"));
    }
    for (index, item) in value.as_array().into_iter().flatten().enumerate() {
        found.extend(problems(document, &schema["items"], item, &format!("{place}[{index}]")));
    }
    if let (Some(object), Some(properties)) = (value.as_object(), schema["properties"].as_object())
    {
        for required in schema["required"].as_array().unwrap() {
            if !object.contains_key(required.as_str().unwrap()) {
                found.push(format!("{place}: {required} is missing"));
            }
        }
        for (key, item) in object {
            match properties.get(key) {
                Some(schema) => {
                    found.extend(problems(document, schema, item, &format!("{place}.{key}")));
                }
                None => found.push(format!("{place}: {key} is not described")),
            }
        }
    }
    found
}

fn is_of_type(wanted: &Value, value: &Value) -> bool {
    let is = |name: &Value| match name.as_str().unwrap() {
        "null" => value.is_null(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("type {other} is not known"),
    };
    match wanted {
        Value::Null => true,
        Value::Array(names) => names.iter().any(is),
        name => is(name),
    }
}

/// The description, and its own examples, are right.
#[test]
fn examples_of_the_description_are_as_described() {
    let text = include_str!("../../openapi.json");
    let document: Value = serde_json::from_str(text).unwrap();
    let mut examples = 0;
    let mut check = |content: &Value, place: &str| {
        let Some(content) = content.get("application/json") else { return };
        if let Some(example) = content.get("example") {
            examples += 1;
            let found = problems(&document, &content["schema"], example, place);
            assert!(found.is_empty(), "{found:#?}");
        }
    };
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let place = format!("{method} {path}");
            assert!(operation["operationId"].is_string(), "{place}");
            check(&operation["requestBody"]["content"], &place);
            for (status, response) in operation["responses"].as_object().unwrap() {
                assert!(response["description"].is_string(), "{place} {status}");
                check(&response["content"], &format!("{place} {status}"));
            }
        }
    }
    assert!(examples > 30, "{examples}");
    let wrong = serde_json::json!({"error": {"code": "nonsense", "message": 7}});
    let schema = &document["components"]["schemas"]["Error"];
    assert_eq!(problems(&document, schema, &wrong, "it").len(), 2);
}
