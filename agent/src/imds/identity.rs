//! Who the instance is: id, zone, type and market, learned once the service answers, however late.
//! An answer that is none is asked again: a wrong id would hide the node from the queue of events.

use std::sync::PoisonError;
use std::time::Duration;

use ebbtide_core::observation::InstanceId;
use ebbtide_core::policy::Market;
use ebbtide_queue::client::Backoff;
use tokio::time::sleep;

use super::{ImdsClient, ImdsError};
use crate::shared::{InstanceFacts, Shared};

/// Bounds of the pause between two tries.
const PAUSE_MIN: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// Failures in a row after which it is said, once, why the instance is not known: a service that
/// starts late is nothing to tell.
const FAILURES_TOLD: u32 = 5;

/// Longest word, in bytes. Today's longest, the zones of Wavelength, have 22.
const WORD_BYTES_MAX: usize = 64;

/// Characters of a foreign answer that an error repeats.
const SHOWN_CHARACTERS: usize = 80;

/// Learns the identity and ends; tries until it is known.
pub(super) async fn learn(shared: &Shared, imds: &ImdsClient) {
    let mut backoff = Backoff::new(PAUSE_MIN, PAUSE_MAX);
    loop {
        match read(imds).await {
            Ok(facts) => {
                tracing::info!(
                    instance_id = facts.instance_id,
                    zone = facts.zone,
                    market = ?facts.market,
                    "instance known"
                );
                *shared.identity.lock().unwrap_or_else(PoisonError::into_inner) = facts;
                return;
            }
            Err(error) => {
                if backoff.failures() == FAILURES_TOLD {
                    tracing::warn!(%error, "instance still not known");
                }
                sleep(backoff.next_pause()).await;
            }
        }
    }
}

async fn read(imds: &ImdsClient) -> Result<InstanceFacts, Unknown> {
    let instance_id = imds.read("/latest/meta-data/instance-id").await?;
    let zone = imds.read("/latest/meta-data/placement/availability-zone").await?;
    let instance_type = imds.read("/latest/meta-data/instance-type").await?;
    let life_cycle = imds.read("/latest/meta-data/instance-life-cycle").await?;
    facts_of(
        instance_id.as_deref(),
        zone.as_deref(),
        instance_type.as_deref(),
        life_cycle.as_deref(),
    )
}

/// Why the instance is not known.
#[derive(Debug, thiserror::Error)]
enum Unknown {
    #[error(transparent)]
    Read(#[from] ImdsError),
    #[error("{what} must be {expected}, got {got:?}")]
    Odd { what: &'static str, expected: &'static str, got: Option<String> },
}

/// What the answers say; a node may have no zone, type or market, but none that is no word.
fn facts_of(
    instance_id: Option<&str>,
    zone: Option<&str>,
    instance_type: Option<&str>,
    life_cycle: Option<&str>,
) -> Result<InstanceFacts, Unknown> {
    let odd = |what, expected, text: Option<&str>| {
        let got = text.map(|text| text.chars().take(SHOWN_CHARACTERS).collect());
        Unknown::Odd { what, expected, got }
    };
    let id = instance_id.and_then(|text| InstanceId::of_ec2(text.trim()));
    let id = id.ok_or_else(|| odd("instance-id", "an id like i-0123456789abcdef0", instance_id))?;
    let word = |what, text: Option<&str>| match text.map(str::trim) {
        Some(word) if is_word(word) => Ok(Some(word.to_owned())),
        None => Ok(None),
        Some(_) => Err(odd(what, "one word", text)),
    };
    let market = match life_cycle.map(str::trim) {
        Some("spot") => Some(Market::Spot),
        Some("on-demand") => Some(Market::OnDemand),
        _ => None,
    };
    Ok(InstanceFacts {
        instance_id: Some(id.0),
        zone: word("placement/availability-zone", zone)?,
        instance_type: word("instance-type", instance_type)?,
        market,
    })
}

/// Letters, digits, `-` and `.`, as in `us-east-2b` and `p5en.48xlarge`.
fn is_word(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
    !text.is_empty() && text.len() <= WORD_BYTES_MAX && text.bytes().all(is_plain)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn documented_answers_are_read() {
        let life_cycle = Some("spot\n");
        let read =
            facts_of(Some("i-0abc"), Some("us-east-2b\n"), Some("p5en.48xlarge"), life_cycle);
        let expected = InstanceFacts {
            instance_id: Some("i-0abc".to_owned()),
            zone: Some("us-east-2b".to_owned()),
            instance_type: Some("p5en.48xlarge".to_owned()),
            market: Some(Market::Spot),
        };
        assert_eq!(read.expect("readable"), expected);
        let bare = facts_of(Some("i-0abc"), None, None, Some("scheduled"));
        let expected =
            InstanceFacts { instance_id: Some("i-0abc".to_owned()), ..InstanceFacts::default() };
        assert_eq!(bare.expect("readable"), expected);
    }

    #[test]
    fn page_of_another_service_is_no_identity() {
        let page = Some("<?xml version=\"1.0\"?>");
        for (id, zone, instance_type) in [
            (None, None, None),
            (page, None, None),
            (Some("i-0abc"), page, None),
            (Some("i-0abc"), None, page),
            (Some("i-0abc"), Some(""), None),
        ] {
            let refused = facts_of(id, zone, instance_type, None).expect_err("no identity");
            assert!(refused.to_string().contains(" must be "), "{refused}");
        }
    }

    proptest! {
        #[test]
        fn whatever_is_learned_can_stand_in_a_record(
            id in "i-[0-9a-f]{1,17}|\\PC{0,40}",
            zone in proptest::option::of("[a-z]{2}-[a-z]{4}-[0-9][a-f]|\\PC{0,200}"),
            life_cycle in proptest::option::of("spot|on-demand|\\PC{0,20}"),
        ) {
            let read = facts_of(Some(&id), zone.as_deref(), None, life_cycle.as_deref());
            let Ok(facts) = read else { return Ok(()) };
            prop_assert_eq!(facts.instance_id.as_deref(), Some(id.trim()));
            prop_assert_eq!(facts.zone.as_deref(), zone.as_deref().map(str::trim));
            prop_assert!(facts.zone.is_none_or(|zone| is_word(&zone)));
            let is_spot = life_cycle.is_some_and(|word| word.trim() == "spot");
            prop_assert_eq!(facts.market == Some(Market::Spot), is_spot);
        }
    }
}
