//! A program under test, such as `ebbtide agent`, run as a real process with its log kept.

use std::{ffi::OsStr, fs, path::Path, process::ExitStatus, time::Duration};

use rustix::process::Signal;

use crate::{
    Error,
    folder::RunFolder,
    http, port,
    process::{Launch, Service},
};

/// How a [`Program`] is started.
#[derive(Debug, Clone)]
pub struct ProgramOptions {
    launch: Launch,
}

impl ProgramOptions {
    /// Adds arguments.
    #[must_use]
    pub fn arguments<I>(mut self, arguments: I) -> Self
    where
        I: IntoIterator,
        I::Item: AsRef<OsStr>,
    {
        self.launch = self.launch.arguments(arguments);
        self
    }

    /// Sets an environment variable; the test process's own environment is inherited.
    #[must_use]
    pub fn variable(mut self, name: &str, value: &str) -> Self {
        self.launch = self.launch.variable(name, value);
        self
    }

    /// Sets several.
    #[must_use]
    pub fn variables<'a>(self, pairs: impl IntoIterator<Item = (&'a str, String)>) -> Self {
        pairs.into_iter().fold(self, |options, (name, value)| options.variable(name, &value))
    }

    /// Starts it and does not wait for anything.
    ///
    /// # Errors
    ///
    /// When the program cannot be started.
    pub fn start(self) -> Result<Program, Error> {
        let folder = RunFolder::create(self.launch.name)?;
        Service::start(self.launch, folder).map(|service| Program { service })
    }
}

/// A running program; killed on drop. Standard output and error both go to its log.
#[derive(Debug)]
pub struct Program {
    service: Service,
}

impl Program {
    /// A program to be started; `name` is for messages and for its folder.
    #[must_use]
    pub fn options(name: &'static str, program: impl AsRef<Path>) -> ProgramOptions {
        ProgramOptions { launch: Launch::new(name, program.as_ref()) }
    }

    /// A free port of 127.0.0.1, for a program that is told where to listen.
    ///
    /// # Errors
    ///
    /// When all are taken.
    pub fn free_port() -> Result<u16, Error> {
        port::free_port()
    }

    /// Waits until the address answers with a successful status.
    ///
    /// # Errors
    ///
    /// With the end of the log, when it ends or the bound passes first.
    pub async fn ready(&mut self, url: &str, limit: Duration) -> Result<(), Error> {
        let waited_for = format!("a good answer from {url}");
        self.service.ready(&waited_for, limit, || http::succeeds(url)).await
    }

    /// Waits until its log contains a text.
    ///
    /// # Errors
    ///
    /// With the end of the log, when it ends or the bound passes first.
    pub async fn logged(&mut self, text: &str, limit: Duration) -> Result<(), Error> {
        let log = self.service.log();
        let contains_text = || fs::read_to_string(&log).is_ok_and(|all| all.contains(text));
        let waited_for = format!("{text:?} in its log");
        self.service.ready(&waited_for, limit, || async { contains_text() }).await
    }

    /// Everything it has written so far.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(self.service.log()).unwrap_or_default()
    }

    /// Whether it has not ended.
    #[must_use]
    pub fn is_running(&mut self) -> bool {
        self.service.is_running()
    }

    /// Its process id; none after its end.
    #[must_use]
    pub fn process_id(&self) -> Option<u32> {
        self.service.process_id()
    }

    /// Waits for its end.
    ///
    /// # Errors
    ///
    /// With the end of the log, when it still runs after `limit`.
    pub async fn ended(&mut self, limit: Duration) -> Result<ExitStatus, Error> {
        self.service.ended_within(limit).await
    }

    /// Sends SIGTERM and waits for its end.
    ///
    /// # Errors
    ///
    /// With the end of the log, when it still runs after `limit`.
    pub async fn terminate(&mut self, limit: Duration) -> Result<ExitStatus, Error> {
        self.service.signal(Signal::TERM)?;
        self.ended(limit).await
    }

    /// Kills it without notice, as the loss of a node does.
    pub fn kill(&mut self) {
        self.service.kill();
    }

    /// Freezes it.
    ///
    /// # Errors
    ///
    /// When the signal cannot be sent.
    pub fn pause(&self) -> Result<(), Error> {
        self.service.signal(Signal::STOP)
    }

    /// Ends a [`Self::pause`].
    ///
    /// # Errors
    ///
    /// When the signal cannot be sent.
    pub fn resume(&self) -> Result<(), Error> {
        self.service.signal(Signal::CONT)
    }

    /// Starts it again with the same arguments and log, after a kill or an end.
    ///
    /// # Errors
    ///
    /// When the program cannot be started.
    pub fn start_again(&mut self) -> Result<(), Error> {
        self.service.spawn()
    }
}
