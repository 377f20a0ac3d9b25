//! "Did you mean": the known name that a wrong one was probably meant to be.

/// Longest name that is compared: the work grows with the square of the length.
const NAME_LIMIT_BYTES: usize = 48;

/// The one of `known` that is nearest to `text`, if it is near enough to be a slip of the pen.
///
/// Case and separators do not count, so `max_lag` finds `maxLag`. Otherwise one edit in three
/// letters may differ (Damerau-Levenshtein, adjacent swaps count as one).
pub fn nearest<'known>(text: &str, known: &[&'known str]) -> Option<&'known str> {
    if text.is_empty() || text.len() > NAME_LIMIT_BYTES {
        return None;
    }
    let wanted = plain(text);
    let distances = known.iter().map(|name| (edits(&wanted, &plain(name)), *name));
    let (distance, name) = distances.min_by_key(|(distance, _)| *distance)?;
    (distance <= (name.chars().count() / 3).max(1)).then_some(name)
}

fn plain(name: &str) -> Vec<char> {
    let letters = name.chars().filter(|c| !matches!(c, '_' | '-' | ' '));
    letters.flat_map(char::to_lowercase).collect()
}

/// Fewest insertions, deletions, replacements and swaps of neighbours from `a` to `b`.
fn edits(a: &[char], b: &[char]) -> usize {
    let mut before_last: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, to) in b.iter().enumerate() {
            let replaced = last[j] + usize::from(from != to);
            let mut best = replaced.min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *from == b[j - 1] && a[i - 1] == *to {
                best = best.min(before_last[j - 1] + 1);
            }
            row.push(best);
        }
        before_last = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_find_the_name_and_other_words_find_none() {
        let known = ["lease", "renewEvery", "maxLag", "minSamples", "stages"];
        let table = [
            ("leese", Some("lease")),
            ("laese", Some("lease")),
            ("max_lag", Some("maxLag")),
            ("MAXLAG", Some("maxLag")),
            ("renewevry", Some("renewEvery")),
            ("stage", Some("stages")),
            ("colour", None),
            ("", None),
        ];
        for (text, expected) in table {
            assert_eq!(nearest(text, &known), expected, "{text:?}");
        }
    }
}
