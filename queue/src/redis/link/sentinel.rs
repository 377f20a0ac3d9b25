//! Who is the master: asked of the Sentinels before each connection, and checked with the server.

use futures::StreamExt;
use futures::stream::FuturesUnordered;

use super::super::address::Endpoint;
use super::dial::{Dialer, Line, refused, server_name};
use super::error::{LinkError, LinkErrorKind};
use super::server::decode;

/// The Sentinels of an address and the name that they know the master by.
pub(super) struct Sentinels {
    pub dialer: Dialer,
    pub nodes: Vec<Endpoint>,
    pub master: String,
}

impl Sentinels {
    /// Connects to the master that the first answering Sentinel names.
    pub async fn dial_master(&self, dialer: &Dialer) -> Result<(Endpoint, Line), LinkError> {
        let endpoint = self.locate_master().await?;
        let line = dialer.dial(&endpoint).await?;
        self.check_role(&endpoint, &line).await?;
        Ok((endpoint, line))
    }

    /// All are asked at once: one that is away with the master must not hold up the search.
    async fn locate_master(&self) -> Result<Endpoint, LinkError> {
        let mut problems = Vec::new();
        let mut is_unknown = false;
        let mut answers: FuturesUnordered<_> =
            self.nodes.iter().map(|node| self.ask(node)).collect();
        while let Some(answer) = answers.next().await {
            match answer {
                Ok(Some(endpoint)) => return Ok(endpoint),
                Ok(None) => is_unknown = true,
                Err(error) if error.kind == LinkErrorKind::Unfit => return Err(error),
                Err(error) => problems.push(error.to_string()),
            }
        }
        let name = format!("master {} of sentinels", self.master);
        if is_unknown && problems.is_empty() {
            let problem = "no Sentinel of the address knows a master of this name: write the name \
                           of their `sentinel monitor` line after the hosts";
            return Err(LinkError::unfit(name, problem));
        }
        Err(LinkError::new(LinkErrorKind::Away, name, problems.join("; ")))
    }

    async fn ask(&self, node: &Endpoint) -> Result<Option<Endpoint>, LinkError> {
        let server = format!("sentinel {node}");
        let line = self.dialer.dial(node).await.map_err(|error| of_sentinel(&server, error))?;
        let mut question = redis::pipe();
        question.cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(&self.master);
        let mut connection = line.connection.clone();
        let values = connection.send_packed_commands(&question, 0, question.len()).await;
        let values = values.map_err(|error| LinkError::of_connection(&server, &error))?;
        if let Some(refusal) = values.iter().find_map(refused)
            && refusal.code() == "ERR"
        {
            let problem = "it is no Sentinel: name the Sentinels' own ports (26379), or write \
                           redis:// for a single server";
            return Err(LinkError::unfit(server, problem));
        }
        let (found,): (Option<(String, u16)>,) =
            decode(&server, values).map_err(|error| of_sentinel(&server, error))?;
        Ok(found.map(|(host, port)| Endpoint { host, port }))
    }

    /// Right after a fail-over a Sentinel may still name the server that was the master.
    async fn check_role(&self, endpoint: &Endpoint, line: &Line) -> Result<(), LinkError> {
        let server = server_name(endpoint);
        let mut question = redis::pipe();
        question.cmd("INFO").arg("replication");
        let mut connection = line.connection.clone();
        let values = connection.send_packed_commands(&question, 0, question.len()).await;
        let values = values.map_err(|error| LinkError::of_connection(&server, &error))?;
        let (info,): (redis::InfoDict,) = decode(&server, values)?;
        if info.get::<String>("role").as_deref() == Some("master") {
            return Ok(());
        }
        let problem = "the Sentinels name it as the master, and it is not one yet";
        Err(LinkError::new(LinkErrorKind::Away, server, problem))
    }
}

/// The login of Sentinels has parameters of its own.
fn of_sentinel(server: &str, mut error: LinkError) -> LinkError {
    let problem = &error.problem;
    if error.kind == LinkErrorKind::Unfit
        && ["NOAUTH", "WRONGPASS", "NOPERM"].iter().any(|code| problem.starts_with(code))
    {
        let answer = problem.split(';').next().unwrap_or_default();
        error.problem = format!(
            "{answer}; the login of Sentinels is ?sentinel_user=…&sentinel_password=…, with the \
             right to SENTINEL GET-MASTER-ADDR-BY-NAME and PING"
        );
    }
    error.server = server.to_owned();
    error
}
