//! JSON as it is written, not as it is meant: members in their order, some twice, numbers as text.

use std::fmt::Write;

use serde_json::Value;

use crate::mutation::Dice;

/// A value as it is written.
#[derive(Debug, Clone, PartialEq)]
pub enum Json {
    /// A number, a word, or anything at all.
    Raw(String),
    Text(String),
    List(Vec<Json>),
    Object(Vec<(String, Json)>),
}

impl Json {
    pub fn parse(text: &str) -> Self {
        Self::of(&serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}")))
    }

    fn of(value: &Value) -> Self {
        match value {
            Value::String(text) => Self::Text(text.clone()),
            Value::Array(items) => Self::List(items.iter().map(Self::of).collect()),
            Value::Object(members) => Self::Object(
                members.iter().map(|(name, it)| (name.clone(), Self::of(it))).collect(),
            ),
            other => Self::Raw(other.to_string()),
        }
    }

    /// Lists within lists.
    pub fn nested(depth: usize) -> Self {
        Self::Raw(format!("{}{}", "[".repeat(depth), "]".repeat(depth)))
    }

    /// Meets every value in it, itself first.
    pub fn visit(&mut self, meet: &mut impl FnMut(&mut Self)) {
        meet(self);
        match self {
            Self::Raw(_) | Self::Text(_) => {}
            Self::List(items) => items.iter_mut().for_each(|item| item.visit(meet)),
            Self::Object(members) => members.iter_mut().for_each(|(_, it)| it.visit(meet)),
        }
    }

    /// Changes the members of one of the objects in it.
    pub fn change_one_object(
        &mut self,
        dice: &mut Dice,
        mut change: impl FnMut(&mut Dice, &mut Vec<(String, Json)>),
    ) {
        let mut count = 0;
        self.visit(&mut |it| count += usize::from(matches!(it, Self::Object(_))));
        let (chosen, mut number) = (dice.below(count), 0);
        self.visit(&mut |it| {
            let Self::Object(members) = it else { return };
            number += 1;
            if number == chosen + 1 {
                change(dice, members);
            }
        });
    }

    /// As short as can be.
    pub fn plain(&self) -> String {
        let mut text = String::new();
        self.write(&mut text, &mut |_| {}, &mut |_| false);
        text
    }

    /// With white space anywhere and characters of texts as escapes.
    pub fn loose(&self, dice: &mut Dice) -> String {
        let mut text = String::new();
        let mut other = dice.split();
        let mut space = |text: &mut String| {
            (0..dice.below(3)).for_each(|_| text.push([' ', '\t', '\r', '\n'][dice.below(4)]));
        };
        space(&mut text);
        self.write(&mut text, &mut space, &mut |_| other.below(4) == 0);
        space(&mut text);
        text
    }

    fn write(
        &self,
        to: &mut String,
        space: &mut impl FnMut(&mut String),
        is_escaped: &mut impl FnMut(char) -> bool,
    ) {
        match self {
            Self::Raw(text) => to.push_str(text),
            Self::Text(text) => write_text(text, to, is_escaped),
            Self::List(items) => {
                to.push('[');
                for (number, item) in items.iter().enumerate() {
                    to.push_str(if number > 0 { "," } else { "" });
                    space(to);
                    item.write(to, space, is_escaped);
                    space(to);
                }
                to.push(']');
            }
            Self::Object(members) => {
                to.push('{');
                for (number, (name, value)) in members.iter().enumerate() {
                    to.push_str(if number > 0 { "," } else { "" });
                    space(to);
                    write_text(name, to, is_escaped);
                    space(to);
                    to.push(':');
                    space(to);
                    value.write(to, space, is_escaped);
                    space(to);
                }
                to.push('}');
            }
        }
    }
}

fn write_text(text: &str, to: &mut String, is_escaped: &mut impl FnMut(char) -> bool) {
    to.push('"');
    for character in text.chars() {
        let must = character.is_control() || character == '"' || character == '\\';
        if must || is_escaped(character) {
            for unit in character.encode_utf16(&mut [0; 2]) {
                write!(to, "\\u{unit:04x}").expect("a String takes everything");
            }
        } else {
            to.push(character);
        }
    }
    to.push('"');
}
