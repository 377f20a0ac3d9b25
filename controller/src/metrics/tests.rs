//! Laws of the controller's metrics.

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
