//! The real vLLM on CPU, serving small models of random weights.
//!
//! Only with `tests/run --with-vllm`. A start takes about a minute, one engine a core and 4 GB.

use std::{fs, path::PathBuf, time::Duration};

use rustix::process::{Pid, Signal, kill_process};

use crate::{
    Error,
    folder::RunFolder,
    http, parts,
    port::free_port,
    process::{Launch, Service},
    report,
};

/// On a machine that does other things beside.
const READY_LIMIT: Duration = Duration::from_secs(300);
const MODELS_LIMIT: Duration = Duration::from_secs(120);

/// How vLLM calls the process that has the model.
const CORE_NAME: &str = "VLLM::EngineCore";

/// Tokens that prompt and response may have together.
const CONTEXT: &str = "2048";

/// Models for a test, made anew; removed on drop.
#[derive(Debug)]
pub struct TinyModels {
    /// What made them; its folder has them.
    _maker: Service,
    folder: PathBuf,
}

impl TinyModels {
    /// Makes them.
    ///
    /// # Errors
    ///
    /// [`Error::Missing`] when vLLM is not asked for or not there.
    pub async fn make() -> Result<Self, Error> {
        let located = parts::VLLM.locate()?;
        let folder = RunFolder::create("tiny-models")?;
        let models = folder.data().join("models");
        let script = include_str!("vllm/tiny_models.py");
        let launch = Launch::new("tiny-models", located.path)
            .arguments(["-c", script, &models.display().to_string()])
            .variable("HF_HUB_OFFLINE", "1");
        let mut maker = Service::start(launch, folder)?;
        let status = maker.ended_within(MODELS_LIMIT).await?;
        if !status.success() {
            let log = fs::read_to_string(maker.log()).unwrap_or_default();
            return Err(Error::Unexpected(format!("no models were made ({status}): {log}")));
        }
        Ok(Self { _maker: maker, folder: models })
    }

    /// A mixture of eight experts, two for each token.
    #[must_use]
    pub fn experts(&self) -> PathBuf {
        self.folder.join("experts")
    }

    /// A model without experts, with its first or its second weights.
    #[must_use]
    pub fn dense(&self, weights: u32) -> PathBuf {
        self.folder.join(format!("dense-{weights}"))
    }
}

/// A running vLLM of this test's own; killed on drop.
#[derive(Debug)]
pub struct Vllm {
    service: Service,
    port: u16,
}

impl Vllm {
    /// Starts it with this model and waits until it answers.
    ///
    /// # Errors
    ///
    /// [`Error::Missing`] when it is not asked for or not there; others when it does not get ready.
    pub async fn start(model: PathBuf) -> Result<Self, Error> {
        let located = parts::VLLM.locate()?;
        let port = free_port()?;
        let launch = Launch::new("vllm", located.path)
            .arguments(["-m", "vllm.entrypoints.cli.main", "serve"])
            .arguments([model])
            .arguments(["--host", "127.0.0.1", "--port", &port.to_string()])
            // With fewer digits the size of a batch shows in the tokens.
            .arguments(["--dtype", "float32", "--enforce-eager", "--max-model-len", CONTEXT])
            .arguments(["--max-num-seqs", "16", "--served-model-name", "tiny"])
            .arguments(["--enable-scale-out", "--no-enable-log-requests"])
            .variable("VLLM_SERVER_DEV_MODE", "1")
            .variable("VLLM_CPU_KVCACHE_SPACE", "1")
            .variable("VLLM_CPU_OMP_THREADS_BIND", "nobind")
            .variable("OMP_NUM_THREADS", "1")
            // The engine is an interpreter of its own, which ends with its parent.
            .variable("VLLM_WORKER_MULTIPROCESSING_METHOD", "spawn")
            .variable("VLLM_NO_USAGE_STATS", "1")
            .variable("HF_HUB_OFFLINE", "1");
        let service = Service::start(launch, RunFolder::create("vllm")?)?;
        let mut engine = Self { service, port };
        engine.ready().await?;
        report::took_part(&parts::VLLM, &located.version);
        Ok(engine)
    }

    /// Where it answers.
    #[must_use]
    pub fn base_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Kills the process that has the model; the server notices, and ends.
    ///
    /// # Errors
    ///
    /// When there is no such process.
    pub fn kill_core(&self) -> Result<(), Error> {
        let server = self.service.process_id();
        let core = server.and_then(|server| child_called(server, CORE_NAME));
        let core = core.and_then(Pid::from_raw);
        let core = core.ok_or_else(|| Error::Unexpected(format!("there is no {CORE_NAME}")))?;
        kill_process(core, Signal::KILL)
            .map_err(|errno| Error::io("kill", &PathBuf::from(CORE_NAME))(errno.into()))
    }

    /// Ends all of it without a word.
    pub fn kill(&mut self) {
        self.service.kill();
    }

    /// Starts it again on the same port, after its end.
    ///
    /// # Errors
    ///
    /// When it does not get ready again.
    pub async fn restart(&mut self) -> Result<(), Error> {
        self.service.kill();
        self.service.spawn()?;
        self.ready().await
    }

    async fn ready(&mut self) -> Result<(), Error> {
        let url = format!("{}/health", self.base_url());
        self.service.ready("an answer over HTTP", READY_LIMIT, || http::succeeds(&url)).await
    }
}

/// The process id of a child, by the name that it has given itself.
fn child_called(parent: u32, name: &str) -> Option<i32> {
    let is_child = |id: &i32| {
        let status = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        // After the name, which may contain anything: state, parent.
        let parent_of = status.rsplit_once(')').and_then(|(_, rest)| rest.split(' ').nth(2));
        let command = fs::read_to_string(format!("/proc/{id}/cmdline")).unwrap_or_default();
        parent_of == Some(parent.to_string().as_str()) && command.starts_with(name)
    };
    let names = fs::read_dir("/proc").ok()?.flatten().map(|entry| entry.file_name());
    names.filter_map(|name| name.to_str()?.parse().ok()).find(is_child)
}
