//! What the emulated engine writes: a response is a pure function of the prompt, so a continuation
//! (the prompt and the first k tokens as a new prompt) goes on with the *same* response.
//!
//! The engine is not told where a prompt ended and a response began; it recognises its own
//! writing. Every token it writes carries a checksum:
//!
//! ```text
//! token id = free × M + check(key, position)        key = hash(engine seed, prompt)
//! ```
//!
//! with M the largest of the moduli below that leaves 16 free values. `free` depends on the
//! sampling seed, so that the samples of one prompt differ; `check` does not. A new prompt is read
//! from its start: the shortest beginning after which *everything* passes the check is the
//! original prompt, and what follows is the part already written. That beginning is the same for
//! every longer continuation: a shorter one that passed on more tokens would have passed before.
//! A prompt of a stranger whose last token passes by accident (1 in M) is taken as one token
//! further in, which harms nothing and is as reproducible as the rest.
//!
//! The length is drawn from a hash of the key and the first [`OPENING`] tokens, so it too survives
//! a continuation, even one with another sampling seed or on another engine with the same seed.
//! Log-probabilities and ranks come from the same hashes. The weights label changes nothing.

use super::config::{EngineConfig, ResponseLengths};

/// Tokens that tell one sample of a prompt from another; no response is shorter than these and
/// the end token.
const OPENING: u32 = 4;

/// Largest modulus of the checksum: a false recognition once in so many prompts.
const LARGEST_MODULUS: u32 = 1024;

/// Free values that remain for each checksum, at least.
const FREE_VALUES: u32 = 16;

/// One token written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Token {
    pub(super) id: u32,
    pub(super) logprob: f32,
    /// Rank of the token among all, by probability; 1 is the most likely.
    pub(super) rank: u32,
}

/// How one engine writes. Two engines with the same values write the same.
#[derive(Clone, Copy, Debug)]
pub(super) struct Handwriting {
    seed: u64,
    vocabulary: u32,
    eos_token_id: u32,
    lengths: ResponseLengths,
}

/// A response being written.
#[derive(Clone, Debug)]
pub(super) struct Response {
    hand: Handwriting,
    key: u64,
    sampling_seed: u64,
    opening: u64,
    position: u32,
}

impl Handwriting {
    pub(super) fn of(config: &EngineConfig) -> Self {
        Self {
            seed: config.seed,
            vocabulary: config.vocabulary,
            eos_token_id: config.eos_token_id,
            lengths: config.lengths,
        }
    }

    /// The response to `prompt`, at the place where the prompt leaves it.
    pub(super) fn answer(self, prompt: &[u32], sampling_seed: u64) -> Response {
        let mut key = mix(self.seed);
        for (index, token) in prompt.iter().enumerate() {
            let written = &prompt[index..];
            // An empty beginning is no prompt: at least one token was asked.
            if index > 0 && self.wrote(key, written) {
                return self.resume(key, written, sampling_seed);
            }
            key = fold(key, *token);
        }
        self.resume(key, &[], sampling_seed)
    }

    fn resume(self, key: u64, written: &[u32], sampling_seed: u64) -> Response {
        let mut response = Response { hand: self, key, sampling_seed, opening: key, position: 0 };
        written.iter().for_each(|token| response.advance(*token));
        response
    }

    /// Whether all of `tokens` could be the start of the response with this key.
    fn wrote(self, key: u64, tokens: &[u32]) -> bool {
        let mut positions = 0..;
        tokens.iter().all(|token| {
            positions.next().is_some_and(|at| token % self.modulus() == self.check(key, at))
        })
    }

    fn modulus(self) -> u32 {
        (self.vocabulary / FREE_VALUES).min(LARGEST_MODULUS)
    }

    fn check(self, key: u64, position: u32) -> u32 {
        below(mix(key ^ mix(u64::from(position))), self.modulus())
    }
}

impl Response {
    /// Writes the next token. The last one is the end token, and `true` comes with it; with
    /// `ignore_eos` there is no last one.
    pub(super) fn write(&mut self, ignore_eos: bool) -> (Token, bool) {
        let is_end = !ignore_eos && self.position + 1 >= self.length();
        let noise = mix(self.key ^ mix(self.sampling_seed ^ mix(u64::from(self.position))));
        let id = if is_end { self.hand.eos_token_id } else { self.ordinary_token(noise) };
        let token = describe(id, mix(noise), self.hand.vocabulary);
        self.advance(id);
        (token, is_end)
    }

    fn ordinary_token(&self, noise: u64) -> u32 {
        let modulus = self.hand.modulus();
        let free_values = self.hand.vocabulary / modulus;
        let free = below(noise, free_values);
        let check = self.hand.check(self.key, self.position);
        let id = free * modulus + check;
        if id == self.hand.eos_token_id {
            return (free + 1) % free_values * modulus + check;
        }
        id
    }

    fn advance(&mut self, token: u32) {
        if self.position < OPENING {
            self.opening = fold(self.opening, token);
        }
        self.position += 1;
    }

    /// Tokens of the whole response, end token included; final once the opening is written.
    fn length(&self) -> u32 {
        if self.position < OPENING {
            return u32::MAX;
        }
        let ResponseLengths { mean, spread } = self.hand.lengths;
        // A log-normal with this mean has its median at mean × exp(−spread² / 2).
        let location = mean.ln() - spread * spread / 2.0;
        let length = (location + spread * standard_normal(self.opening)).exp().round();
        // A float beyond the range becomes the end of the range.
        (length as u32).max(OPENING + 1)
    }
}

/// A likely token in most cases, an unlikely one sometimes.
fn describe(id: u32, noise: u64, vocabulary: u32) -> Token {
    let surprise = unit(noise);
    let rank = 1 + (surprise.powi(6) * f64::from(vocabulary - 1)) as u32;
    Token { id, logprob: -(surprise * surprise * 6.0 + 1e-3) as f32, rank }
}

/// Box and Muller: a normal deviate from two uniform ones.
fn standard_normal(hash: u64) -> f64 {
    let radius = (-2.0 * unit(mix(hash)).ln()).sqrt();
    radius * (std::f64::consts::TAU * unit(mix(!hash))).cos()
}

/// A number above 0 and at most 1 from the upper 53 bits, the ones that an `f64` can hold.
fn unit(hash: u64) -> f64 {
    ((hash >> 11) + 1) as f64 / (1_u64 << 53) as f64
}

/// A number below `limit` from the upper 32 bits.
fn below(hash: u64, limit: u32) -> u32 {
    (((hash >> 32) * u64::from(limit)) >> 32) as u32
}

fn fold(hash: u64, token: u32) -> u64 {
    mix(hash ^ u64::from(token).wrapping_add(1))
}

/// The seed of a call. Greedy calls have no chance in them; sampled ones without a seed differ by
/// their id.
pub(super) fn sampling_seed(temperature: Option<f64>, seed: Option<i64>, id: &str) -> u64 {
    match (temperature, seed) {
        (Some(0.0), _) => 0,
        (_, Some(seed)) => mix(seed.cast_unsigned()),
        (_, None) => hash_text(id),
    }
}

/// A seed from the bytes of a text.
fn hash_text(text: &str) -> u64 {
    text.bytes().fold(mix(0), |hash, byte| fold(hash, u32::from(byte)))
}

/// The output function of the SplitMix64 generator (Steele, Lea and Flood, 2014): every input bit
/// reaches every output bit.
pub(super) fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hand() -> Handwriting {
        Handwriting::of(&EngineConfig::default())
    }

    fn whole(hand: Handwriting, prompt: &[u32], seed: u64) -> Vec<u32> {
        let mut response = hand.answer(prompt, seed);
        let mut tokens = Vec::new();
        loop {
            let (token, is_end) = response.write(false);
            tokens.push(token.id);
            if is_end {
                return tokens;
            }
        }
    }

    #[test]
    fn continuation_equals_the_unbroken_response() {
        for vocabulary in [64, 512, 32_000] {
            let hand = Handwriting { vocabulary, ..hand() };
            for prompt in 0..40_u32 {
                let prompt = [prompt % 64, 7, 1 + prompt / 2];
                let response = whole(hand, &prompt, 3);
                for k in 0..response.len() {
                    let longer = [&prompt[..], &response[..k]].concat();
                    assert_eq!(whole(hand, &longer, 3), response[k..], "{prompt:?} + {k}");
                }
            }
        }
    }

    #[test]
    fn length_survives_a_continuation_with_another_sampling_seed() {
        let response = whole(hand(), &[5, 6, 7], 1);
        for k in OPENING as usize..response.len() {
            let longer = [&[5, 6, 7], &response[..k]].concat();
            assert_eq!(whole(hand(), &longer, 2).len(), response.len() - k);
        }
    }

    #[test]
    fn samples_of_one_prompt_differ_by_seed() {
        let samples: std::collections::BTreeSet<_> =
            (0..64).map(|seed| whole(hand(), &[5, 6, 7], seed)).collect();
        assert_eq!(samples.len(), 64);
        let lengths: std::collections::BTreeSet<_> = samples.iter().map(Vec::len).collect();
        assert!(lengths.len() > 30, "lengths of samples differ too, got {lengths:?}");
    }

    #[test]
    fn mean_length_is_the_one_asked() {
        let total: usize = (0..2_000).map(|seed| whole(hand(), &[9, 9], seed).len()).sum();
        let mean = total as f64 / 2_000.0;
        // Standard error: 256 × sqrt(exp(0.36) − 1) / sqrt(2000) = 3.8 tokens.
        assert!((mean - 256.0).abs() < 16.0, "got {mean}");
    }

    #[test]
    fn end_token_comes_last_and_only_once_and_never_when_ignored() {
        let eos = hand().eos_token_id;
        for prompt in 0..200 {
            let tokens = whole(hand(), &[prompt, 1], 0);
            assert_eq!(tokens.iter().filter(|id| **id == eos).count(), 1);
            assert_eq!(tokens.last(), Some(&eos));
        }
        let mut response = hand().answer(&[5], 0);
        assert!((0..5_000).all(|_| response.write(true).0.id != eos));
    }

    #[test]
    fn tokens_are_in_the_vocabulary_with_finite_negative_logprobs() {
        let hand = Handwriting { vocabulary: 77, ..hand() };
        let mut response = hand.answer(&[5, 6], 4);
        for _ in 0..2_000 {
            let (token, _) = response.write(true);
            assert!(token.id < 77 && (1..=77).contains(&token.rank), "{token:?}");
            assert!(token.logprob.is_finite() && token.logprob < 0.0, "{token:?}");
        }
    }
}
