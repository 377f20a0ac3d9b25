//! Pages of metrics: recorded ones, those of many ranks, and nonsense.

use proptest::prelude::*;

use super::page::PageReader;
use super::*;

fn read(page: &[u8], families: Families) -> EngineLoad {
    let mut reader = PageReader::new(families);
    reader.push(page).expect("small");
    reader.finish()
}

fn recorded(name: &str) -> EngineLoad {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/goldens");
    read(&std::fs::read(format!("{folder}/{name}")).expect("a recording"), VLLM)
}

#[test]
fn recorded_pages_are_read() {
    let loads = ["idle", "3-running", "16-running-1-waiting", "paused"]
        .map(|name| recorded(&format!("vllm-0.32/metrics-{name}.txt")));
    assert_eq!(loads.map(|load| load.running), [Some(0), Some(3), Some(16), Some(0)]);
    assert_eq!(loads.map(|load| load.waiting), [Some(0), Some(0), Some(1), Some(0)]);
    assert_eq!(loads[0].generated_tokens, Some(473));
    assert_eq!(loads[2].kv_cache_use, Some(0.002_380_516_388_939_768_5));
    assert_eq!((loads[2].preemptions, loads[2].first_tokens), (None, None), "not recorded");
}

/// The recording holds four families; the others are as its source has them.
#[test]
fn every_family_of_vllm_is_read_and_its_ranks_are_added() {
    let of_rank = |rank: u32| {
        format!(
            r#"vllm:num_requests_running{{engine="{rank}",model_name="m"}} 3.0
vllm:num_requests_waiting{{engine="{rank}",model_name="m"}} 1.0
vllm:num_requests_waiting_by_reason{{engine="{rank}",model_name="m",reason="capacity"}} 9.0
vllm:kv_cache_usage_perc{{engine="{rank}",model_name="m"}} 0.{rank}
vllm:num_preemptions_total{{engine="{rank}",model_name="m"}} 2.0
vllm:prefix_cache_queries_total{{engine="{rank}",model_name="m"}} 100.0
vllm:prefix_cache_hits_total{{engine="{rank}",model_name="m"}} 40.0
vllm:generation_tokens_total{{engine="{rank}",model_name="m"}} 1.5e+03
vllm:time_to_first_token_seconds_bucket{{engine="{rank}",le="0.1",model_name="m"}} 8.0
vllm:time_to_first_token_seconds_count{{engine="{rank}",model_name="m"}} 8.0
vllm:time_to_first_token_seconds_sum{{engine="{rank}",model_name="m"}} 2.0
"#
        )
    };
    let page: String = [2, 7, 4].map(of_rank).concat();
    let expected = EngineLoad {
        running: Some(9),
        waiting: Some(3),
        kv_cache_use: Some(0.7),
        generated_tokens: Some(4500),
        first_tokens: Some(Mean { sum: 6.0, count: 24.0 }),
        preemptions: Some(6),
        prefix_tokens: Some(300),
        prefix_hits: Some(120),
        expert_balance: None,
    };
    assert_eq!(read(page.as_bytes(), VLLM), expected);
}

#[test]
fn every_family_of_sglang_is_read_and_tensor_parallel_ranks_count_once() {
    let page = r#"
sglang:num_running_reqs{dp_rank="0",tp_rank="0"} 3
sglang:num_running_reqs{dp_rank="0",tp_rank="1"} 3
sglang:num_running_reqs{dp_rank="1",tp_rank="2"} 4
sglang:num_queue_reqs{dp_rank="0",tp_rank="0"} 1
sglang:token_usage{dp_rank="0",tp_rank="0"} 0.3
sglang:full_token_usage{dp_rank="1",tp_rank="2"} 0.5
sglang:num_retracted_requests_total{dp_rank="0",tp_rank="0"} 5
sglang:num_retracted_reqs{dp_rank="0",tp_rank="0"} 9
sglang:generation_tokens_total{model_name="m"} 700
sglang:prompt_tokens_total{model_name="m"} 90
sglang:cached_tokens_total{model_name="m"} 30
sglang:time_to_first_token_seconds_sum{model_name="m"} 1.5
sglang:time_to_first_token_seconds_count{model_name="m"} 3
sglang:eplb_balancedness_sum{dp_rank="0",forward_mode="decode"} 60
sglang:eplb_balancedness_count{dp_rank="0",forward_mode="decode"} 100
sglang:eplb_balancedness_sum{dp_rank="0",forward_mode="extend"} 20
sglang:eplb_balancedness_count{dp_rank="0",forward_mode="extend"} 100
"#;
    let expected = EngineLoad {
        running: Some(7),
        waiting: Some(1),
        kv_cache_use: Some(0.5),
        generated_tokens: Some(700),
        first_tokens: Some(Mean { sum: 1.5, count: 3.0 }),
        preemptions: Some(5),
        prefix_tokens: Some(90),
        prefix_hits: Some(30),
        expert_balance: Some(Mean { sum: 80.0, count: 200.0 }),
    };
    assert_eq!(read(page.as_bytes(), SGLANG), expected);
}

#[test]
fn page_of_another_kind_says_nothing() {
    let page = b"sglang:num_running_reqs 3\nprocess_open_fds 9\n<html>502</html>";
    assert_eq!(read(page, VLLM), EngineLoad::default());
}

#[test]
fn overlong_lines_are_passed_over_and_overlong_pages_refused() {
    let mut reader = PageReader::new(VLLM);
    let label = "x".repeat(9 << 10);
    let long = format!("vllm:num_requests_running{{a=\"{label}\"}} 7\nvllm:num_requests_waiting 2");
    reader.push(long.as_bytes()).expect("small");
    let load = reader.finish();
    assert_eq!((load.running, load.waiting), (None, Some(2)));

    let mut reader = PageReader::new(VLLM);
    let piece = vec![b'x'; 8 << 20];
    let refused = (0..5).map(|_| reader.push(&piece)).find_map(Result::err);
    assert!(refused.is_some_and(|error| error.to_string().contains("at most")));
}

#[test]
fn mean_is_of_what_came_between_two_readings() {
    let earlier = Mean { sum: 10.0, count: 4.0 };
    assert_eq!(Mean { sum: 16.0, count: 6.0 }.since(earlier), Some(3.0));
    assert_eq!(earlier.since(earlier), None);
    assert_eq!(Mean::default().since(earlier), None, "it was started anew");
}

/// Pages of true lines, broken ones and plain bytes.
fn any_page() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..40),
        "(vllm:|sglang:)?(num_requests_running|num_requests_waiting|kv_cache_usage_perc)?\
         [{]?(engine=\"[0-9]\",?)?[}\"\\\\]? ?(-?[0-9]{1,30}(\\.[0-9e+]{1,4})?|NaN|[+]Inf)?\n"
            .prop_map(String::into_bytes),
    ];
    proptest::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn no_page_is_fatal_and_cuts_change_nothing(page in any_page(), cut in 1_usize..17) {
        let whole = read(&page, VLLM);
        let mut reader = PageReader::new(VLLM);
        for piece in page.chunks(cut) {
            reader.push(piece).expect("small");
        }
        prop_assert_eq!(reader.finish(), whole);
        prop_assert!(whole.kv_cache_use.is_none_or(|share| (0.0..=1.0).contains(&share)));
    }
}
