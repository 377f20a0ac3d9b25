//! The reader of one mapping: hands out its keys, each once, and reports what is left over.
//!
//! Reading never stops at a mistake. A required value that is missing or wrong is replaced by a
//! stand-in, so that the walk goes on and finds the remaining mistakes; no policy comes of it.

use std::collections::BTreeMap;

use super::kinds::{Kind, Writable};
use super::located::{Entry, Node, Position, Value};
use super::near::nearest;
use super::report::Report;

/// Longest part of a key or value that a message repeats.
const SHOWN_LIMIT_CHARS: usize = 60;

/// A mapping being read, at a path such as `spec.queue`.
pub(super) struct Section<'tree, 'report> {
    path: String,
    at: Position,
    entries: BTreeMap<&'tree str, &'tree Entry>,
    known: Vec<&'static str>,
    /// Missing keys, each with the circumstance that requires it.
    missing: Vec<(&'static str, &'static str)>,
    is_stand_in: bool,
    report: &'report mut Report,
}

/// Reads the mapping `node` at `path`; whatever it is, `read` is called and gives a value.
pub(super) fn read_section<T>(
    node: Option<&Node>,
    (path, at): (String, Position),
    report: &mut Report,
    read: impl FnOnce(&mut Section<'_, '_>) -> T,
) -> T {
    let mut section = Section {
        path,
        at,
        entries: BTreeMap::new(),
        known: Vec::new(),
        missing: Vec::new(),
        is_stand_in: false,
        report,
    };
    if let Some(node) = node {
        section.fill(node);
    }
    let value = read(&mut section);
    section.finish();
    value
}

impl<'tree> Section<'tree, '_> {
    /// The value of `key`, if it is there and right.
    pub fn optional<K: Kind>(&mut self, key: &'static str, kind: K) -> Option<K::Value> {
        self.read(key, &kind)
    }

    /// The value of `key`, or `default` when it is missing or wrong.
    pub fn or<K: Writable>(&mut self, key: &'static str, kind: K, default: K::Value) -> K::Value {
        let path = self.path_of(key);
        if let Some(outline) = self.report.outline() {
            outline.set_default(&path, kind.write(&default));
        }
        self.read(key, &kind).unwrap_or(default)
    }

    /// The value of `key`; missing is a mistake.
    pub fn required<K: Kind>(&mut self, key: &'static str, kind: K) -> K::Value {
        self.miss_unless_present(key);
        self.read(key, &kind).unwrap_or_else(|| kind.stand_in())
    }

    /// The value of `key`; missing is a mistake, and there is nothing to stand in for it.
    pub fn try_required<K: Kind>(&mut self, key: &'static str, kind: K) -> Option<K::Value> {
        self.miss_unless_present(key);
        self.read(key, &kind)
    }

    /// The mapping under `key`; when it is missing, every key in it has its default.
    pub fn section<T>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(&mut Section<'_, '_>) -> T,
    ) -> T {
        let entry = self.take(key);
        let at = entry.map_or(self.at, |entry| entry.key_at);
        let place = (self.path_of(key), at);
        if let Some(outline) = self.report.outline() {
            outline.section(&place.0);
        }
        read_section(entry.map(|entry| &entry.value), place, self.report, read)
    }

    /// The mapping under `key`; missing is a mistake, reported once and not for each key in it.
    pub fn required_section<T>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(&mut Section<'_, '_>) -> T,
    ) -> T {
        let is_missing = !self.has(key);
        self.miss_unless_present(key);
        self.section(key, |section| {
            section.is_stand_in |= is_missing;
            read(section)
        })
    }

    /// The mapping under `key`, if there is one.
    pub fn optional_section<T>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(&mut Section<'_, '_>) -> T,
    ) -> Option<T> {
        self.known.push(key);
        let path = self.path_of(key);
        let is_outlined = self.report.outline().map(|outline| outline.optional(&path)).is_some();
        (is_outlined || self.has(key)).then(|| self.section(key, read))
    }

    /// The list of 1 to `limit` mappings under `key`; missing is a mistake.
    pub fn sections<T>(
        &mut self,
        key: &'static str,
        limit: usize,
        read: impl Fn(&mut Section<'_, '_>) -> T,
    ) -> Vec<T> {
        self.miss_unless_present(key);
        let path = self.path_of(key);
        if let Some(outline) = self.report.outline() {
            let item = outline.sections(&path, limit);
            return vec![read_section(None, (item, self.at), self.report, read)];
        }
        let Some(entry) = self.take(key) else { return Vec::new() };
        let Value::List(nodes) = &entry.value.value else {
            self.refuse(&entry.value, &path, "a list");
            return Vec::new();
        };
        if nodes.is_empty() || nodes.len() > limit {
            let complaint = format!("must have 1 to {limit} entries, got {}", nodes.len());
            self.report.complain(&path, entry.value.at, complaint);
        }
        let read_item = |(index, node): (usize, &Node)| {
            let path = format!("{path}[{index}]");
            self.report.saw(&path, node.at);
            read_section(Some(node), (path, node.at), self.report, &read)
        };
        nodes.iter().take(limit).enumerate().map(read_item).collect()
    }

    /// Accepts `keys` and whatever they hold: they are for somebody else.
    pub fn ignore(&mut self, keys: &[&'static str]) {
        for key in keys {
            self.take(key);
        }
    }

    /// Whether the text has a value for `key`, right or wrong, that was not taken yet.
    pub fn has(&self, key: &str) -> bool {
        self.entries.contains_key(key)
    }

    /// Records a mistake about `key`, which may be missing.
    pub fn complain(&mut self, key: &str, complaint: impl std::fmt::Display) {
        let path = self.path_of(key);
        if !self.is_stand_in && !self.report.is_faulty(&path) {
            let at = self.report.position(&path).unwrap_or(self.at);
            self.report.complain(&path, at, complaint);
        }
    }

    /// Records that `key` is missing and required under a circumstance: ` with …`.
    ///
    /// It is no mistake of its own when the text has the key under a misspelt name.
    pub fn miss(&mut self, key: &'static str, circumstance: &'static str) {
        self.missing.push((key, circumstance));
    }

    fn miss_unless_present(&mut self, key: &'static str) {
        let path = self.path_of(key);
        if let Some(outline) = self.report.outline() {
            outline.require(&path);
        }
        if !self.has(key) {
            self.miss(key, "");
        }
    }

    fn read<K: Kind>(&mut self, key: &'static str, kind: &K) -> Option<K::Value> {
        let path = self.path_of(key);
        if let Some(outline) = self.report.outline() {
            outline.key(&path, kind.schema());
        }
        let entry = self.take(key)?;
        kind.read(&entry.value, &path, self.report)
    }

    fn take(&mut self, key: &'static str) -> Option<&'tree Entry> {
        if !self.known.contains(&key) {
            self.known.push(key);
        }
        let entry = self.entries.remove(key)?;
        let is_map = matches!(entry.value.value, Value::Map(_));
        let at = if is_map { entry.key_at } else { entry.value.at };
        self.report.saw(&self.path_of(key), at);
        Some(entry)
    }

    fn path_of(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    fn fill(&mut self, node: &'tree Node) {
        let Value::Map(entries) = &node.value else {
            self.is_stand_in = true;
            let path = self.path.clone();
            return self.refuse(node, &path, "a mapping of keys to values");
        };
        for entry in entries {
            match self.entries.get(entry.key.as_str()) {
                None => _ = self.entries.insert(&entry.key, entry),
                Some(first) => {
                    let complaint = format!("is given twice, first in line {}", first.key_at.line);
                    let path = self.path_of(&shorten(&entry.key));
                    self.report.complain(&path, entry.key_at, complaint);
                }
            }
        }
    }

    fn refuse(&mut self, node: &Node, path: &str, expected: &str) {
        match &node.value {
            Value::Refused => self.report.mark_faulty(path),
            value => {
                let what = if path.is_empty() { "a policy " } else { "" };
                let complaint = format!("{what}must be {expected}, got {}", value.in_words());
                self.report.complain(path, node.at, complaint);
            }
        }
    }

    /// Reports unknown keys and missing ones; a misspelt required key is one mistake, not two.
    fn finish(mut self) {
        let (known, absent) = self.known_keys();
        for (key, entry) in std::mem::take(&mut self.entries) {
            let meant = nearest(key, &known);
            if let Some(meant) = meant.filter(|meant| absent.contains(meant)) {
                let path = self.path_of(meant);
                self.report.mark_faulty(&path);
            }
            let advice = match meant {
                Some(meant) => format!("did you mean {meant}?"),
                None => format!("known here: {}", self.known.join(", ")),
            };
            let path = self.path_of(&shorten(key));
            let complaint = format!("is not a known key; {advice}");
            self.report.complain(&path, entry.key_at, complaint);
        }
        for (key, circumstance) in std::mem::take(&mut self.missing) {
            self.complain(key, format_args!("is required{circumstance}"));
        }
    }

    /// All known keys, those that the text does not have first, and these alone.
    fn known_keys(&self) -> (Vec<&'static str>, Vec<&'static str>) {
        let is_absent = |key: &&'static str| self.report.position(&self.path_of(key)).is_none();
        let (absent, present): (Vec<_>, Vec<_>) = self.known.iter().copied().partition(is_absent);
        ([absent.clone(), present].concat(), absent)
    }
}

/// `text`, cut when it is too long to repeat, and without control characters.
pub(super) fn shorten(text: &str) -> String {
    let mut shown: String =
        text.chars().take(SHOWN_LIMIT_CHARS).flat_map(char::escape_debug).collect();
    if text.chars().nth(SHOWN_LIMIT_CHARS).is_some() {
        shown.push('…');
    }
    shown
}
