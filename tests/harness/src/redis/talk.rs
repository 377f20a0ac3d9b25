//! A few words of Redis' protocol, enough to set servers up and to look at them.

use std::time::Duration;

use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
    time::timeout,
};

use crate::Error;

const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// Sends one command to a port of 127.0.0.1, without TLS; gives the answer's texts, nested ones one
/// after the other.
pub(super) async fn talk(port: u16, words: &[&str]) -> Result<Vec<String>, Error> {
    talk_as(port, None, words).await
}

/// The same after logging in with a password.
pub(super) async fn talk_as(
    port: u16,
    password: Option<&str>,
    words: &[&str],
) -> Result<Vec<String>, Error> {
    let failed = |problem: String| {
        let command = words.first().copied().unwrap_or_default();
        Error::Unexpected(format!("redis 127.0.0.1:{port}, {command}: {problem}"))
    };
    let exchange = async {
        let mut stream = BufReader::new(TcpStream::connect(("127.0.0.1", port)).await?);
        if let Some(password) = password
            && let Err(refusal) = exchange(&mut stream, &["AUTH", password]).await?
        {
            return Ok(Err(refusal));
        }
        exchange(&mut stream, words).await
    };
    match timeout(ANSWER_LIMIT, exchange).await {
        Ok(Ok(Ok(answer))) => Ok(answer),
        Ok(Ok(Err(refusal))) => Err(failed(refusal)),
        Ok(Err(error)) => Err(failed(error.to_string())),
        Err(_) => Err(failed(format!("no answer within {ANSWER_LIMIT:?}"))),
    }
}

/// The answer or what the server refused with.
type Answer = Result<Vec<String>, String>;

async fn exchange(stream: &mut BufReader<TcpStream>, words: &[&str]) -> std::io::Result<Answer> {
    let mut command = format!("*{}\r\n", words.len());
    for word in words {
        command.push_str(&format!("${}\r\n{word}\r\n", word.len()));
    }
    stream.write_all(command.as_bytes()).await?;
    let mut texts = Vec::new();
    let mut replies_left = 1_u64;
    while replies_left > 0 {
        replies_left -= 1;
        let mut line = String::new();
        if stream.read_line(&mut line).await? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let line = line.trim_end();
        let (kind, rest) = line.split_at(line.len().min(1));
        let count = || rest.parse::<i64>().map_err(std::io::Error::other);
        match kind {
            "-" => return Ok(Err(rest.to_owned())),
            "*" => replies_left += u64::try_from(count()?).unwrap_or(0),
            "$" => match usize::try_from(count()?) {
                Ok(length) => {
                    let mut bytes = vec![0; length + 2];
                    stream.read_exact(&mut bytes).await?;
                    bytes.truncate(length);
                    texts.push(String::from_utf8_lossy(&bytes).into_owned());
                }
                Err(_) => texts.push(String::new()),
            },
            _ => texts.push(rest.to_owned()),
        }
    }
    Ok(Ok(texts))
}

/// The value of a line `field:value` in an answer of INFO or CLUSTER INFO.
pub(super) fn field<'a>(answer: &'a [String], field: &str) -> Option<&'a str> {
    answer.first()?.lines().find_map(|line| line.trim_end().strip_prefix(field)?.strip_prefix(':'))
}

/// Whether a server, by its answer to INFO replication, has its master's data, or as a master all
/// the replicas that its settings ask for.
pub(super) fn is_in_sync(replication: &[String]) -> bool {
    let is_master = field(replication, "role") == Some("master");
    let wanted = if is_master { "min_slaves_good_slaves" } else { "master_link_status" };
    field(replication, wanted).is_none_or(|state| state == "up" || (is_master && state != "0"))
}
