//! What an operator should know of the pools, in words, beside their sizes.

use ebbtide_core::observation::PoolView;

/// What each provider remarks, and the newest failed launch of each pool that is short.
pub(crate) fn gather(pools: &[PoolView]) -> Vec<String> {
    pools.iter().flat_map(of_pool).collect()
}

fn of_pool(pool: &PoolView) -> Vec<String> {
    let Some(size) = pool.size.known() else { return Vec::new() };
    let mut texts = size.remarks.clone();
    let is_short = size.count() < size.desired;
    let failures = pool.activities.known().map_or(&[][..], |activities| &activities.failures);
    let newest = failures.iter().max_by_key(|failure| failure.at);
    texts.extend(newest.filter(|_| is_short).map(|failure| {
        format!("its last launch failed ({}): {}", failure.kind.as_str(), failure.message)
    }));
    texts.into_iter().map(|text| format!("pool {}: {text}", pool.name)).collect()
}

#[cfg(test)]
mod tests {
    use ebbtide_core::observation::{
        Activities, FailureKind, InstanceId, InstanceState, InstanceView, LaunchFailure, PoolSize,
        Signal,
    };
    use ebbtide_core::time::UnixMillis;

    use super::*;

    fn pool(desired: u32) -> PoolView {
        let failure = |at, message: &str| LaunchFailure {
            at: UnixMillis(at),
            kind: FailureKind::Capacity,
            message: message.to_owned(),
        };
        let instance = InstanceView::new(InstanceId("i-1".to_owned()), InstanceState::InService);
        PoolView {
            name: "spot".parse().expect("valid"),
            size: Signal::fresh(PoolSize {
                desired,
                instances: vec![instance],
                remarks: vec!["it is odd".to_owned()],
                ..PoolSize::default()
            }),
            activities: Signal::fresh(Activities {
                newest_at: None,
                failures: vec![failure(2, "new"), failure(1, "old")],
            }),
        }
    }

    #[test]
    fn last_failed_launch_is_told_while_the_pool_is_short() {
        let odd = "pool spot: it is odd";
        let failed = "pool spot: its last launch failed (capacity): new";
        assert_eq!(gather(&[pool(2)]), [odd, failed]);
        assert_eq!(gather(&[pool(1)]), [odd]);
        assert!(gather(&[PoolView::unread("spot".parse().expect("valid"), "away")]).is_empty());
    }
}
