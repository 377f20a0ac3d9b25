//! One line of a page of metrics: `name{label="value",..} number [timestamp]`.

/// Labels that tell one rank of an engine from another: vLLM's and SGLang's.
const RANK_LABELS: [&str; 2] = ["engine", "dp_rank"];

/// A sample, as far as it is read.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Sample<'a> {
    pub(super) name: &'a str,
    /// Which rank it is of; empty when the engine has one.
    pub(super) rank: String,
    /// Finite and not negative.
    pub(super) value: f64,
}

/// The sample of a line; none for comments, and for what is no sample.
pub(super) fn sample_of(line: &str) -> Option<Sample<'_>> {
    let line = line.trim();
    let name_end = line.find(['{', ' ', '\t'])?;
    let (name, rest) = line.split_at(name_end);
    let (rank, rest) = match rest.strip_prefix('{') {
        Some(labels) => read_labels(labels)?,
        None => (String::new(), rest),
    };
    let value: f64 = rest.split_ascii_whitespace().next()?.parse().ok()?;
    (value.is_finite() && value >= 0.0).then_some(Sample { name, rank, value })
}

/// The rank that the labels tell, and what follows behind the closing brace.
fn read_labels(mut rest: &str) -> Option<(String, &str)> {
    let mut rank = String::new();
    loop {
        rest = rest.trim_start_matches([',', ' ', '\t']);
        if let Some(after) = rest.strip_prefix('}') {
            return Some((rank, after));
        }
        let (label, after) = rest.split_once('=')?;
        let quoted = after.trim_start().strip_prefix('"')?;
        let end = end_of_quote(quoted)?;
        if RANK_LABELS.contains(&label.trim()) {
            rank.push_str(&quoted[..end]);
            rank.push('/');
        }
        rest = &quoted[end + 1..];
    }
}

/// Where the closing quotation mark is; a backslash takes the meaning from the next character.
fn end_of_quote(quoted: &str) -> Option<usize> {
    let mut is_escaped = false;
    quoted.bytes().position(|byte| {
        let is_end = byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        is_end
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Option<(&str, String, f64)> {
        sample_of(line).map(|sample| (sample.name, sample.rank, sample.value))
    }

    #[test]
    fn labels_may_hold_anything_and_what_follows_the_value_is_passed_over() {
        for (line, expected) in [
            ("a 3", Some(("a", "", 3.0))),
            ("  a\t3.5e1 1712345678 # {trace=\"x\"} 1", Some(("a", "", 35.0))),
            ("a{} 0", Some(("a", "", 0.0))),
            (r#"a{engine="0",model_name="m"} 1.0"#, Some(("a", "0/", 1.0))),
            (r#"a{model_name="} 7 \" {",dp_rank="3",} 2"#, Some(("a", "3/", 2.0))),
            (r#"a{model_name="x\\",engine="1"} 2"#, Some(("a", "1/", 2.0))),
        ] {
            let expected = expected.map(|(name, rank, value)| (name, rank.to_owned(), value));
            assert_eq!(read(line), expected, "{line}");
        }
    }

    #[test]
    fn what_is_no_number_is_no_sample() {
        for line in [
            "",
            "# HELP a 3",
            "a",
            "a NaN",
            "a +Inf",
            "a -1",
            "a{b=\"c\" 1",
            "a{b=c} 1",
            "a{b=\"c} 1",
            "a{b} 1",
            "{} x",
        ] {
            assert_eq!(read(line), None, "{line}");
        }
    }
}
