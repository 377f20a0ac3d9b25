//! Case 18: whatever bodies and clocks say, what is left is never too much.

use std::time::Duration;

use ebbtide_core::notice::{InterruptionNotice, NoticeKind, SPOT_LEAD_MAX, parse_instance_action};
use ebbtide_core::time::UnixMillis;
use proptest::prelude::*;

use crate::cases;

/// A moment in the range of times that can be written.
fn moment() -> impl Strategy<Value = u64> {
    let now = 1_772_366_400_000_u64;
    prop_oneof![
        4 => (now - 400_000)..(now + 400_000),
        1 => 0..250_000_000_000_000_u64,
    ]
}

fn body(action: &str, time: u64) -> String {
    format!(r#"{{"action":"{action}","time":"{}"}}"#, UnixMillis(time))
}

proptest! {
    #![proptest_config(cases(500))]

    #[test]
    fn deadline_is_never_later_than_first_sight_plus_two_minutes(
        looks in prop::collection::vec(
            (prop::sample::select(vec!["terminate", "stop", "hibernate"]), moment(), moment()),
            1..12,
        ),
        asg_deadline in 0..100_000_u64,
    ) {
        let asg_deadline = Duration::from_secs(asg_deadline);
        let mut notice: Option<InterruptionNotice> = None;
        for (action, time, now) in looks {
            let announced = parse_instance_action(&body(action, time)).unwrap();
            let now = UnixMillis(now);
            let before = notice.and_then(|it| it.deadline);
            let first_sight = || InterruptionNotice::first_sight(announced, asg_deadline, now);
            prop_assert!(first_sight().deadline <= Some(now.plus(SPOT_LEAD_MAX)));
            let seen = notice.get_or_insert_with(first_sight);
            seen.see_again(announced, asg_deadline, now);
            let deadline = seen.deadline.expect("a Spot notice has a deadline");
            prop_assert!(deadline <= seen.first_seen.plus(SPOT_LEAD_MAX), "{:?}", seen);
            prop_assert!(before.is_none_or(|before| deadline <= before), "{:?}", seen);
            if announced.kind == NoticeKind::SpotHibernate {
                prop_assert!(deadline <= now, "hibernation begins at once: {:?}", seen);
            }
        }
    }
}
