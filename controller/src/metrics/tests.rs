//! Laws of the controller's metrics.

use std::collections::BTreeMap;

use ebbtide_queue::control::NodeState;

use super::*;

#[test]
fn every_metric_has_the_prefix_and_its_own_name() {
    let metrics = Metrics::new().expect("names differ");
    metrics.api_calls.count("describe_groups", "ok");
    metrics.show_tokens(&tokens(3, 3));
    let text = metrics.render();
    assert!(text.contains("ebbtide_api_calls_total{"), "{text}");
    let names = text.lines().filter(|line| !line.starts_with('#'));
    assert!(names.into_iter().all(|line| line.starts_with("ebbtide_")), "{text}");
}

#[test]
fn group_that_is_no_more_has_no_metrics_until_it_comes_back() {
    let metrics = Metrics::new().expect("names differ");
    let (cancel, role) = ("cancel_drain", Role::Environment);
    let action =
        Action::CancelDrain { replica: "n1".parse().expect("valid"), request_id: "1".to_owned() };
    let count = |metrics: &Metrics| {
        metrics.count_decision(role, &action, "items");
        let text = metrics.render();
        let line = text.lines().find(|line| {
            line.starts_with("ebbtide_decision_total") && line.contains("role=\"environment\"")
        });
        line.expect("it is shown").to_owned()
    };
    assert!(count(&metrics).contains(cancel) && count(&metrics).ends_with(" 2"));
    metrics.forget(role);
    metrics.forget(role);
    let text = metrics.render();
    assert!(!text.contains("role=\"environment\""), "{text}");
    assert!(text.contains("ebbtide_replicas_desired{role=\"rollout\"}"), "{text}");
    assert!(count(&metrics).ends_with(" 1"), "it begins anew");
}

fn tokens(stale: u64, preserved: u64) -> TokenCounts {
    let wasted = BTreeMap::from([("stale".to_owned(), stale)]);
    TokenCounts { wasted, preserved, ..TokenCounts::default() }
}

#[test]
fn tokens_are_those_of_the_queue_however_often_they_are_read() {
    let metrics = Metrics::new().expect("names differ");
    for count in [3, 3, 8, 0] {
        metrics.show_tokens(&tokens(count, 100 * count));
    }
    let text = metrics.render();
    for line in [
        r#"ebbtide_tokens_wasted_total{cause="stale",role="rollout"} 8"#,
        r#"ebbtide_tokens_preserved_total{role="rollout"} 800"#,
    ] {
        assert!(text.contains(line), "{text}");
    }
}

#[test]
fn idle_survivors_are_counted_and_unknown_is_not_zero() {
    let metrics = Metrics::new().expect("names differ");
    let now = UnixMillis(100_000);
    let node = |idle_since| NodeRecord {
        idle_since,
        heartbeat: now,
        ..NodeRecord::new("n/b/agent-p".parse().expect("valid"), NodeState::Drained)
    };
    let nodes = vec![node(Some(UnixMillis(30_000))), node(Some(UnixMillis(90_000))), node(None)];
    let view = ControlView { now, nodes, ..ControlView::default() };
    for (view, nodes, seconds) in
        [(Some(&view), "2", "70"), (Some(&ControlView::default()), "0", "0"), (None, "NaN", "NaN")]
    {
        metrics.show_idle(view);
        let text = metrics.render();
        for line in [
            format!("ebbtide_idle_survivor_nodes{{role=\"rollout\"}} {nodes}"),
            format!("ebbtide_idle_survivor_seconds{{role=\"rollout\"}} {seconds}"),
        ] {
            assert!(text.contains(&line), "{line}\n{text}");
        }
    }
}
