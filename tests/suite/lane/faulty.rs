//! Ways to the API server: the agent's own, and one on which it is slow, throttles, or is away.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use ebbtide_harness::ControlPlane;
use kube::config::{KubeConfigOptions, Kubeconfig};
use tokio::task::JoinHandle;

/// A client as the agent has it: it repeats nothing by itself.
pub async fn client(cluster: &ControlPlane) -> kube::Client {
    let kubeconfig = Kubeconfig::read_from(cluster.kubeconfig()).unwrap();
    let options = KubeConfigOptions::default();
    let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await.unwrap();
    config.default_retry = false;
    kube::Client::try_from(config).unwrap()
}

/// What is wrong with the API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// Every answer takes this long.
    Slow(Duration),
    /// Every answer is 429 with `Retry-After`.
    Throttles,
    /// Everything is carried out, and no answer comes back.
    LosesAnswers,
    /// Nobody answers.
    Away,
}

/// See the module; ended on drop.
pub struct Faulty {
    fault: Arc<Mutex<Fault>>,
    spares_reads: Arc<AtomicBool>,
    asked: Arc<Mutex<Vec<String>>>,
    pub url: String,
    task: JoinHandle<()>,
}

#[derive(Clone)]
struct Way {
    client: kube::Client,
    fault: Arc<Mutex<Fault>>,
    spares_reads: Arc<AtomicBool>,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Faulty {
    /// Passes everything on to the API server of `client`, as that client's user.
    pub async fn start(client: kube::Client) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let fault = Arc::new(Mutex::new(Fault::None));
        let spares_reads = Arc::new(AtomicBool::new(false));
        let asked = Arc::<Mutex<Vec<String>>>::default();
        let way = Way {
            client,
            fault: fault.clone(),
            spares_reads: spares_reads.clone(),
            asked: asked.clone(),
        };
        let router = Router::new().fallback(pass_on).with_state(way);
        let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { fault, spares_reads, asked, url, task }
    }

    pub fn set(&self, fault: Fault) {
        self.spares_reads.store(false, Ordering::Relaxed);
        *self.fault.lock().unwrap() = fault;
    }

    /// Only what changes something goes wrong.
    pub fn set_for_writes(&self, fault: Fault) {
        self.set(fault);
        self.spares_reads.store(true, Ordering::Relaxed);
    }

    /// What was asked for since the last time, as `METHOD /path`.
    pub fn take_asked(&self) -> Vec<String> {
        std::mem::take(&mut *self.asked.lock().unwrap())
    }

    /// A client that goes this way.
    pub fn client(&self) -> kube::Client {
        let mut config = kube::Config::new(self.url.parse().unwrap());
        config.default_retry = false;
        kube::Client::try_from(config).unwrap()
    }
}

impl Drop for Faulty {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn pass_on(State(way): State<Way>, request: Request) -> Response {
    way.asked.lock().unwrap().push(format!("{} {}", request.method(), request.uri().path()));
    let fault = *way.fault.lock().unwrap();
    let is_spared =
        request.method() == axum::http::Method::GET && way.spares_reads.load(Ordering::Relaxed);
    let fault = if is_spared { Fault::None } else { fault };
    match fault {
        Fault::None | Fault::LosesAnswers => {}
        Fault::Slow(delay) => tokio::time::sleep(delay).await,
        Fault::Throttles => {
            return (StatusCode::TOO_MANY_REQUESTS, [("Retry-After", "10")], "Too many requests")
                .into_response();
        }
        Fault::Away => std::future::pending().await,
    }
    let (mut parts, body) = request.into_parts();
    let path = parts.uri.path_and_query().unwrap().as_str();
    parts.uri = path.parse().unwrap();
    parts.headers.remove("host");
    let bytes = axum::body::to_bytes(body, 1 << 20).await.unwrap();
    let request = axum::http::Request::from_parts(parts, kube::client::Body::from(bytes.to_vec()));
    match way.client.send(request).await {
        Ok(_) if fault == Fault::LosesAnswers => {
            (StatusCode::BAD_GATEWAY, "the answer is lost").into_response()
        }
        Ok(answer) => answer.map(Body::new),
        Err(error) => (StatusCode::BAD_GATEWAY, error.to_string()).into_response(),
    }
}
