//! `agent/openapi.json` against the router and the readers.

use std::collections::BTreeSet;

use axum::http::StatusCode;
use serde_json::Value;

use crate::socket::asks::{
    self, AppendItem, Batch, CompleteItem, FailItem, HandBackItem, LeaseAsk, RenewItem, ScoreItem,
};
use crate::socket::refusal::Code;
use crate::socket::{OPENAPI, routes};

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

#[test]
fn every_example_of_a_request_is_taken() {
    let document = document();
    let example = |path: &str| {
        let body = &document["paths"][path]["post"]["requestBody"]["content"]["application/json"];
        assert!(body["example"].is_object(), "{path} has no example");
        serde_json::to_vec(&body["example"]).expect("JSON")
    };
    type Taken = Result<(), String>;
    fn job<T, U>(read: Result<T, super::super::refusal::Refusal>, job: impl Fn(T) -> U) -> Taken
    where
        U: IntoTaken,
    {
        read.map_err(|refusal| refusal.message().to_owned()).and_then(|ask| job(ask).taken())
    }
    let all: [(&str, &dyn Fn(&[u8]) -> Taken); 7] = [
        ("/v1/lease", &|body| job(asks::read::<LeaseAsk>(body), LeaseAsk::job)),
        ("/v1/append", &|body| job(asks::read::<Batch<AppendItem>>(body), Batch::job)),
        ("/v1/complete", &|body| job(asks::read::<Batch<CompleteItem>>(body), Batch::job)),
        ("/v1/score", &|body| job(asks::read::<Batch<ScoreItem>>(body), Batch::job)),
        ("/v1/hand-back", &|body| job(asks::read::<Batch<HandBackItem>>(body), Batch::job)),
        ("/v1/fail", &|body| job(asks::read::<Batch<FailItem>>(body), Batch::job)),
        ("/v1/renew", &|body| job(asks::read::<Batch<RenewItem>>(body), Batch::renew_job)),
    ];
    assert_eq!(all.len(), routes().iter().filter(|(method, ..)| *method == "post").count());
    for (path, take) in all {
        assert_eq!(take(&example(path)), Ok(()), "{path}");
    }
}

trait IntoTaken {
    fn taken(self) -> Result<(), String>;
}

impl<T> IntoTaken for Result<T, super::super::refusal::Refusal> {
    fn taken(self) -> Result<(), String> {
        self.map(drop).map_err(|refusal| refusal.message().to_owned())
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
