//! YAML text as a tree in which every key and value knows where it stands.
//!
//! Built from the parser's events rather than from its own tree, because that one stops at the
//! first doubled key, forgets where keys stand and writes aliases out, however large they grow.
//! Depth and length are bounded here, so nothing after this file has to think of them.

use std::fmt;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, ScanError, Span, StrInput};

/// Longest policy. 128 pools of 12 lines of 60 characters are 90 KiB; etcd refuses 1.5 MiB.
pub(super) const TEXT_LIMIT_BYTES: usize = 256 * 1024;

/// Deepest nesting. A policy needs 5; the rest leaves room for the metadata of Kubernetes.
const DEPTH_LIMIT: usize = 32;

/// A place in the policy's text, counted from 1, columns in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// Line, from 1.
    pub line: u32,
    /// Column, from 1.
    pub column: u32,
}

impl Position {
    /// The first character of the text.
    pub(super) const START: Self = Self { line: 1, column: 1 };
}

impl From<&Marker> for Position {
    fn from(marker: &Marker) -> Self {
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Self { line: count(marker.line().max(1)), column: count(marker.col() + 1) }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// A value and where it begins.
#[derive(Debug)]
pub(super) struct Node {
    pub at: Position,
    pub value: Value,
}

/// What a value is, before anybody asks what it means.
#[derive(Debug)]
pub(super) enum Value {
    Scalar(Scalar),
    List(Vec<Node>),
    Map(Vec<Entry>),
    /// A fault has been recorded for it.
    Refused,
}

/// Text, and whether it stood in quotes (or in a block) and so is never a number.
#[derive(Debug)]
pub(super) struct Scalar {
    pub text: String,
    pub is_quoted: bool,
}

/// One key of a mapping with its value.
#[derive(Debug)]
pub(super) struct Entry {
    pub key: String,
    pub key_at: Position,
    pub value: Node,
}

/// Something that no policy may contain, whatever the key.
#[derive(Debug)]
pub(super) struct Fault {
    pub at: Position,
    pub message: String,
}

/// Reads `text`; a tree that could not be finished is left out, its fault is the last one.
pub(super) fn locate(text: &str) -> (Option<Node>, Vec<Fault>) {
    let mut builder = Builder::default();
    if text.len() > TEXT_LIMIT_BYTES {
        let message = format!("a policy has at most {TEXT_LIMIT_BYTES} bytes, got {}", text.len());
        builder.fault(Position::START, message);
        return (None, builder.faults);
    }
    let text = text.trim_start_matches('\u{feff}');
    let mut parser = Parser::new(StrInput::new(text));
    while let Some(event) = parser.next_event() {
        let is_usable = match event {
            Ok((event, span)) => builder.apply(event, span),
            Err(error) => builder.refuse_syntax(text, &error),
        };
        if !is_usable {
            return (None, builder.faults);
        }
    }
    if builder.root.is_none() && builder.faults.is_empty() {
        builder.fault(Position::START, "the text holds no policy".to_owned());
    }
    (builder.root, builder.faults)
}

/// A list or mapping whose end has not come yet.
enum Open {
    List(Position, Vec<Node>),
    Map(Position, Vec<Entry>, NextInMap),
}

/// What the next node of an open mapping is.
enum NextInMap {
    Key,
    ValueOf(String, Position),
    /// The value of a key that was refused.
    Dropped,
}

#[derive(Default)]
struct Builder {
    open: Vec<Open>,
    root: Option<Node>,
    documents: usize,
    faults: Vec<Fault>,
}

impl Builder {
    /// Takes one event in; false when there is no point in going on.
    fn apply(&mut self, event: Event<'_>, span: Span) -> bool {
        let at = Position::from(&span.start);
        match event {
            Event::DocumentStart(_) => {
                self.documents += 1;
                if self.documents > 1 {
                    self.fault(at, "a file holds one policy, got a second document".to_owned());
                    return false;
                }
            }
            Event::Scalar(text, style, _, tag) => {
                self.refuse_tag(at, tag.is_some());
                let is_quoted = style != ScalarStyle::Plain;
                let scalar = Scalar { text: text.into_owned(), is_quoted };
                self.place(Node { at, value: Value::Scalar(scalar) });
            }
            Event::Alias(_) => {
                self.fault(at, "aliases are not supported; write the value out".to_owned());
                self.place(Node { at, value: Value::Refused });
            }
            Event::SequenceStart(_, tag) => {
                self.refuse_tag(at, tag.is_some());
                return self.descend(at, Open::List(at, Vec::new()));
            }
            Event::MappingStart(_, tag) => {
                self.refuse_tag(at, tag.is_some());
                return self.descend(at, Open::Map(at, Vec::new(), NextInMap::Key));
            }
            Event::SequenceEnd | Event::MappingEnd => self.close(),
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => {}
        }
        true
    }

    fn descend(&mut self, at: Position, open: Open) -> bool {
        if self.open.len() == DEPTH_LIMIT {
            self.fault(at, format!("a policy nests at most {DEPTH_LIMIT} levels deep"));
            return false;
        }
        self.open.push(open);
        true
    }

    fn close(&mut self) {
        let node = match self.open.pop() {
            Some(Open::List(at, nodes)) => Node { at, value: Value::List(nodes) },
            Some(Open::Map(at, entries, _)) => Node { at, value: Value::Map(entries) },
            None => return,
        };
        self.place(node);
    }

    /// Puts a finished node where it belongs.
    fn place(&mut self, node: Node) {
        match self.open.last_mut() {
            None => self.root = Some(node),
            Some(Open::List(_, nodes)) => nodes.push(node),
            Some(Open::Map(_, entries, next)) => match std::mem::replace(next, NextInMap::Key) {
                NextInMap::ValueOf(key, key_at) => entries.push(Entry { key, key_at, value: node }),
                NextInMap::Dropped => {}
                NextInMap::Key => match node.value {
                    Value::Scalar(scalar) => *next = NextInMap::ValueOf(scalar.text, node.at),
                    Value::Refused => *next = NextInMap::Dropped,
                    Value::List(_) | Value::Map(_) => {
                        *next = NextInMap::Dropped;
                        self.fault(node.at, "a key must be plain text".to_owned());
                    }
                },
            },
        }
    }

    fn refuse_tag(&mut self, at: Position, is_tagged: bool) {
        if is_tagged {
            self.fault(at, "tags are not supported; write the value alone".to_owned());
        }
    }

    /// Records the parser's own complaint; a tab in the indentation is the usual hidden reason.
    fn refuse_syntax(&mut self, text: &str, error: &ScanError) -> bool {
        let at = Position::from(error.marker());
        // The parser may notice a tab at the end of the line before.
        let tab = (at.line..=at.line + 1).find_map(|line| tab_in_indentation(text, line));
        match tab {
            Some(tab) => {
                let message = "the text is not valid YAML: indent with spaces, got a tab";
                self.fault(tab, message.to_owned());
            }
            None => self.fault(at, format!("the text is not valid YAML: {}", error.info())),
        }
        false
    }

    fn fault(&mut self, at: Position, message: String) {
        self.faults.push(Fault { at, message });
    }
}

fn tab_in_indentation(text: &str, line: u32) -> Option<Position> {
    let content = text.lines().nth(line as usize - 1)?;
    let blanks = content.chars().take_while(|c| c.is_whitespace());
    let column = blanks.zip(1..).find(|(blank, _)| *blank == '\t')?.1;
    Some(Position { line, column })
}
