//! `agent/openapi.json` against the router and the readers.

use std::collections::BTreeSet;

use axum::http::StatusCode;
use ebbtide_core::notice::NoticeKind;
use serde_json::Value;

use crate::socket::asks::{
    self, AppendItem, Batch, CompleteItem, FailItem, HandBackItem, LeaseAsk, RenewItem, ScoreItem,
};
use crate::socket::refusal::Code;
use crate::socket::{OPENAPI, routes};
use crate::workers::{
    BODY_BYTES_MAX, STREAMS_PER_WORKER, TAIL_TOKENS_MAX, UNITS_PER_WORKER, WAIT_MAX, WORKERS_MAX,
};

fn document() -> Value {
    serde_json::from_str(OPENAPI).expect("the file is JSON")
}

#[test]
fn every_route_is_described_and_every_description_is_a_route() {
    let served: BTreeSet<(String, String)> =
        routes().iter().map(|(method, path, _)| ((*path).into(), (*method).into())).collect();
    let document = document();
    let paths = document["paths"].as_object().expect("paths");
    let described: BTreeSet<(String, String)> = paths
        .iter()
        .flat_map(|(path, item)| {
            let methods = item.as_object().expect("operations").keys();
            methods.map(move |method| (path.clone(), method.clone()))
        })
        .collect();
    assert_eq!(served, described);
}

/// What a body comes to at this path, as the route reads it.
fn take(path: &str, body: &[u8]) -> Result<(), String> {
    let taken = match path {
        "/v1/lease" => asks::read::<LeaseAsk>(body).and_then(LeaseAsk::job).map(drop),
        "/v1/append" => asks::read::<Batch<AppendItem>>(body).and_then(Batch::job).map(drop),
        "/v1/complete" => asks::read::<Batch<CompleteItem>>(body).and_then(Batch::job).map(drop),
        "/v1/score" => asks::read::<Batch<ScoreItem>>(body).and_then(Batch::job).map(drop),
        "/v1/hand-back" => asks::read::<Batch<HandBackItem>>(body).and_then(Batch::job).map(drop),
        "/v1/fail" => asks::read::<Batch<FailItem>>(body).and_then(Batch::job).map(drop),
        "/v1/renew" => asks::read::<Batch<RenewItem>>(body).and_then(Batch::renew_job).map(drop),
        other => panic!("no reader is known for {other}"),
    };
    taken.map_err(|refusal| refusal.message().to_owned())
}

#[test]
fn every_example_of_a_request_is_taken() {
    let document = document();
    for (_, path, _) in routes().iter().filter(|(method, ..)| *method == "post") {
        let body = &document["paths"][path]["post"]["requestBody"]["content"]["application/json"];
        assert!(body["example"].is_object(), "{path} has no example");
        let body = serde_json::to_vec(&body["example"]).expect("JSON");
        assert_eq!(take(path, &body), Ok(()), "{path}");
    }
}

#[test]
fn every_call_of_the_guide_is_taken_and_its_limits_are_those_of_the_code() {
    let guide = include_str!("../../../../docs/custom-workers.md");
    let calls = guide.split("\napi ").skip(1).map(|call| {
        let (name, rest) = call.split_once(" -d '").expect("a body");
        (format!("/v1/{name}"), rest.split('\'').next().expect("its end"))
    });
    let calls: Vec<(String, &str)> = calls.collect();
    assert_eq!(calls.len(), 4);
    for (path, body) in calls {
        assert_eq!(take(&path, body.as_bytes()), Ok(()), "{path} {body}");
    }
    for limit in [
        format!("| workers on a node | {WORKERS_MAX} |"),
        format!("one call names | {UNITS_PER_WORKER} |"),
        format!("| streams of notices of one worker | {STREAMS_PER_WORKER} |"),
        format!("| bytes of a request | {} MiB |", BODY_BYTES_MAX >> 20),
        format!("| tokens in one `append` | {},000 |", TAIL_TOKENS_MAX / 1_000),
        format!("| `wait_ms` | {},000 |", WAIT_MAX.as_secs()),
    ] {
        assert!(guide.contains(&limit), "the guide does not say {limit}");
    }
}

#[test]
fn every_refusal_is_described_with_its_code() {
    let document = document();
    let codes = &document["components"]["schemas"]["Error"]["properties"]["error"]["properties"];
    let described: BTreeSet<String> =
        serde_json::from_value(codes["code"]["enum"].clone()).expect("words");
    let known: BTreeSet<String> = Code::ALL
        .iter()
        .map(|code| serde_json::to_value(code).expect("a word").as_str().expect("text").to_owned())
        .collect();
    assert_eq!(described, known);
    assert_eq!(Code::GateClosed.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(document["paths"]["/v1/lease"]["post"]["responses"]["503"].is_object());
}

#[test]
fn every_kind_of_notice_is_described() {
    let document = document();
    let kind = &document["components"]["schemas"]["Notice"]["properties"]["kind"]["enum"];
    let described: Vec<Option<&str>> =
        kind.as_array().expect("words").iter().map(Value::as_str).collect();
    for kind in NoticeKind::ALL {
        assert!(described.contains(&Some(kind.as_str())), "{kind:?}");
    }
    assert_eq!(described.len(), NoticeKind::ALL.len() + 1, "and none");
}

#[test]
fn every_reference_leads_somewhere_and_every_schema_is_used() {
    let document = document();
    let text = OPENAPI;
    let schemas = document["components"]["schemas"].as_object().expect("schemas");
    for (name, schema) in schemas {
        assert!(schema["description"].is_string(), "{name} says nothing");
        let is_used = text.contains(&format!("\"#/components/schemas/{name}\""))
            || text.contains(&format!("({name}"));
        assert!(is_used, "{name} is used nowhere");
        let properties = schema["properties"].as_object().expect("properties");
        for required in schema["required"].as_array().expect("required") {
            let required = required.as_str().expect("a name");
            assert!(properties.contains_key(required), "{name} has no {required}");
        }
    }
    let references = text.split("\"#/components/schemas/").skip(1);
    for reference in references.filter_map(|rest| rest.split('"').next()) {
        assert!(schemas.contains_key(reference), "{reference} is nowhere");
    }
}
