//! What may stand in a file at all.

use super::*;

#[test]
fn one_mistake_of_the_text_is_one_error_with_its_place() {
    let deep = format!("a: {}", "[".repeat(200));
    let long = format!("# {}", "x".repeat(300 * 1024));
    let second = format!("{SHORTEST}---\nkind: Other\n");
    let table = [
        ("", "the text holds no policy (p.yaml:1:1)"),
        ("# only words\n", "the text holds no policy (p.yaml:1:1)"),
        (
            "just words\n",
            "a policy must be a mapping of keys to values, got just words (p.yaml:1:1)",
        ),
        ("- a\n", "a policy must be a mapping of keys to values, got a list (p.yaml:1:1)"),
        (&second, "a file holds one policy, got a second document (p.yaml:17:1)"),
        (
            "kind: x\n\tname: y\n",
            "the text is not valid YAML: indent with spaces, got a tab (p.yaml:2:1)",
        ),
        (&deep, "a policy nests at most 32 levels deep (p.yaml:1:35)"),
        (&long, "a policy has at most 262144 bytes, got 307202 (p.yaml:1:1)"),
    ];
    assert_each_has_one(table.map(|(text, expected)| (text.to_owned(), expected)));
}

#[test]
fn broken_yaml_says_so_and_where() {
    for text in ["a: [1, 2\nb: 3\n", "a: 'x\n", "a: b: c\n", "a: {x: 1\n", "? [\n"] {
        let found = complaints(text);
        assert_eq!(found.len(), 1, "{text:?}: {found:?}");
        assert!(found[0].starts_with("the text is not valid YAML: "), "{found:?}");
    }
}

#[test]
fn aliases_tags_and_strange_keys_are_refused_where_they_stand() {
    let table = [
        (
            "  queue: { lease: &l 20s, pauseLimit: *l }\n",
            "aliases are not supported; write the value out (p.yaml:17:39)",
        ),
        (
            "  queue: { lease: !!str 20s }\n",
            "tags are not supported; write the value alone (p.yaml:17:19)",
        ),
        ("  queue: { [a]: 20s }\n", "a key must be plain text (p.yaml:17:12)"),
    ];
    assert_each_has_one(table.map(|(more, expected)| (shortest_with(more, &[]), expected)));
}

#[test]
fn aliases_do_not_grow() {
    let mut text = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x]\n");
    for level in 1..30 {
        let before = format!("*a{}", level - 1);
        let items = [before.as_str(); 9].join(", ");
        text.push_str(&format!("a{level}: &a{level} [{items}]\n"));
    }
    assert!(complaints(&text).len() > 29 * 9);
}

#[test]
fn every_doubled_key_is_reported_and_the_first_one_counts() {
    let text =
        shortest_with("  mode: act\n  mode: observe\n  queue: {lease: 9s, lease: 8s}\n", &[]);
    let expected = [
        "spec.mode is given twice, first in line 17 (p.yaml:18:3)",
        "spec.queue.lease is given twice, first in line 19 (p.yaml:19:22)",
    ];
    assert_eq!(complaints(&text), expected);
}

#[test]
fn a_custom_resource_as_kubernetes_returns_it_is_the_same_document() {
    let text = r#"{"apiVersion":"ebbtide.dev/v1alpha1","kind":"FleetPolicy",
        "metadata":{"name":"demo","namespace":"rl","generation":2,"uid":"4f","labels":{"a":"b"},
            "annotations":{"x":"y"},"creationTimestamp":"2026-01-01T00:00:00Z",
            "managedFields":[{"manager":"kubectl"}],"resourceVersion":"17"},
        "spec":{"trainer":{"groupsPerStep":32,"groupSize":8},
            "rollout":{"maxReplicas":6,"pools":["here"]},
            "pools":[{"name":"here","provider":"local","market":"spot","maxNodes":6}]},
        "status":{"conditions":[]}}"#;
    assert_eq!(parse(text), parse(SHORTEST));
    assert!(parse(text).is_ok());
}

#[test]
fn a_byte_order_mark_and_windows_line_ends_change_nothing() {
    let text = format!("\u{feff}{}", SHORTEST.replace('\n', "\r\n"));
    assert_eq!(parse(&text), parse(SHORTEST));
}
