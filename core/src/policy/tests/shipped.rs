//! The fleet policies that ship are valid, and every key in them is explained.

use super::*;
use crate::policy::Market;

pub(super) const GRPO_ASYNC: &str = include_str!("../../../../policies/grpo-async.yaml");
const RLHF_SYNC: &str = include_str!("../../../../policies/rlhf-sync.yaml");

#[test]
fn shipped_policies_are_valid() {
    for text in [GRPO_ASYNC, RLHF_SYNC] {
        assert_eq!(complaints(text), Vec::<String>::new());
    }
}

#[test]
fn grpo_async_prefers_spot_in_three_zones_and_falls_back_to_on_demand() {
    let policy = parse(GRPO_ASYNC).expect("valid");
    let markets: Vec<Market> = policy.rollout_pools().map(|pool| pool.market).collect();
    assert_eq!(markets, [Market::Spot, Market::Spot, Market::Spot, Market::OnDemand]);
    assert_eq!(policy.trainer.group_size, 8);
    let trainer = policy.trainer.pool.as_ref().and_then(|name| policy.pool(name));
    assert_eq!(trainer.map(|pool| pool.market), Some(Market::OnDemand));
}

#[test]
fn rlhf_sync_is_strictly_on_policy_with_one_sample() {
    let policy = parse(RLHF_SYNC).expect("valid");
    assert_eq!((policy.trainer.group_size, policy.staleness.max_lag), (1, 0));
    assert_eq!(policy.admission_ceiling_groups(), policy.buffer_max_groups());
}

/// A key may share the comment of the line above it, and is explained once for a whole list.
#[test]
fn every_key_has_a_comment_above_it() {
    for text in [GRPO_ASYNC, RLHF_SYNC] {
        let mut explained: Vec<String> =
            vec!["apiVersion".into(), "kind".into(), "metadata".into()];
        let mut is_under_comment = false;
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
            if line.starts_with('#') {
                is_under_comment = true;
                continue;
            }
            let key = line.trim_start_matches("- ").split(':').next().unwrap_or_default();
            let says_itself = ["spec", "name", "zone", "instanceType"].contains(&key);
            let is_explained = explained.iter().any(|known| known == key);
            let goes_on = ["minSamples", "maxReplicas", "bufferMaxSteps", "dollarsPerHour"];
            assert!(
                is_under_comment || is_explained || says_itself || goes_on.contains(&key),
                "{key} has no comment"
            );
            explained.push(key.to_owned());
            is_under_comment = false;
        }
    }
}
