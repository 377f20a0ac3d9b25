//! What an engine writes when nothing interrupts it: the measure for every sample that was.

use ebbtide_core::work::PromptGroup;

use super::config::EngineConfig;
use super::response::{Handwriting, mix};

impl EngineConfig {
    /// The whole response of one sample of a group, as engines of this set-up write it in one go.
    ///
    /// Holds for groups with a seed and a temperature above 0; the context length is left out.
    pub fn expected_response(&self, group: &PromptGroup, slot: u16) -> Vec<i32> {
        let sampling = &group.sampling;
        let prompt: Vec<u32> =
            group.prompt_token_ids.iter().map(|token| token.cast_unsigned()).collect();
        let seed = sampling.seed_of(slot).map_or(0, |seed| mix(seed.cast_unsigned()));
        let mut response = Handwriting::of(self).answer(&prompt, seed);
        let mut tokens = Vec::new();
        while tokens.len() < sampling.max_tokens as usize {
            let (token, is_end) = response.write(sampling.ignore_eos);
            let id = token.id.cast_signed();
            tokens.push(id);
            if is_end || sampling.stop_token_ids.contains(&id) {
                break;
            }
        }
        tokens
    }
}
