//! What every reader of JSON keeps to.

use proptest::prelude::*;

use crate::cases;
use crate::documented::{
    Body, MAINTENANCE, MESSAGE, READERS, Reader, SPOT, documented, messages, through_sns,
};
use crate::json::Json;
use crate::mutation::{Dice, damaged, written_otherwise};

/// Longest refusal, in bytes: one line of a log.
const REFUSAL_LIMIT: usize = 3000;

fn any_documented() -> impl Strategy<Value = Body> {
    prop::sample::select(documented())
}

fn any_message() -> impl Strategy<Value = String> {
    prop::sample::select(messages())
}

/// Reads a body; a refusal must say what was expected, what came, and what is wrong with it.
pub fn read_clearly(reader: Reader, body: &str) -> Option<String> {
    let refusal = match (reader.read)(body) {
        Ok(meaning) => return Some(meaning),
        Err(refusal) => refusal,
    };
    assert!(refusal.starts_with(&format!("{} must be ", reader.resource)), "{refusal}");
    let (_, problem) = refusal.rsplit_once("\": ").unwrap_or_else(|| panic!("{refusal}"));
    assert!(!problem.is_empty() && refusal.len() < REFUSAL_LIMIT, "{refusal}");
    None
}

#[test]
fn documented_bodies_are_read() {
    for body in documented() {
        body.meaning();
    }
}

#[test]
fn refusal_says_which_member_and_where() {
    for (body, problem) in [
        (r#"{"time":"2017-09-18T08:22:00Z"}"#, "missing field `action` at line 1 column 31"),
        (r#"{"action":"stop","action":"stop"}"#, "duplicate field `action` at line 1 column 25"),
        ("{\"action\":\n5}", "invalid type: integer `5`, expected a string at line 2 column 1"),
        ("[\"stop\",\"2017-09-18T08:22:00Z\"]", "invalid type: sequence, expected an object"),
        (r#"{"action":"stop","time":""#, "EOF while parsing a string at line 1 column 25"),
        (r#"{"action":"halt","time":"2017-09-18T08:22:00Z"}"#, "unknown action \"halt\""),
    ] {
        let refusal = (SPOT.read)(body).expect_err(body);
        assert!(refusal.contains(problem), "{refusal}");
    }
}

/// A body that one reader understands says nothing to another.
#[test]
fn readers_do_not_take_bodies_of_others() {
    for body in documented() {
        for reader in READERS.iter().filter(|it| it.resource != body.reader.resource) {
            assert_eq!(read_clearly(*reader, &body.text), None, "{} {body:?}", reader.resource);
        }
    }
}

/// Only the absence of a body says, of maintenance, that there is none.
#[test]
fn every_beginning_of_a_body_is_refused() {
    for body in documented() {
        let text = Json::parse(&body.text).plain();
        let ends = (0..text.len()).filter(|end| text.is_char_boundary(*end));
        for end in ends.skip(usize::from(body.reader.resource == MAINTENANCE.resource)) {
            assert_eq!(read_clearly(body.reader, &text[..end]), None, "{}", &text[..end]);
        }
        for after in ["x", "{}", ",", "]", &text] {
            let longer = format!("{text}{after}");
            assert_eq!(read_clearly(body.reader, &longer), None, "{longer}");
        }
    }
}

/// `[]` says, of maintenance, that there is none.
#[test]
fn depth_is_refused_however_deep() {
    for reader in READERS {
        for depth in [1, 100, 127, 128, 129, 10_000, 200_000] {
            for nested in [Json::nested(depth).plain(), "{\"a\":".repeat(depth)] {
                let means_nothing = reader.resource == MAINTENANCE.resource && nested == "[]";
                assert_eq!(read_clearly(reader, &nested).is_some(), means_nothing);
            }
        }
    }
}

proptest! {
    #![proptest_config(cases(300))]

    #[test]
    fn what_does_not_matter_changes_nothing(body in any_documented(), seed in any::<u64>()) {
        let other = written_otherwise(&body, &mut Dice(seed));
        prop_assert_eq!(read_clearly(body.reader, &other), Some(body.meaning()), "{}", other);
    }

    #[test]
    fn message_says_the_same_through_sns(text in any_message(), seed in any::<u64>()) {
        let body = Body { reader: MESSAGE, text };
        let mut dice = Dice(seed);
        let text = through_sns(&written_otherwise(&body, &mut dice));
        let wrapped = Body { text, reader: MESSAGE };
        let other = written_otherwise(&wrapped, &mut dice);
        prop_assert_eq!(read_clearly(body.reader, &other), Some(body.meaning()), "{}", other);
    }

    #[test]
    fn damage_is_refused_or_changes_nothing(body in any_documented(), seed in any::<u64>()) {
        let damaged = damaged(&body, &mut Dice(seed));
        if let Some(meaning) = read_clearly(body.reader, &damaged) {
            prop_assert_eq!(meaning, body.meaning(), "{}", damaged);
        }
    }
}
