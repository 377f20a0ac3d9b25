//! Events are named after themselves: copies alike, different ones differently.

use ebbtide_core::event::{Event, parse_event};
use proptest::prelude::*;

use crate::cases;
use crate::documented::{direct, health, through_sns};
use crate::json::Json;

fn read(body: &str) -> Event {
    parse_event(body).unwrap_or_else(|error| panic!("{error}"))
}

/// A text as it stands between the quotes of JSON.
fn quoted(text: &str) -> String {
    Json::Text(text.to_owned()).plain().trim_matches('"').to_owned()
}

fn by_token(token: &str) -> String {
    direct().replace("0befcbdb-6ecd-498a-9ff7-ae9b54447cd6", &quoted(token))
}

fn by_hook(hook: &str) -> String {
    let token = r#""LifecycleActionToken":"0befcbdb-6ecd-498a-9ff7-ae9b54447cd6","#;
    let named = direct().replace("drain", &quoted(hook));
    assert!(named.contains(token), "{named}");
    named.replace(token, "")
}

proptest! {
    #![proptest_config(cases(100))]

    #[test]
    fn different_events_have_different_names(
        (one, other) in ("[a-zA-Z0-9/_. -]{1,120}", "[a-zA-Z0-9/_. -]{1,120}"),
        place in any::<prop::sample::Index>(),
    ) {
        // Alike but for one character, or not alike at all.
        let mut alike: Vec<char> = one.chars().collect();
        alike.insert(place.index(alike.len()), '/');
        let alike: String = alike.into_iter().collect();
        for other in [other, alike].into_iter().filter(|other| *other != one) {
            for body in [by_token, by_hook, |it: &str| health(it, "")] {
                prop_assert_ne!(read(&body(&one)).id, read(&body(&other)).id, "{} {}", one, other);
            }
        }
    }

    #[test]
    fn copies_have_one_name(token in "\\PC{1,60}") {
        let direct = by_token(&token);
        prop_assert_eq!(read(&direct).id, read(&through_sns(&direct)).id);
    }
}

#[test]
fn event_that_nothing_names_is_refused() {
    let id = r#""id":"1e5527d7-bb36-4607-3370-4164db56a40e","#;
    let nameless = health("c-1", "").replace(id, "").replace(r#""communicationId":"c-1","#, "");
    let refusal = parse_event(&nameless).expect_err("no name").to_string();
    assert!(refusal.contains("neither communicationId nor id"), "{refusal}");
}
