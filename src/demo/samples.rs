//! What a sample must be like: whole, as its engine would have written it alone, with
//! the score that is its own, and fresh enough to count.

use ebbtide_core::fabric::FabricVerdict;
use ebbtide_core::sample::Sample;
use ebbtide_core::staleness::lag;
use ebbtide_core::work::PromptGroup;
use ebbtide_queue::reply::TakenGroup;

use super::scorer;

/// Gives the whole response that an engine writes to a prompt under a sampling seed.
pub type ExpectedResponse = dyn Fn(&PromptGroup, u16) -> Vec<i32> + Send + Sync;

/// What is wrong with a sample's text, if anything is.
pub fn garbled(
    group: &PromptGroup,
    sample: &Sample,
    expected: &ExpectedResponse,
) -> Option<String> {
    let mut end = 0;
    for chunk in &sample.chunks {
        if chunk.offset != end || chunk.token_ids.len() != chunk.logprobs.len() {
            return Some(format!("{}: gap or overlap at token {end}", sample.unit));
        }
        end = chunk.end();
    }
    let (got, wanted) = (sample.token_ids(), expected(group, sample.unit.slot));
    if got == wanted {
        return None;
    }
    let place = got.iter().zip(&wanted).take_while(|(got, wanted)| got == wanted).count();
    let lengths = format!("{} tokens instead of {}", got.len(), wanted.len());
    Some(format!("{}: differs from token {place} on, {lengths}", sample.unit))
}

/// What is wrong with a sample's score, if anything is.
pub fn wrong_score(sample: &Sample) -> Option<String> {
    let wanted = scorer::score(&sample.token_ids());
    match &sample.score {
        Some(score) if *score == wanted => None,
        Some(score) => {
            Some(format!("{}: score {} instead of {}", sample.unit, score.value, wanted.value))
        }
        None => Some(format!("{}: no score", sample.unit)),
    }
}

/// Within the staleness bound when taken, and with the fabric's verdict on record.
pub fn is_verifiable(taken: &TakenGroup, sample: &Sample) -> bool {
    let oldest =
        sample.chunks.iter().map(|chunk| lag(taken.taken_at_version, chunk.weight_version));
    let is_fresh = oldest.max().unwrap_or(0) <= u64::from(taken.group.max_lag);
    let has_verdict =
        |fabric| matches!(fabric, FabricVerdict::Passed | FabricVerdict::NotApplicable);
    is_fresh && sample.chunks.iter().all(|chunk| has_verdict(chunk.origin.fabric))
}
