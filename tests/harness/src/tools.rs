//! The real `kubectl` and `helm`, run as commands.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use serde_json::Value;
use tokio::{io::AsyncWriteExt, process::Command, time::timeout};

use crate::{EVENT_LIMIT, Error, parts, parts::Part, place, report};

/// Longer than a command waits by itself: `helm install --wait --timeout`, `kubectl wait`.
const COMMAND_LIMIT: Duration = EVENT_LIMIT.saturating_mul(2);

#[derive(Debug, Clone)]
struct Tool {
    program: PathBuf,
    variables: Vec<(&'static str, PathBuf)>,
}

impl Tool {
    fn find(part: &Part) -> Result<Self, Error> {
        let located = part.locate()?;
        report::took_part(part, &located.version);
        // Their caches and settings stay away from the user's own.
        let home = place::runs().join("tools");
        let variables = vec![
            ("KUBECACHEDIR", home.join("kubectl-cache")),
            ("HELM_CACHE_HOME", home.join("helm-cache")),
            ("HELM_CONFIG_HOME", home.join("helm-config")),
            ("HELM_DATA_HOME", home.join("helm-data")),
        ];
        Ok(Self { program: located.path, variables })
    }

    fn with_kubeconfig(mut self, kubeconfig: &Path) -> Self {
        self.variables.push(("KUBECONFIG", kubeconfig.to_owned()));
        self
    }

    async fn run(&self, arguments: &[&str], input: Option<&[u8]>) -> Result<String, Error> {
        let mut child = Command::new(&self.program)
            .args(arguments)
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() })
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(Error::io("start", &self.program))?;
        if let (Some(input), Some(mut stdin)) = (input, child.stdin.take()) {
            stdin.write_all(input).await.map_err(Error::io("write to", &self.program))?;
        }
        let command = || format!("{} {}", self.program.display(), arguments.join(" "));
        let Ok(output) = timeout(COMMAND_LIMIT, child.wait_with_output()).await else {
            return Err(Error::Elapsed {
                waited_for: format!("the end of `{}`", command()),
                limit: COMMAND_LIMIT,
                log: String::new(),
            });
        };
        let output = output.map_err(Error::io("read from", &self.program))?;
        if !output.status.success() {
            return Err(Error::Command {
                command: command(),
                status: output.status.to_string(),
                stderr: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
            });
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// The real `kubectl`.
#[derive(Debug, Clone)]
pub struct Kubectl(Tool);

impl Kubectl {
    /// Finds it.
    ///
    /// # Errors
    ///
    /// [`Error::Missing`] when it is not installed or too old.
    pub fn find() -> Result<Self, Error> {
        Tool::find(&parts::KUBECTL).map(Self)
    }

    /// Where it lies.
    #[must_use]
    pub fn program(&self) -> &Path {
        &self.0.program
    }

    /// The same, for the cluster and user of a kubeconfig.
    #[must_use]
    pub fn with_kubeconfig(self, kubeconfig: &Path) -> Self {
        Self(self.0.with_kubeconfig(kubeconfig))
    }

    /// Runs it and returns its standard output.
    ///
    /// # Errors
    ///
    /// [`Error::Command`] with its standard error when it fails.
    pub async fn run(&self, arguments: &[&str]) -> Result<String, Error> {
        self.0.run(arguments, None).await
    }

    /// Applies a manifest: one object, or a `List`.
    ///
    /// # Errors
    ///
    /// [`Error::Command`] when the server refuses it.
    pub async fn apply(&self, manifest: &Value) -> Result<(), Error> {
        let input = manifest.to_string();
        self.0.run(&["apply", "--filename", "-"], Some(input.as_bytes())).await.map(drop)
    }

    /// Creates what a manifest says: one object, or a `List`.
    ///
    /// # Errors
    ///
    /// [`Error::Command`] when the server refuses it, or it exists already.
    pub async fn create(&self, manifest: &Value) -> Result<(), Error> {
        let input = manifest.to_string();
        self.0.run(&["create", "--filename", "-"], Some(input.as_bytes())).await.map(drop)
    }

    /// `kubectl get ARGUMENTS --output json`.
    ///
    /// # Errors
    ///
    /// [`Error::Command`] when there is no such object.
    pub async fn get(&self, arguments: &[&str]) -> Result<Value, Error> {
        let arguments = [&["get", "--output", "json"], arguments].concat();
        let text = self.0.run(&arguments, None).await?;
        serde_json::from_str(&text)
            .map_err(|error| Error::Unexpected(format!("kubectl answered no JSON: {error}")))
    }
}

/// The real `helm`.
#[derive(Debug, Clone)]
pub struct Helm(Tool);

impl Helm {
    /// Finds it.
    ///
    /// # Errors
    ///
    /// [`Error::Missing`] when it is not installed or too old.
    pub fn find() -> Result<Self, Error> {
        Tool::find(&parts::HELM).map(Self)
    }

    /// Where it lies.
    #[must_use]
    pub fn program(&self) -> &Path {
        &self.0.program
    }

    /// The same, for the cluster and user of a kubeconfig.
    #[must_use]
    pub fn with_kubeconfig(self, kubeconfig: &Path) -> Self {
        Self(self.0.with_kubeconfig(kubeconfig))
    }

    /// Runs it and returns its standard output.
    ///
    /// # Errors
    ///
    /// [`Error::Command`] with its standard error when it fails.
    pub async fn run(&self, arguments: &[&str]) -> Result<String, Error> {
        self.0.run(arguments, None).await
    }
}
