//! Tables of input that is wrong, each with a word that the answer must have.

use serde_json::{Value, json};

use crate::socket::asks::{
    self, AppendItem, Batch, CompleteItem, FailItem, LeaseAsk, RenewItem, ScoreItem,
};

fn refusal_of<T>(answer: Result<T, super::super::refusal::Refusal>, body: &Value) -> String {
    match answer {
        Ok(_) => panic!("{body} must be refused"),
        Err(refusal) => refusal.message().to_owned(),
    }
}

#[test]
fn wrong_lease_calls_are_refused_with_the_field() {
    for (body, word) in [
        (json!({}), "missing field `worker`"),
        (json!([]), "expected a lease call"),
        (json!({"worker": "a", "limit": 1}), "weights_version must be given"),
        (json!({"worker": "a", "limit": 0, "weights_version": 0}), "limit must be 1 to 128"),
        (json!({"worker": "a", "limit": 129, "weights_version": 0}), "limit must be 1 to 128"),
        (json!({"worker": "a", "limit": -1, "weights_version": 0}), "invalid value"),
        (json!({"worker": "", "limit": 1, "weights_version": 0}), "worker must match"),
        (json!({"worker": "a b", "limit": 1, "weights_version": 0}), "worker must match"),
        (json!({"worker": "x".repeat(65), "limit": 1, "weights_version": 0}), "worker must match"),
        (json!({"worker": "a", "limit": 1, "weights_version": "default"}), "expected u64"),
        (json!({"worker": "a", "limit": 1, "weights_version": 1_u64 << 53}), "weights_version"),
        (json!({"worker": "a", "limit": 1, "weights_version": 1.5}), "expected u64"),
        (json!({"worker": "a", "limit": 1, "weights_version": 0, "limt": 3}), "unknown field"),
        (json!({"worker": "a", "limit": 1, "stage": "score"}), "unknown variant `score`"),
        (json!({"worker": "a", "limit": 1, "weights_version": 0, "wait_ms": 30_001}), "wait_ms"),
        (json!({"worker": "a", "limit": 1, "weights_version": 0, "request_id": ""}), "request_id"),
        (
            json!({"worker": "a", "limit": 1, "weights_version": 0, "engine": "e".repeat(129)}),
            "engine must have 1 to 128 bytes",
        ),
    ] {
        let read = asks::read::<LeaseAsk>(body.to_string().as_bytes());
        let said = refusal_of(read.and_then(LeaseAsk::job), &body);
        assert!(said.contains(word), "{body}: {said}");
    }
}

#[test]
fn wrong_tokens_are_refused_with_their_place() {
    let item = |change: Value| {
        let mut item = json!({"unit": "g.0001", "fencing_token": 1, "offset": 0,
            "token_ids": [1, 2], "logprobs": [-1, null]});
        for (key, value) in change.as_object().expect("an object") {
            item[key] = value.clone();
        }
        json!({"worker": "a", "units": [item]})
    };
    let good = item(json!({}));
    asks::read::<Batch<AppendItem>>(good.to_string().as_bytes())
        .and_then(Batch::job)
        .expect("good");
    for (body, word) in [
        (json!({"worker": "a", "units": []}), "number of units must be 1 to 128"),
        (json!({"worker": "a", "units": vec![good["units"][0].clone(); 129]}), "got 129"),
        (item(json!({"unit": "g.1"})), "unit id must match"),
        (item(json!({"unit": 7})), "expected a string"),
        (item(json!({"fencing_token": "1"})), "expected u64"),
        (item(json!({"fencing_token": -1})), "expected u64"),
        (item(json!({"offset": null})), "invalid type: null"),
        (item(json!({"offset": 1_u64 << 32})), "expected u32"),
        (item(json!({"token_ids": []})), "logprobs must have one number for each token"),
        (item(json!({"token_ids": [], "logprobs": []})), "units[0]: token_ids must have 1 to"),
        (item(json!({"token_ids": [1, 2, 3]})), "got 2 for 3 tokens"),
        (item(json!({"token_ids": [1.5, 2]})), "expected i32"),
        (item(json!({"token_ids": [1_u64 << 31, 2]})), "expected i32"),
        (item(json!({"logprobs": ["nan", 1]})), "expected f32"),
        (item(json!({"weights_version": 1_u64 << 53})), "weights_version must be below 2^53"),
        (item(json!({"tokens": [1]})), "unknown field `tokens`"),
    ] {
        let read = asks::read::<Batch<AppendItem>>(body.to_string().as_bytes());
        let said = refusal_of(read.and_then(Batch::job), &body);
        assert!(said.contains(word), "{body}: {said}");
    }
    let long = vec![0; crate::workers::TAIL_TOKENS_MAX + 1];
    let body = item(json!({"token_ids": long, "logprobs": long}));
    let read = asks::read::<Batch<AppendItem>>(body.to_string().as_bytes());
    assert!(refusal_of(read.and_then(Batch::job), &json!("long")).contains("several calls"));
}

#[test]
fn wrong_ends_are_refused() {
    let body = |rest: Value| {
        let mut item = json!({"unit": "g.0001", "fencing_token": 1});
        for (key, value) in rest.as_object().expect("an object") {
            item[key] = value.clone();
        }
        json!({"worker": "a", "units": [item]})
    };
    for (rest, word) in [
        (json!({}), "missing field `finish`"),
        (json!({"finish": {"reason": "abort"}}), "unknown variant `abort`"),
        (json!({"finish": {"reason": "stop"}, "offset": 3}), "must come together"),
        (json!({"finish": {"reason": "stop"}, "token_ids": [1]}), "must come together"),
        (json!({"finish": {"reason": "stop"}, "offset": 1, "token_ids": [1], "logprobs": []}), "0"),
    ] {
        let body = body(rest);
        let read = asks::read::<Batch<CompleteItem>>(body.to_string().as_bytes());
        let said = refusal_of(read.and_then(Batch::job), &body);
        assert!(said.contains(word), "{body}: {said}");
    }
    let body_of_score =
        body(json!({"value": 1, "scorer_version": "v", "metadata": "m".repeat(4097)}));
    let read = asks::read::<Batch<ScoreItem>>(body_of_score.to_string().as_bytes());
    assert!(refusal_of(read.and_then(Batch::job), &body_of_score).contains("metadata"));
    let fail = body(json!({"problem": ""}));
    let read = asks::read::<Batch<FailItem>>(fail.to_string().as_bytes());
    assert!(refusal_of(read.and_then(Batch::job), &fail).contains("problem must have 1 to 4096"));
    let renew = body(json!({"waiting": "engine_pause"}));
    let read = asks::read::<Batch<RenewItem>>(renew.to_string().as_bytes());
    assert!(refusal_of(read.and_then(Batch::renew_job), &renew).contains("unknown variant"));
}

#[test]
fn garbage_is_refused_and_nothing_panics() {
    for body in ["", "null", "{", "\u{0}", "[[[[", "{\"worker\":", "1e999", "\"\\ud800\""] {
        assert!(asks::read::<LeaseAsk>(body.as_bytes()).is_err(), "{body:?}");
        assert!(asks::read::<Batch<AppendItem>>(body.as_bytes()).is_err(), "{body:?}");
    }
    assert!(asks::read::<LeaseAsk>(&[0xff, 0xfe]).is_err());
}
