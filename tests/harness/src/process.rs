//! One process of a real service: started, watched, stopped by its own process id.
//!
//! Nothing outlives the test process, even when that is killed: `setpriv --pdeathsig` asks the
//! kernel to end the service with its parent. The kernel takes the *thread* that started it for the
//! parent, and test threads come and go, so all services are started from one thread that lives as
//! long as the process.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    future::Future,
    io,
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{OnceLock, mpsc},
    thread,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};

use crate::{Error, folder::RunFolder, place, until};

/// How to start a service.
#[derive(Debug, Clone)]
pub(crate) struct Launch {
    pub(crate) name: &'static str,
    program: PathBuf,
    arguments: Vec<OsString>,
    variables: Vec<(String, String)>,
}

impl Launch {
    pub(crate) fn new(name: &'static str, program: impl Into<PathBuf>) -> Self {
        Self { name, program: program.into(), arguments: Vec::new(), variables: Vec::new() }
    }

    pub(crate) fn arguments<I>(mut self, arguments: I) -> Self
    where
        I: IntoIterator,
        I::Item: AsRef<OsStr>,
    {
        self.arguments.extend(arguments.into_iter().map(|it| it.as_ref().to_owned()));
        self
    }

    pub(crate) fn variable(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    fn command(&self, folder: &RunFolder) -> Result<Command, Error> {
        let log_path = folder.log();
        let log = File::options()
            .create(true)
            .append(true)
            .open(&log_path)
            .map_err(Error::io("open", &log_path))?;
        let log_again = log.try_clone().map_err(Error::io("open", &log_path))?;
        let mut command = match place::on_path("setpriv") {
            Some(setpriv) => {
                let mut command = Command::new(setpriv);
                command.args(["--pdeathsig", "KILL", "--"]).arg(&self.program);
                command
            }
            None => Command::new(&self.program),
        };
        command
            .args(&self.arguments)
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .current_dir(folder.data())
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(log_again)
            // An own group: Ctrl-C reaches the test process, which ends its services in order.
            .process_group(0);
        Ok(command)
    }
}

/// A service with its folder. Killed on drop.
#[derive(Debug)]
pub(crate) struct Service {
    launch: Launch,
    child: Option<Child>,
    folder: RunFolder,
}

impl Service {
    pub(crate) fn start(launch: Launch, folder: RunFolder) -> Result<Self, Error> {
        let mut service = Self { launch, child: None, folder };
        service.spawn()?;
        Ok(service)
    }

    /// Further arguments from its next start on.
    pub(crate) fn add_arguments(&mut self, arguments: &[&str]) {
        self.launch.arguments.extend(arguments.iter().map(OsString::from));
    }

    /// Starts it with the same arguments, folder and log; does nothing when it runs.
    pub(crate) fn spawn(&mut self) -> Result<(), Error> {
        if !self.is_running() {
            let command = self.launch.command(&self.folder)?;
            let child = spawn_from_lasting_thread(command)
                .map_err(Error::io("start", &self.launch.program))?;
            self.child = Some(child);
        }
        Ok(())
    }

    /// Waits until `check` answers true.
    pub(crate) async fn ready<Check, Answer>(
        &mut self,
        waited_for: &str,
        limit: Duration,
        mut check: Check,
    ) -> Result<(), Error>
    where
        Check: FnMut() -> Answer,
        Answer: Future<Output = bool>,
    {
        let child = &mut self.child;
        let ended = until(waited_for, limit, || {
            let status = child.as_mut().and_then(|child| child.try_wait().ok().flatten());
            let answer = check();
            async move {
                match status {
                    Some(status) => Some(Some(status)),
                    None => answer.await.then_some(None),
                }
            }
        })
        .await;
        match ended {
            Ok(None) => Ok(()),
            Ok(Some(status)) => {
                self.child = None;
                Err(self.ended(status, waited_for))
            }
            Err(_) => Err(self.elapsed(waited_for, limit)),
        }
    }

    /// Waits until it has ended by itself.
    pub(crate) async fn ended_within(&mut self, limit: Duration) -> Result<ExitStatus, Error> {
        let Some(child) = &mut self.child else {
            return Err(Error::Unexpected(format!("{} does not run", self.launch.name)));
        };
        let ended = until("its end", limit, || {
            let status = child.try_wait().ok().flatten();
            async move { status }
        })
        .await;
        match ended {
            Ok(status) => {
                self.child = None;
                Ok(status)
            }
            Err(_) => Err(self.elapsed("its end", limit)),
        }
    }

    /// Asks it to end and waits for that; after `limit` it is killed.
    pub(crate) async fn terminate(&mut self, limit: Duration) -> Result<(), Error> {
        self.signal(Signal::CONT)?;
        self.signal(Signal::TERM)?;
        if self.child.is_none() {
            return Ok(());
        }
        let ended = self.ended_within(limit).await;
        self.kill();
        ended.map(drop)
    }

    /// Kills it and waits for that; no chance to write anything.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // Both fail only for a process that has ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Sends it a signal, when it runs.
    pub(crate) fn signal(&self, signal: Signal) -> Result<(), Error> {
        let Some(child) = &self.child else { return Ok(()) };
        kill_process(Pid::from_child(child), signal)
            .map_err(|errno| Error::io("signal", &self.launch.program)(errno.into()))
    }

    /// Whether it was started and has not ended, by itself or by us.
    pub(crate) fn is_running(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    pub(crate) fn process_id(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.folder.log()
    }

    fn elapsed(&self, waited_for: &str, limit: Duration) -> Error {
        Error::Elapsed {
            waited_for: format!("{}: {waited_for}", self.launch.name),
            limit,
            log: format!("\n{}", self.folder.log_tail()),
        }
    }

    fn ended(&self, status: ExitStatus, waited_for: &str) -> Error {
        Error::Ended {
            service: self.launch.name,
            status: status.to_string(),
            waited_for: waited_for.to_owned(),
            log: self.folder.log_tail(),
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.kill();
    }
}

type SpawnRequest = (Command, mpsc::SyncSender<io::Result<Child>>);

/// The channel lives in a static, so the thread never ends before the process does.
static SPAWNER: OnceLock<mpsc::Sender<SpawnRequest>> = OnceLock::new();

fn spawn_from_lasting_thread(command: Command) -> io::Result<Child> {
    let spawner = SPAWNER.get_or_init(|| {
        let (requests, incoming) = mpsc::channel::<SpawnRequest>();
        thread::spawn(move || {
            for (mut command, reply) in incoming {
                let _ = reply.send(command.spawn());
            }
        });
        requests
    });
    let (reply, answer) = mpsc::sync_channel(1);
    spawner.send((command, reply)).map_err(|_| io::Error::other("the spawning thread ended"))?;
    answer.recv().map_err(|_| io::Error::other("the spawning thread ended"))?
}
