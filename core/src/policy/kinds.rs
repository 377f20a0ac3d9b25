//! The kinds of values that a policy has, and how each reads from text; numbers are in `numbers`.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use serde_json::{Value as Json, json};

use super::located::{Node, Scalar, Value};
use super::report::Report;
use super::section::shorten;

/// How to read one value. Mistakes go to the report; `None` says that there was one.
pub(super) trait Kind {
    /// What the value is once it is read.
    type Value;

    /// Reads the value at `path`.
    fn read(&self, node: &Node, path: &str, report: &mut Report) -> Option<Self::Value>;

    /// Some legal value, in place of one that was refused.
    fn stand_in(&self) -> Self::Value;

    /// What may stand there, as a schema of Kubernetes says it.
    fn schema(&self) -> Json;
}

/// A kind whose values can be written as well, for defaults in a schema.
pub(super) trait Writable: Kind {
    /// The value as a document has it.
    fn write(&self, value: &Self::Value) -> Json;
}

/// How to read a value that is one piece of text.
pub(super) trait ScalarKind {
    /// What the value is once it is read.
    type Value;

    /// Goes on after "must be": `a whole number`.
    fn expected(&self) -> String;

    /// Reads the text, or says what is wrong with it: `must be …, got …`.
    fn parse(&self, scalar: &Scalar) -> Result<Self::Value, String>;

    /// Some legal value.
    fn stand_in(&self) -> Self::Value;

    /// What may stand there, as a schema of Kubernetes says it.
    fn schema(&self) -> Json;
}

impl<S: ScalarKind> Kind for S {
    type Value = S::Value;

    fn read(&self, node: &Node, path: &str, report: &mut Report) -> Option<S::Value> {
        let outcome = match &node.value {
            Value::Refused => {
                report.mark_faulty(path);
                return None;
            }
            Value::Scalar(scalar) if !scalar.is_nothing() => self.parse(scalar),
            other => Err(format!("must be {}, got {}", self.expected(), other.in_words())),
        };
        outcome.map_err(|complaint| report.complain(path, node.at, complaint)).ok()
    }

    fn stand_in(&self) -> S::Value {
        ScalarKind::stand_in(self)
    }

    fn schema(&self) -> Json {
        ScalarKind::schema(self)
    }
}

impl Value {
    /// The value as a message names it.
    pub fn in_words(&self) -> String {
        match self {
            Self::Scalar(scalar) => scalar.in_words(),
            Self::List(_) => "a list".to_owned(),
            Self::Map(_) => "a mapping".to_owned(),
            Self::Refused => "something that is not supported".to_owned(),
        }
    }
}

impl Scalar {
    fn is_nothing(&self) -> bool {
        !self.is_quoted && matches!(self.text.as_str(), "" | "~" | "null")
    }

    /// The text as a message names it.
    pub fn in_words(&self) -> String {
        match (self.is_nothing(), self.is_quoted) {
            (true, _) => "nothing".to_owned(),
            (false, true) => format!("the text \"{}\"", shorten(&self.text)),
            (false, false) => shorten(&self.text),
        }
    }
}

/// A closed set of values, each with the name that the policy uses.
pub(super) trait Named: Copy + PartialEq + 'static {
    /// The names, in the order in which a message lists them.
    const NAMES: &'static [(&'static str, Self)];

    /// The name of this value.
    fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, value)| *value == self).map_or("", |(name, _)| *name)
    }
}

impl Named for bool {
    const NAMES: &'static [(&'static str, Self)] = &[("true", true), ("false", false)];
}

/// One of a few names.
pub(super) struct Choice<T: 'static>(&'static [(&'static str, T)]);

/// One of the names of `T`.
pub(super) fn choice<T: Named>() -> Choice<T> {
    Choice(T::NAMES)
}

/// Exactly this text, which says what the document is.
pub(super) fn exactly(text: &'static [(&'static str, ()); 1]) -> Choice<()> {
    Choice(text)
}

impl<T: Copy> ScalarKind for Choice<T> {
    type Value = T;

    fn expected(&self) -> String {
        let names: Vec<&str> = self.0.iter().map(|(name, _)| *name).collect();
        match names.split_last() {
            Some((last, [])) => (*last).to_owned(),
            Some((last, others)) => format!("{} or {last}", others.join(", ")),
            None => "nothing".to_owned(),
        }
    }

    fn parse(&self, scalar: &Scalar) -> Result<T, String> {
        let found = self.0.iter().find(|(name, _)| *name == scalar.text);
        let refusal = || format!("must be {}, got {}", self.expected(), scalar.in_words());
        found.map(|(_, value)| *value).ok_or_else(refusal)
    }

    fn stand_in(&self) -> T {
        self.0[0].1
    }

    fn schema(&self) -> Json {
        let names: Vec<&str> = self.0.iter().map(|(name, _)| *name).collect();
        match names[..] {
            ["true", "false"] => json!({ "type": "boolean" }),
            _ => json!({ "type": "string", "enum": names }),
        }
    }
}

impl<T: Copy + PartialEq> Writable for Choice<T> {
    fn write(&self, value: &T) -> Json {
        match self.0.iter().find(|(_, known)| known == value) {
            Some(("true", _)) => json!(true),
            Some(("false", _)) => json!(false),
            Some((name, _)) => json!(name),
            None => Json::Null,
        }
    }
}

/// A type that reads from text of a certain form.
pub(super) trait Pattern: FromStr {
    /// Goes on after "must": `match [a-z]+`.
    const FORM: &'static str;

    /// Some text of that form.
    const EXAMPLE: &'static str;

    /// The form as a regular expression, which a cluster checks.
    const REGEX: &'static str;

    /// Longest such text, in characters.
    const LENGTH_LIMIT: usize;

    /// The format of OpenAPI that says more than the expression can, such as which days there are.
    const FORMAT: Option<&'static str> = None;
}

/// Text of the form of a type.
pub(super) struct Text<T>(std::marker::PhantomData<T>);

/// Text that reads as a `T`.
pub(super) fn text<T: Pattern>() -> Text<T> {
    Text(std::marker::PhantomData)
}

impl<T: Pattern> ScalarKind for Text<T>
where
    T::Err: fmt::Debug,
{
    type Value = T;

    fn expected(&self) -> String {
        format!("text such as {}", T::EXAMPLE)
    }

    fn parse(&self, scalar: &Scalar) -> Result<T, String> {
        let is_other_type =
            scalar.text.parse::<f64>().is_ok() || matches!(scalar.text.as_str(), "true" | "false");
        if !scalar.is_quoted && is_other_type {
            return Err(format!("must be text, got {}; put it in quotes", scalar.in_words()));
        }
        let shown = || format!("must {}, got \"{}\"", T::FORM, shorten(&scalar.text));
        scalar.text.parse().map_err(|_| shown())
    }

    fn stand_in(&self) -> T {
        T::EXAMPLE.parse().expect("the example has the form; a test parses each")
    }

    fn schema(&self) -> Json {
        let mut schema =
            json!({ "type": "string", "pattern": T::REGEX, "maxLength": T::LENGTH_LIMIT });
        if let Some(format) = T::FORMAT {
            schema["format"] = json!(format);
        }
        schema
    }
}

/// Lists whose items are all of one kind.
pub(super) struct List<K> {
    item: K,
    lengths: RangeInclusive<usize>,
}

/// A list with a number of items within `lengths`.
pub(super) fn list<K: Kind>(lengths: RangeInclusive<usize>, item: K) -> List<K> {
    List { item, lengths }
}

impl<K: Kind> Kind for List<K> {
    type Value = Vec<K::Value>;

    /// A refused item is replaced by a stand-in, so that the others keep their index.
    fn read(&self, node: &Node, path: &str, report: &mut Report) -> Option<Self::Value> {
        let nodes = match &node.value {
            Value::List(nodes) => nodes,
            Value::Refused => {
                report.mark_faulty(path);
                return None;
            }
            other => {
                report.complain(path, node.at, format!("must be a list, got {}", other.in_words()));
                return None;
            }
        };
        if !self.lengths.contains(&nodes.len()) {
            let (least, most) = (self.lengths.start(), self.lengths.end());
            let complaint = format!("must have {least} to {most} entries, got {}", nodes.len());
            report.complain(path, node.at, complaint);
            return None;
        }
        let read_item = |(index, node): (usize, &Node)| {
            let path = format!("{path}[{index}]");
            report.saw(&path, node.at);
            self.item.read(node, &path, report).unwrap_or_else(|| self.item.stand_in())
        };
        Some(nodes.iter().enumerate().map(read_item).collect())
    }

    fn stand_in(&self) -> Self::Value {
        Vec::new()
    }

    /// No list of a policy names the same thing twice.
    fn schema(&self) -> Json {
        json!({
            "type": "array",
            "items": self.item.schema(),
            "minItems": self.lengths.start(),
            "maxItems": self.lengths.end(),
            "x-kubernetes-list-type": "set",
        })
    }
}

impl<K: Writable> Writable for List<K> {
    fn write(&self, value: &Self::Value) -> Json {
        value.iter().map(|item| self.item.write(item)).collect()
    }
}
