//! AWS as it can be: moto, and in front of it throttling, refusals, slow and lost answers; and what
//! moto does not enforce: all or nothing, one zone, tokens, sizes above the maximum.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use ebbtide_controller::aws::{
    AwsSettings, Credentials, SdkConfig, SharedCredentialsProvider, load_config,
};
use ebbtide_harness::Moto;
use futures::stream;
use tokio::task::JoinHandle;

/// What befalls a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// It is refused with this code.
    Refused(&'static str),
    /// It takes this long.
    Slow(Duration),
    /// It is carried out, and its answer is cut off.
    ReplyLost,
    /// It is carried out for one node less than was asked for.
    OneShort,
    /// It is answered with this text, and not carried out.
    Answered(String),
    /// Its answer names nothing: EC2's answers are eventually consistent.
    ShowsNothing,
}

/// See the module; ended on drop.
pub struct FaultyAws {
    way: Way,
    url: String,
    task: JoinHandle<()>,
}

#[derive(Clone)]
struct Way {
    moto: String,
    state: Arc<Mutex<Faults>>,
}

#[derive(Default)]
struct Faults {
    /// What befalls the next calls of an action, and how many.
    faults: BTreeMap<&'static str, (Fault, u32)>,
    /// The actions of the calls that came, in that order.
    calls: Vec<String>,
    /// Machines that are left for fleets; none is any number.
    machines: Option<u32>,
    /// Requests of fleets by token, and how each was answered.
    tokens: BTreeMap<String, (String, String)>,
}

impl FaultyAws {
    pub async fn start(moto: &Moto) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let way = Way { moto: moto.url(), state: Arc::default() };
        let router = Router::new().fallback(pass_on).with_state(way.clone());
        let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { way, url, task }
    }

    /// A configuration of clients that go this way.
    pub async fn config(&self) -> SdkConfig {
        let region = Some("us-east-1".to_owned());
        let config =
            load_config(AwsSettings { region, endpoint_url: Some(self.url.clone()) }).await;
        let keys = Credentials::new("test", "test", None, None, "test");
        let keys = SharedCredentialsProvider::new(keys);
        config.into_builder().credentials_provider(keys).build()
    }

    /// The next `times` calls of an action go wrong.
    pub fn fail(&self, action: &'static str, fault: Fault, times: u32) {
        self.way.state.lock().unwrap().faults.insert(action, (fault, times));
    }

    /// How many nodes fleets can get from now on.
    pub fn set_machines(&self, machines: u32) {
        self.way.state.lock().unwrap().machines = Some(machines);
    }

    /// How many calls of an action came.
    pub fn calls(&self, action: &str) -> u32 {
        let calls = self.log().into_iter().filter(|call| call == action).count();
        u32::try_from(calls).unwrap()
    }

    /// The actions of all calls that came, in that order.
    pub fn log(&self) -> Vec<String> {
        self.way.state.lock().unwrap().calls.clone()
    }
}

impl Drop for FaultyAws {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Faults {
    fn next(&mut self, action: &str) -> Option<Fault> {
        self.calls.push(action.to_owned());
        let (fault, times) = self.faults.get_mut(action)?;
        *times = times.checked_sub(1)?;
        Some(fault.clone())
    }
}

/// The fields of a request in AWS's query protocol.
struct Asked {
    body: String,
    fields: BTreeMap<String, String>,
}

impl Asked {
    fn read(body: String) -> Self {
        let pairs = body.split('&').filter_map(|pair| pair.split_once('='));
        let fields = pairs.map(|(key, value)| (key.to_owned(), decoded(value))).collect();
        Self { body, fields }
    }

    fn get(&self, key: &str) -> &str {
        self.fields.get(key).map_or("", String::as_str)
    }

    fn action(&self) -> &str {
        self.get("Action")
    }
}

fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'%' => {
                let hex: String = rest.by_ref().take(2).map(char::from).collect();
                bytes.push(u8::from_str_radix(&hex, 16).unwrap());
            }
            b'+' => bytes.push(b' '),
            other => bytes.push(other),
        }
    }
    String::from_utf8(bytes).unwrap()
}

async fn pass_on(State(way): State<Way>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, 1 << 20).await.unwrap();
    let mut asked = Asked::read(String::from_utf8(body.to_vec()).unwrap());
    let fault = way.state.lock().unwrap().next(asked.action());
    match &fault {
        Some(Fault::Refused(code)) => return refusal(&asked, code),
        Some(Fault::Answered(text)) => return (StatusCode::OK, text.clone()).into_response(),
        Some(Fault::Slow(delay)) => tokio::time::sleep(*delay).await,
        Some(Fault::OneShort) => {
            let total = "TargetCapacitySpecification.TotalTargetCapacity";
            let nodes: u32 = asked.get(total).parse().unwrap();
            let (from, to) = (format!("{total}={nodes}"), format!("{total}={}", nodes - 1));
            asked.body = asked.body.replace(&from, &to);
        }
        Some(Fault::ReplyLost | Fault::ShowsNothing) | None => {}
    }
    let (status, text) = match way.answer_itself(&asked).await {
        Some(answer) => answer,
        None => way.ask_moto(&parts.headers, &asked).await,
    };
    match fault {
        Some(Fault::ReplyLost) => cut_off(),
        Some(Fault::ShowsNothing) => {
            let empty = "<DescribeInstancesResponse><reservationSet/></DescribeInstancesResponse>";
            (StatusCode::OK, empty).into_response()
        }
        _ => (status, text).into_response(),
    }
}

/// The connection breaks within the answer.
fn cut_off() -> Response {
    let broken: Result<&str, _> = Err(std::io::Error::other("cut off"));
    let body = Body::from_stream(stream::iter([Ok("<"), broken]));
    ([("content-length", "1000")], body).into_response()
}

/// As the service of the action says it.
fn refusal(asked: &Asked, code: &str) -> Response {
    let error = format!("<Error><Code>{code}</Code><Message>{code}: by the test</Message></Error>");
    let is_scaling = asked.get("Version") == "2011-01-01";
    let text = if is_scaling {
        format!("<ErrorResponse>{error}<RequestId>r</RequestId></ErrorResponse>")
    } else {
        format!("<Response><Errors>{error}</Errors><RequestID>r</RequestID></Response>")
    };
    let is_its_own = matches!(code, "ResourceContention" | "InternalError");
    let status =
        if is_its_own { StatusCode::INTERNAL_SERVER_ERROR } else { StatusCode::BAD_REQUEST };
    (status, text).into_response()
}

impl Way {
    async fn ask_moto(&self, headers: &HeaderMap, asked: &Asked) -> (StatusCode, String) {
        let mut headers = headers.clone();
        for name in ["host", "content-length"] {
            headers.remove(name);
        }
        let client = reqwest::Client::new();
        let sent = client.post(&self.moto).headers(headers.clone()).body(asked.body.clone());
        let answer = sent.send().await.unwrap();
        let status = answer.status();
        let text = answer.text().await.unwrap();
        if asked.action() == "CreateFleet" && status.is_success() {
            let mut state = self.state.lock().unwrap();
            let token = asked.get("ClientToken").to_owned();
            state.tokens.insert(token, (asked.body.clone(), text.clone()));
        }
        (status, text)
    }

    /// What AWS does and moto does not.
    async fn answer_itself(&self, asked: &Asked) -> Option<(StatusCode, String)> {
        match asked.action() {
            "CreateFleet" => self.fleet_without_moto(asked),
            "SetDesiredCapacity" => self.above_the_maximum(asked).await,
            _ => None,
        }
    }

    fn fleet_without_moto(&self, asked: &Asked) -> Option<(StatusCode, String)> {
        let refused = |code: &str, message: &str| {
            let error = format!("<Error><Code>{code}</Code><Message>{message}</Message></Error>");
            let text =
                format!("<Response><Errors>{error}</Errors><RequestID>r</RequestID></Response>");
            Some((StatusCode::BAD_REQUEST, text))
        };
        let mut state = self.state.lock().unwrap();
        let token = asked.get("ClientToken").to_owned();
        if let Some((body, answer)) = state.tokens.get(&token) {
            if *body == asked.body {
                return Some((StatusCode::OK, answer.clone()));
            }
            return refused("IdempotentParameterMismatch", "another request had this token");
        }
        let options = ["SpotOptions", "OnDemandOptions"];
        let option = |key: &str| {
            let mut values = options.iter().map(|kind| asked.get(&format!("{kind}.{key}")));
            values.find(|value| !value.is_empty()).unwrap_or_default()
        };
        let least: u32 = option("MinTargetCapacity").parse().unwrap_or(0);
        let is_single = [option("SingleAvailabilityZone"), option("SingleInstanceType")];
        if least > 0 && !is_single.contains(&"true") {
            return refused("InvalidParameterCombination", "MinTargetCapacity needs one zone");
        }
        let left = state.machines.map_or(Some(None), |all| all.checked_sub(least).map(Some));
        if let Some(left) = left {
            state.machines = left;
            return None;
        }
        // As EC2 answers an instant fleet that it cannot fulfil.
        let answer = "<CreateFleetResponse><requestId>r</requestId><fleetId>fleet-none</fleetId>\
            <fleetInstanceSet/><errorSet><item><errorCode>InsufficientInstanceCapacity</errorCode>\
            <errorMessage>We currently do not have sufficient p5en.48xlarge capacity in the \
            Availability Zone you requested.</errorMessage><lifecycle>spot</lifecycle></item>\
            </errorSet></CreateFleetResponse>"
            .to_owned();
        state.tokens.insert(token, (asked.body.clone(), answer.clone()));
        Some((StatusCode::OK, answer))
    }

    async fn above_the_maximum(&self, asked: &Asked) -> Option<(StatusCode, String)> {
        let wanted: u32 = asked.get("DesiredCapacity").parse().unwrap();
        let most = crate::aws::most_of(&self.moto, asked.get("AutoScalingGroupName")).await;
        if wanted <= most {
            return None;
        }
        let message = format!("New SetDesiredCapacity value {wanted} is above max value {most}");
        let error =
            format!("<Error><Code>ValidationError</Code><Message>{message}</Message></Error>");
        let text = format!("<ErrorResponse>{error}<RequestId>r</RequestId></ErrorResponse>");
        Some((StatusCode::BAD_REQUEST, text))
    }
}
