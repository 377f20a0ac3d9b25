//! The control keys on Redis: flat hashes, each listed in an index of its kind.

use std::collections::BTreeMap;
use std::time::Duration;

use ebbtide_core::ids::ReplicaId;
use ebbtide_core::time::{UnixMillis, whole_millis};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::library::Function;
use super::{CALL_TRIES, RedisPort, keys, leading};
use crate::client::QueueError;
use crate::control::{
    CheckpointRecord, ClosingReport, ControlCommand, ControlReply, ControlView, DrainProgress,
    DrainRecord, DrainRequest, Fields, HoldRecord, JournalLine, NodeRecord, ReplicaView,
    ResizeRecord, from_fields, to_fields,
};

/// For how long a hold that cannot be read counts, from each look on.
const UNREAD_HOLD: Duration = Duration::from_mins(1);

/// Kinds of records that come in any number; each has an index `{r:c}:<kind>s`.
const KINDS: [&str; 7] = ["node", "drain", "engine", "hold", "lifecycle", "straggler", "purchase"];
/// Records of which there is one, and that concern every replica.
const SINGLES: [&str; 3] = ["trainer", "version", "reaper"];
/// Records of which there is one, and that concern the controller.
const ACCOUNTS: [&str; 2] = ["ledger", "meta"];

/// A record of nothing but the moment at which it is written.
const NO_FIELDS: Fields = Fields::new();

/// How a record is written.
#[derive(Clone, Copy)]
enum PutMode {
    Replace,
    Merge,
    Raise,
}

pub(super) async fn carry_out(
    port: &RedisPort,
    command: ControlCommand,
) -> Result<ControlReply, QueueError> {
    use PutMode::{Merge, Raise, Replace};
    match command {
        ControlCommand::PutNode(record) => {
            put(port, "node", record.node.as_str(), Replace, "heartbeat", &*record).await
        }
        ControlCommand::PutEngine(record) => {
            let member = format!("{}:{}", record.replica, record.index);
            put(port, "engine", &member, Replace, "heartbeat", &record).await
        }
        ControlCommand::PutTrainer(record) => {
            put(port, "trainer", "", Merge, "heartbeat", &record).await
        }
        ControlCommand::RequestCheckpoint => {
            let stamp = "checkpoint_requested";
            let moment = put_at(port, "trainer", "", Merge, stamp, &NO_FIELDS).await?;
            Ok(ControlReply::Requested(moment))
        }
        ControlCommand::ConfirmCheckpoint(request) => {
            let confirmed = CheckpointRecord { confirmed: Some(request), requested: None };
            put(port, "trainer", "", Merge, "", &confirmed).await
        }
        ControlCommand::RequestResize { leader, size } => {
            resize(port, ["REQUEST".to_owned(), leader.to_string(), size.to_string()].into()).await
        }
        ControlCommand::ConfirmResize(said) => {
            let (size, generation) = (said.size.to_string(), said.generation.to_string());
            let released = said.released.to_string();
            let incarnation = said.incarnation.map(String::from).unwrap_or_default();
            resize(port, ["CONFIRM".to_owned(), size, generation, released, incarnation].into())
                .await
        }
        ControlCommand::ReleaseResize { leader, generation, silence_limit } => {
            let (leader, generation) = (leader.to_string(), generation.to_string());
            let silence = whole_millis(silence_limit).to_string();
            let arguments = ["RELEASE".to_owned(), leader, generation, silence];
            let fields = resize_fields(port, arguments.into()).await?;
            Ok(ControlReply::MayRelease(!fields.is_empty()))
        }
        ControlCommand::EndResize { leader, generation, how } => {
            let arguments = ["END".to_owned(), leader.to_string(), generation.to_string(), how];
            resize(port, arguments.into()).await
        }
        ControlCommand::PutVersion(record) => {
            put(port, "version", "", Raise, "published_at", &record).await
        }
        ControlCommand::PutHold(record) => {
            put(port, "hold", &record.role, Replace, "", &record).await
        }
        ControlCommand::BeatReaper => put(port, "reaper", "", Merge, "heartbeat", &NO_FIELDS).await,
        ControlCommand::RemoveHold(role) => remove(port, "hold", &role).await,
        ControlCommand::AddReport(report) => add_report(port, &report).await,
        ControlCommand::ReadReports(limit) => read_reports(port, limit).await,
        ControlCommand::ReadJournal(limit) => read_journal(port, limit).await,
        ControlCommand::RequestDrain(request) => request_drain(port, &request).await,
        ControlCommand::ReportDrain(progress) => report_drain(port, &progress).await,
        ControlCommand::Claim { generation, action } => {
            let keys = [key(port, "generation", ""), key(port, "claims", "")];
            let arguments = [generation.to_string().into_bytes(), action.into_bytes()];
            let granted: u64 =
                port.call_function(Function::ControlClaim, &keys, &arguments, CALL_TRIES).await?;
            Ok(ControlReply::Claimed(granted == 1))
        }
        ControlCommand::Lead { generation, write } => {
            leading::carry_out(port, generation, write).await
        }
        ControlCommand::NameStore(name) => {
            let keys = [key(port, "meta", "")];
            let name = [name.into_bytes()];
            let holds: String =
                port.call_function(Function::ControlStore, &keys, &name, CALL_TRIES).await?;
            Ok(ControlReply::Store(holds))
        }
        ControlCommand::ReadPurchases => read_purchases(port).await,
        ControlCommand::Read => read_all(port).await,
        ControlCommand::ReadReplica(replica) => read_replica(port, replica).await,
    }
}

pub(super) fn key(port: &RedisPort, kind: &str, member: &str) -> String {
    let separator = if member.is_empty() { "" } else { ":" };
    keys::control(&port.options.run, &format!("{kind}{separator}{member}"))
}

/// The record's key and that of the index of its kind.
pub(super) fn record_keys(port: &RedisPort, kind: &str, member: &str) -> [String; 2] {
    [key(port, kind, member), key(port, &format!("{kind}s"), "")]
}

/// What `control_put` is told of a record: its member, the mode, the field that gets the time.
pub(super) fn put_arguments<T: Serialize>(how: [&str; 3], record: &T) -> Vec<Vec<u8>> {
    let fields = to_fields(record).into_iter();
    let fields = fields.flat_map(|(name, text)| [name.into_bytes(), text.into_bytes()]);
    how.map(Into::into).into_iter().chain(fields).collect()
}

async fn put<T: Serialize>(
    port: &RedisPort,
    kind: &str,
    member: &str,
    mode: PutMode,
    stamp: &str,
    record: &T,
) -> Result<ControlReply, QueueError> {
    put_at(port, kind, member, mode, stamp, record).await?;
    Ok(ControlReply::Done)
}

/// As [`put`]; answers when it was written.
async fn put_at<T: Serialize>(
    port: &RedisPort,
    kind: &str,
    member: &str,
    mode: PutMode,
    stamp: &str,
    record: &T,
) -> Result<UnixMillis, QueueError> {
    let mode = match mode {
        PutMode::Replace => "replace",
        PutMode::Merge => "merge",
        PutMode::Raise => "raise",
    };
    let arguments = put_arguments([member, mode, stamp], record);
    let keys = record_keys(port, kind, member);
    let written = port.call_function(Function::ControlPut, &keys, &arguments, CALL_TRIES).await?;
    Ok(UnixMillis(written))
}

async fn remove(port: &RedisPort, kind: &str, member: &str) -> Result<ControlReply, QueueError> {
    let keys = record_keys(port, kind, member);
    port.call_function::<u64>(Function::ControlRemove, &keys, &[member.into()], CALL_TRIES).await?;
    Ok(ControlReply::Done)
}

async fn request_drain(
    port: &RedisPort,
    request: &DrainRequest,
) -> Result<ControlReply, QueueError> {
    let arguments = [
        "REQUEST".to_owned(),
        request.replica.to_string(),
        request.request_id.clone(),
        request.generation.to_string(),
        request.reason.as_str().to_owned(),
        whole_millis(request.remaining).to_string(),
        request.lost.to_string(),
    ];
    drain(port, request.replica.as_str(), &arguments).await
}

async fn report_drain(
    port: &RedisPort,
    progress: &DrainProgress,
) -> Result<ControlReply, QueueError> {
    let state = to_fields(&BTreeMap::from([("state", progress.state)]))["state"].clone();
    let arguments = [
        "REPORT".to_owned(),
        progress.replica.to_string(),
        progress.request_id.clone(),
        progress.generation.to_string(),
        state,
    ];
    drain(port, progress.replica.as_str(), &arguments).await
}

async fn drain(
    port: &RedisPort,
    replica: &str,
    arguments: &[String],
) -> Result<ControlReply, QueueError> {
    let arguments: Vec<Vec<u8>> = arguments.iter().map(|text| text.clone().into_bytes()).collect();
    let [record, index] = record_keys(port, "drain", replica);
    let keys = [record, index, key(port, "generation", "")];
    let fields: Fields =
        port.call_function(Function::ControlDrain, &keys, &arguments, CALL_TRIES).await?;
    if fields.is_empty() {
        return Ok(ControlReply::Drain(None));
    }
    Ok(ControlReply::Drain(Some(decode::<DrainRecord>(&fields)?)))
}

async fn resize(port: &RedisPort, arguments: Vec<String>) -> Result<ControlReply, QueueError> {
    let fields = resize_fields(port, arguments).await?;
    Ok(ControlReply::Resize(decode::<ResizeRecord>(&fields)?))
}

async fn resize_fields(port: &RedisPort, arguments: Vec<String>) -> Result<Fields, QueueError> {
    let arguments: Vec<Vec<u8>> = arguments.into_iter().map(String::into_bytes).collect();
    let keys = [key(port, "trainer", ""), key(port, "generation", "")];
    port.call_function(Function::ControlResize, &keys, &arguments, CALL_TRIES).await
}

fn decode<T: DeserializeOwned>(fields: &Fields) -> Result<T, QueueError> {
    from_fields(fields).map_err(|error| QueueError::Protocol { problem: error.to_string() })
}

async fn add_report(port: &RedisPort, report: &ClosingReport) -> Result<ControlReply, QueueError> {
    let mut arguments = vec![report.name().into_bytes()];
    for (name, text) in to_fields(report).into_iter().filter(|(name, _)| name != "at") {
        arguments.extend([name.into_bytes(), text.into_bytes()]);
    }
    let keys = [key(port, "reports", "")];
    port.call_function::<u64>(Function::ControlReport, &keys, &arguments, CALL_TRIES).await?;
    Ok(ControlReply::Done)
}

async fn read_reports(port: &RedisPort, limit: usize) -> Result<ControlReply, QueueError> {
    let reports = key(port, "reports", "");
    let mut pipeline = redis::pipe();
    pipeline.cmd("XREVRANGE").arg(&reports).arg("+").arg("-").arg("COUNT").arg(limit);
    let entries: Result<(Vec<(String, Fields)>,), _> = port.link.query(&reports, &pipeline).await;
    let (entries,) = entries.map_err(|error| error.to_queue_error())?;
    // One report that another version wrote must not hide the others.
    let reports = entries.iter().filter_map(|(_, fields)| decode(fields).ok());
    Ok(ControlReply::Reports(reports.collect()))
}

async fn read_journal(port: &RedisPort, limit: usize) -> Result<ControlReply, QueueError> {
    let journal = key(port, "journal", "");
    let mut pipeline = redis::pipe();
    pipeline.cmd("XREVRANGE").arg(&journal).arg("+").arg("-").arg("COUNT").arg(limit);
    let entries: Result<(Vec<(String, Fields)>,), _> = port.link.query(&journal, &pipeline).await;
    let (entries,) = entries.map_err(|error| error.to_queue_error())?;
    let lines = entries.into_iter().filter_map(|(id, mut fields)| {
        // The id of an entry begins with the server's clock.
        let at = id.split('-').next()?.parse().ok()?;
        Some(JournalLine { at: UnixMillis(at), line: fields.remove("line")? })
    });
    Ok(ControlReply::Journal(lines.collect()))
}

/// The keys of all records that stand, each with its kind.
async fn record_keys_of_all(port: &RedisPort) -> Result<Vec<(&'static str, String)>, QueueError> {
    let mut pipeline = redis::pipe();
    for kind in KINDS {
        pipeline.cmd("SMEMBERS").arg(key(port, &format!("{kind}s"), ""));
    }
    let any_key = key(port, "meta", "");
    let members: Result<Vec<Vec<String>>, _> = port.link.query(&any_key, &pipeline).await;
    let members = members.map_err(|error| error.to_queue_error())?;
    let mut wanted: Vec<(&str, String)> =
        SINGLES.iter().chain(&ACCOUNTS).map(|kind| (*kind, key(port, kind, ""))).collect();
    for (kind, members) in KINDS.iter().zip(&members) {
        wanted.extend(members.iter().map(|member| (*kind, key(port, kind, member))));
    }
    Ok(wanted)
}

/// Every control key of the run.
pub(super) async fn all_keys(port: &RedisPort) -> Result<Vec<String>, QueueError> {
    let records = record_keys_of_all(port).await?.into_iter().map(|(_, key)| key);
    let indexes = KINDS.iter().map(|kind| key(port, &format!("{kind}s"), ""));
    let others = ["generation", "claims", "reports", "journal"].map(|name| key(port, name, ""));
    Ok(records.chain(indexes).chain(others).collect())
}

/// Reads the indexes, then all records at one moment. A record that is written between the two
/// steps is seen by the next read.
pub(super) async fn read_all(port: &RedisPort) -> Result<ControlReply, QueueError> {
    let wanted = record_keys_of_all(port).await?;
    Ok(ControlReply::View(Box::new(read(port, &wanted).await?)))
}

/// Reads the name of the store and the purchases.
async fn read_purchases(port: &RedisPort) -> Result<ControlReply, QueueError> {
    let index = key(port, "purchases", "");
    let mut pipeline = redis::pipe();
    pipeline.cmd("SMEMBERS").arg(&index);
    let members: Result<(Vec<String>,), _> = port.link.query(&index, &pipeline).await;
    let (members,) = members.map_err(|error| error.to_queue_error())?;
    let own = members.iter().map(|member| ("purchase", key(port, "purchase", member)));
    let wanted: Vec<_> = own.chain([("meta", key(port, "meta", ""))]).collect();
    let book = read(port, &wanted).await?.into_purchases();
    Ok(ControlReply::Purchases(Box::new(book)))
}

/// Reads the drain of one replica, whether it is slow, and what there is only one of.
async fn read_replica(port: &RedisPort, replica: ReplicaId) -> Result<ControlReply, QueueError> {
    let singles = SINGLES.iter().map(|kind| (*kind, key(port, kind, "")));
    let own = ["drain", "straggler"].map(|kind| (kind, key(port, kind, replica.as_str())));
    let wanted: Vec<(&str, String)> = singles.chain(own).collect();
    let view = read(port, &wanted).await?.into_replica(replica);
    Ok(ControlReply::Replica(Box::new(ReplicaView { members: None, ..view })))
}

/// The records of these keys, each with its kind, all of one moment.
async fn read(port: &RedisPort, wanted: &[(&str, String)]) -> Result<ControlView, QueueError> {
    let keys: Vec<String> = wanted.iter().map(|(_, key)| key.clone()).collect();
    let (now, records): (u64, Vec<Fields>) =
        port.call_function(Function::ControlRead, &keys, &[], CALL_TRIES).await?;
    let mut view = ControlView { now: UnixMillis(now), ..ControlView::default() };
    for ((kind, key), fields) in wanted.iter().zip(&records).filter(|(_, f)| !f.is_empty()) {
        // One record that another version wrote, or a person, must not hide all the others.
        if let Err(error) = add_to_view(&mut view, kind, fields) {
            tracing::warn!(key, %error, "control record is left out");
            if *kind == "hold" {
                view.holds.push(unread_hold(key, &error, view.now));
            }
        }
    }
    Ok(view)
}

/// A hold that nobody understands holds, until it can be read.
fn unread_hold(key: &str, error: &QueueError, now: UnixMillis) -> HoldRecord {
    HoldRecord {
        role: key.rsplit(':').next().unwrap_or_default().to_owned(),
        until: now.plus(UNREAD_HOLD),
        reason: format!("its record {key} cannot be read: {error}"),
        who: "somebody".to_owned(),
    }
}

fn add_to_view(view: &mut ControlView, kind: &str, fields: &Fields) -> Result<(), QueueError> {
    match kind {
        "node" => view.nodes.push(decode::<NodeRecord>(fields)?),
        "drain" => view.drains.push(decode(fields)?),
        "engine" => view.engines.push(decode(fields)?),
        "hold" => {
            let hold: HoldRecord = decode(fields)?;
            if hold.until > view.now {
                view.holds.push(hold);
            }
        }
        "lifecycle" => view.lifecycles.push(decode(fields)?),
        "straggler" => view.stragglers.push(decode(fields)?),
        "trainer" => {
            view.checkpoint = decode(fields)?;
            view.resize = decode(fields)?;
            // Asked for something before it has ever reported.
            if fields.contains_key("phase") {
                view.trainer = Some(decode(fields)?);
            }
        }
        "version" => view.version = decode(fields)?,
        "purchase" => view.purchases.push(decode(fields)?),
        "meta" if fields.contains_key("store") => view.store = Some(decode(fields)?),
        "ledger" => view.ledger = Some(decode(fields)?),
        "reaper" => {
            let beat = fields.get("heartbeat").and_then(|text| text.parse().ok());
            view.reaper_beat = beat.map(UnixMillis);
        }
        _ => {}
    }
    Ok(())
}
