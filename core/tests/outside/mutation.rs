//! What may befall a body on its way: changes that mean nothing, and damage.

use crate::documented::{Body, WORDS, is_read};
use crate::json::Json;

/// Numbers that follow from a seed (splitmix64), so that a failure can be repeated.
pub struct Dice(pub u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit`; zero when there is none.
    pub fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() >> 32).unwrap() % limit.max(1)
    }

    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }

    /// Other dice.
    pub fn split(&mut self) -> Self {
        Self(self.next())
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        (1..items.len()).for_each(|last| items.swap(last, self.below(last + 1)));
    }
}

/// The same body, written otherwise: the order of members, further members, white space, escapes
/// and a byte order mark.
pub fn written_otherwise(body: &Body, dice: &mut Dice) -> String {
    let mut json = Json::parse(&body.text);
    for _ in 0..dice.below(4) {
        json.change_one_object(dice, |dice, members| members.push(unread(dice)));
    }
    json.visit(&mut |it| {
        if let Json::Object(members) = it {
            dice.shuffle(members);
        }
    });
    let mark = if dice.below(2) == 0 { "\u{feff}" } else { "" };
    format!("{mark}{}", json.loose(dice))
}

/// A member that nobody reads, with a value that may be anything.
fn unread(dice: &mut Dice) -> (String, Json) {
    let names = ["", "x", "Action", "ACTION", "Detail", "event", "message", "type", "\u{1f980}"];
    let name = *dice.pick(&names);
    assert!(!is_read(name), "{name}");
    (name.to_owned(), anything(dice))
}

fn anything(dice: &mut Dice) -> Json {
    match dice.below(6) {
        0 => Json::nested(1 + dice.below(3000)),
        1 => Json::Raw("9".repeat(1 + dice.below(400))),
        2 => {
            let numbers = ["1e999", "-0.0", "null", "true", "1", "-1", "18446744073709551616"];
            Json::Raw((*dice.pick(&numbers)).to_owned())
        }
        3 => Json::Text("\u{0}\"\\\u{feff}\u{1f980}".repeat(dice.below(4))),
        4 => Json::List(vec![Json::Text("terminate".to_owned()); dice.below(4)]),
        _ => {
            // What is read elsewhere is not read here, whether it stands once or twice.
            let member = ("action".to_owned(), Json::Text("stop".to_owned()));
            Json::Object(vec![member; dice.below(3)])
        }
    }
}

/// A body to which one thing happened after which it must not mean anything else.
pub fn damaged(body: &Body, dice: &mut Dice) -> String {
    let mut json = Json::parse(&body.text);
    match dice.below(6) {
        0 => json.change_one_object(dice, |dice, members| {
            let (name, value) = dice.pick(members).clone();
            let value = if dice.below(2) == 0 { value } else { anything(dice) };
            let place = dice.below(members.len() + 1);
            members.insert(place, (name, value));
        }),
        1 => json.change_one_object(dice, |dice, members| {
            let number = dice.below(members.len());
            let chosen = &mut members[number].1;
            // A text, nothing at all, or another list may well mean something there.
            let is_list = |it: &Json| it.plain().starts_with('[');
            let was_list = is_list(chosen);
            *chosen = std::iter::repeat_with(|| anything(dice))
                .filter(|it| !matches!(it, Json::Text(_)) && *it != Json::Raw("null".to_owned()))
                .find(|it| !is_list(it) || !was_list)
                .unwrap();
        }),
        2 => json.change_one_object(dice, |dice, members| {
            let is_needed = |(name, _): &(String, Json)| body.needs(name);
            let needed: Vec<usize> =
                (0..members.len()).filter(|n| is_needed(&members[*n])).collect();
            if needed.is_empty() {
                return;
            }
            let chosen = *dice.pick(&needed);
            if dice.below(2) == 0 {
                members.remove(chosen);
            } else {
                members[chosen].1 = Json::Raw("null".to_owned());
            }
        }),
        3 => json.change_one_object(dice, |dice, members| {
            let chosen = dice.below(members.len());
            let (name, value) = &mut members[chosen];
            if let Json::Text(text) = value
                && WORDS.contains(&name.as_str())
            {
                *text = text.to_uppercase();
            }
        }),
        4 => in_a_list(&mut json, dice),
        _ => {
            let text = json.plain();
            let place = text.char_indices().map(|(at, _)| at).collect::<Vec<_>>();
            return text[..*dice.pick(&place[1..])].to_owned();
        }
    }
    json.plain()
}

/// Writes the values of one object as a list, in any order, or puts the whole body into a list.
fn in_a_list(json: &mut Json, dice: &mut Dice) {
    let mut objects = 0;
    json.visit(&mut |it| objects += usize::from(matches!(it, Json::Object(_))));
    let (chosen, mut number) = (dice.below(objects + 1), 0);
    if chosen == objects {
        *json = Json::List(vec![json.clone(); 1 + dice.below(2)]);
        return;
    }
    json.visit(&mut |it| {
        let Json::Object(members) = it else { return };
        number += 1;
        if number == chosen + 1 {
            let mut values: Vec<Json> = members.iter().map(|(_, value)| value.clone()).collect();
            dice.shuffle(&mut values);
            *it = Json::List(values);
        }
    });
}
