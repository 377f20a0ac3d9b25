//! Any bytes at all, and documented bodies with some bytes changed: read or refused, never a panic.

use ebbtide_core::event::parse_event;
use ebbtide_core::notice::parse_target_lifecycle;
use proptest::prelude::*;

use crate::cases;
use crate::documented::{READERS, documented, through_sns};
use crate::laws::read_clearly;

/// A documented body in which some places were changed.
fn changed() -> impl Strategy<Value = Vec<u8>> {
    let bodies: Vec<String> = documented().into_iter().map(|body| body.text).collect();
    let change = (any::<prop::sample::Index>(), 0_u8..4, prop::collection::vec(any::<u8>(), 0..12));
    (prop::sample::select(bodies), prop::collection::vec(change, 1..4)).prop_map(
        |(body, changes)| {
            let mut bytes = body.into_bytes();
            for (place, how, with) in changes {
                let at = place.index(bytes.len().max(1)).min(bytes.len());
                match how {
                    0 => bytes.truncate(at),
                    1 => bytes.splice(at..at, with).for_each(drop),
                    2 => bytes.splice(at..(at + with.len()).min(bytes.len()), with).for_each(drop),
                    _ => bytes.drain(at..(at + with.len()).min(bytes.len())).for_each(drop),
                }
            }
            bytes
        },
    )
}

/// Gives the bytes to every reader, as the adapters do.
fn check(bytes: &[u8]) -> Result<(), TestCaseError> {
    let text = String::from_utf8_lossy(bytes);
    for reader in READERS {
        read_clearly(reader, &text);
    }
    let _ = parse_target_lifecycle(&text);
    let Ok(event) = parse_event(&text) else { return Ok(()) };
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    prop_assert!(event.id.len() <= 96 && event.id.chars().all(is_plain), "{}", event.id);
    for instance in event.instances() {
        prop_assert!(instance.0.starts_with("i-") && instance.0.len() <= 32, "{instance}");
    }
    Ok(())
}

proptest! {
    #![proptest_config(cases(500))]

    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        check(&bytes)?;
    }

    #[test]
    fn changed_bodies_are_read_or_refused(bytes in changed()) {
        check(&bytes)?;
    }

}

proptest! {
    // Texts of any characters take the time.
    #![proptest_config(cases(100))]

    #[test]
    fn any_members_are_read_or_refused(
        detail_type in "EC2 Spot Instance Interruption Warning|AWS Health Event|\\PC{0,40}",
        detail in "\\{\"(instance-id|service|EC2InstanceId)\":(\"\\PC{0,40}\"|[0-9]{1,20}|null)\\}",
        time in "\\PC{0,30}|-?[0-9]{1,20}|[0-9]{4}-[0-9]{2}-[0-9]{2}T00:00:00Z",
        action in "\\PC{0,20}|terminate",
        day in "\\PC{0,30}|[0-9 ]{1,3} [A-Z][a-z]{2} [0-9]{1,6} [0-9:]{5,9} GMT",
    ) {
        let event =
            format!(r#"{{"detail-type":"{detail_type}","time":"{time}","detail":{detail}}}"#);
        check(event.as_bytes())?;
        check(through_sns(&event).as_bytes())?;
        check(format!(r#"{{"action":"{action}","time":"{time}"}}"#).as_bytes())?;
        check(format!(r#"{{"noticeTime":"{time}"}}"#).as_bytes())?;
        check(format!(r#"[{{"Code":"{action}","NotBefore":"{day}"}}]"#).as_bytes())?;
    }
}
