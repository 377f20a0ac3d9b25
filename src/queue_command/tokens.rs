//! The stored tokens of units, chunk by chunk, against what their records say.

use ebbtide_queue::state::{GroupTrace, UnitTrace};

/// What is wrong with the stored tokens of a group: unit, and problem.
pub fn problems(trace: &GroupTrace) -> Vec<(String, String)> {
    let limit = trace.spec.as_ref().map(|spec| spec.sampling.max_tokens);
    let problem = |unit: &UnitTrace| Some((unit.unit.unit.to_string(), problem(unit, limit)?));
    trace.units.iter().filter_map(problem).collect()
}

fn problem(trace: &UnitTrace, limit: Option<u32>) -> Option<String> {
    let (unit, mut end) = (&trace.unit, 0);
    for chunk in &trace.chunks {
        let (ids, logprobs) = (chunk.token_ids.len(), chunk.logprobs.len());
        if chunk.offset != end {
            return Some(format!("its tokens have a gap: {} follow {end}", chunk.offset));
        }
        if ids != logprobs {
            return Some(format!(
                "has {ids} tokens and {logprobs} log-probabilities from {end} on"
            ));
        }
        end = chunk.end();
    }
    if end != unit.tokens {
        return Some(format!("has {} tokens by its record, {end} are stored", unit.tokens));
    }
    if !trace.chunks.iter().map(|chunk| chunk.weight_version).is_sorted() {
        return Some("its policy versions fall".to_owned());
    }
    let ends = trace.chunks.first().zip(trace.chunks.last());
    let stored = ends.map(|(first, last)| (first.weight_version, last.weight_version));
    let recorded = unit.versions.map(|versions| (versions.first, versions.last));
    if stored != recorded {
        return Some("its policy versions are not those of its record".to_owned());
    }
    let limit = limit.filter(|limit| end > *limit)?;
    Some(format!("has {end} tokens, at most {limit} were asked for"))
}
