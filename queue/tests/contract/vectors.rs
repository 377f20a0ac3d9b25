//! `queue/vectors.json`: bytes that this crate and the Python client must write and read alike.

use std::sync::Arc;

use ebbtide_core::fabric::FabricVerdict;
use ebbtide_core::ids::{GroupId, PolicyVersion, UnitId};
use ebbtide_core::sample::{Chunk, Finish, Origin, Score};
use ebbtide_core::time::UnixMillis;
use ebbtide_core::work::{OnDeadSlot, PromptGroup, Sampling};
use ebbtide_queue::client::{MemoryPort, WorkQueue, wall_clock_now};
use ebbtide_queue::codec::{self, RunOrigin};
use ebbtide_queue::control::{ResizeRecord, TrainerRecord, from_fields};
use ebbtide_queue::memory::ShardSettings;
use serde::de::DeserializeOwned;
use serde_json::Value;

#[test]
fn chunks_are_written_and_read_as_in_the_vectors() {
    let origin = origin(&vectors()["chunk_origin"]);
    for vector in cases("chunks") {
        let chunk = Chunk {
            offset: field(&vector, "offset"),
            weight_version: PolicyVersion(field(&vector, "weight_version")),
            token_ids: field(&vector, "token_ids"),
            logprobs: vector["logprobs"].as_array().unwrap().iter().map(logprob).collect(),
            origin: Origin {
                holder: origin.holder.clone(),
                fencing_token: origin.fencing_token,
                engine: origin.engine.clone(),
                fabric: origin.fabric,
                started_at: UnixMillis(field(&vector, "started_at_ms")),
                ended_at: UnixMillis(field(&vector, "ended_at_ms")),
            },
        };
        assert_eq!(codec::encode_chunk(&chunk), bytes(&vector), "{vector}");
        assert_eq!(codec::decode_chunk(&bytes(&vector), &origin), Ok(chunk), "{vector}");
    }
}

#[test]
fn damaged_chunks_of_the_vectors_are_refused() {
    let origin = origin(&vectors()["chunk_origin"]);
    for vector in cases("bad_chunks") {
        assert!(codec::decode_chunk(&bytes(&vector), &origin).is_err(), "{vector}");
    }
}

#[test]
fn origins_are_read_as_in_the_vectors() {
    for vector in cases("origins") {
        assert_eq!(codec::decode_origin(&bytes(&vector)), Ok(origin(&vector)), "{vector}");
    }
}

#[test]
fn groups_are_written_and_read_as_in_the_vectors() {
    for vector in cases("groups") {
        let group = group(&vector);
        assert_eq!(codec::encode_group(&group), bytes(&vector), "{vector}");
        assert_eq!(codec::decode_group(&bytes(&vector)), Ok(group), "{vector}");
    }
}

#[test]
fn finishes_are_written_and_read_as_in_the_vectors() {
    for vector in cases("finishes") {
        let finish =
            Finish { reason: field(&vector, "reason"), stop_reason: field(&vector, "stop_reason") };
        assert_eq!(rmp_serde::to_vec_named(&finish).unwrap(), bytes(&vector), "{vector}");
        let read: Finish = rmp_serde::from_slice(&bytes(&vector)).unwrap();
        assert_eq!(read, finish, "{vector}");
    }
}

#[test]
fn scores_are_written_and_read_as_in_the_vectors() {
    for vector in cases("scores") {
        let score = Score {
            value: field(&vector, "value"),
            scorer_version: field(&vector, "scorer_version"),
            metadata: hex(&text(&vector["metadata"])),
        };
        assert_eq!(codec::encode_score(&score), bytes(&vector), "{vector}");
        assert_eq!(codec::decode_score(&bytes(&vector)), Ok(score), "{vector}");
    }
}

#[test]
fn groups_lie_on_the_shards_of_the_vectors() {
    for shard_count in [1_u16, 2, 7, 16, 1000] {
        let port = MemoryPort::new(shard_count, ShardSettings::default(), wall_clock_now);
        let queue = WorkQueue::new(Arc::new(port));
        for vector in cases("shards") {
            let shard: u16 = field(&vector, &format!("of_{shard_count}"));
            let group: GroupId = field(&vector, "group_id");
            assert_eq!(queue.shard_of(&group), shard, "{vector}");
        }
    }
}

#[test]
fn units_are_named_as_in_the_vectors() {
    for vector in cases("unit_ids") {
        let unit = UnitId { group: field(&vector, "group_id"), slot: field(&vector, "slot") };
        assert_eq!(unit.to_string(), text(&vector["unit_id"]));
        assert_eq!(text(&vector["unit_id"]).parse::<UnitId>(), Ok(unit));
    }
    for bad in cases("bad_unit_ids") {
        assert!(text(&bad).parse::<UnitId>().is_err(), "{bad}");
    }
}

/// One hash holds what the trainer says, and what it is asked for.
#[test]
fn trainer_record_is_read_whatever_else_it_holds() {
    let fields = [
        ("phase", "wait"),
        ("step", "7"),
        ("groups_per_step", "4"),
        ("heartbeat", "9"),
        ("size", "2"),
        ("incarnation", "5f0c"),
        ("resize_size", "3"),
        ("resize_generation", "12"),
        ("confirmed_generation", "11"),
        ("checkpoint_requested", "1764000000000"),
        ("checkpoint_confirmed", "0"),
    ];
    let fields = fields.map(|(name, text)| (name.to_owned(), text.to_owned()));
    let record: TrainerRecord = from_fields(&fields.clone().into()).unwrap();
    assert_eq!((record.step, record.nodes, record.heartbeat), (7, Some(2), UnixMillis(9)));
    assert_eq!(record.incarnation.unwrap().as_str(), "5f0c");
    let resize: ResizeRecord = from_fields(&fields.into()).unwrap();
    assert_eq!((resize.size, resize.generation, resize.confirmed), (Some(3), 12, 11));
}

fn vectors() -> Value {
    serde_json::from_str(include_str!("../../vectors.json")).unwrap()
}

fn cases(name: &str) -> Vec<Value> {
    let cases = vectors()[name].as_array().unwrap().clone();
    assert!(!cases.is_empty(), "{name}");
    cases
}

fn field<T: DeserializeOwned>(vector: &Value, name: &str) -> T {
    T::deserialize(&vector[name]).unwrap_or_else(|error| panic!("{name} of {vector}: {error}"))
}

/// Long texts come in parts.
fn text(value: &Value) -> String {
    match value {
        Value::Array(parts) => parts.iter().map(|part| part.as_str().unwrap()).collect(),
        one => one.as_str().unwrap().to_owned(),
    }
}

fn bytes(vector: &Value) -> Vec<u8> {
    hex(&text(&vector["bytes"]))
}

fn hex(text: &str) -> Vec<u8> {
    let digit = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    (0..text.len()).step_by(2).map(digit).collect()
}

fn logprob(value: &Value) -> f32 {
    value.as_f64().map_or(f32::NEG_INFINITY, |number| number as f32)
}

fn origin(vector: &Value) -> RunOrigin {
    RunOrigin {
        holder: field(vector, "holder"),
        fencing_token: field(vector, "fencing_token"),
        engine: field(vector, "engine"),
        fabric: field::<FabricVerdict>(vector, "fabric"),
    }
}

fn group(vector: &Value) -> PromptGroup {
    let min_samples: Option<u16> = field(vector, "min_samples");
    PromptGroup {
        schema: 1,
        group_id: field(vector, "group_id"),
        group_size: field(vector, "group_size"),
        prompt_token_ids: field(vector, "prompt_token_ids"),
        sampling: field::<Sampling>(vector, "sampling"),
        model_id: field(vector, "model_id"),
        tokenizer_fingerprint: text(&vector["tokenizer_fingerprint"]),
        enqueue_policy_version: field(vector, "enqueue_policy_version"),
        min_policy_version: field(vector, "min_policy_version"),
        max_lag: field(vector, "max_lag"),
        resume_policy: field(vector, "resume_policy"),
        on_dead_slot: min_samples
            .map_or(OnDeadSlot::Fail, |min_samples| OnDeadSlot::Shrink { min_samples }),
        priority: field(vector, "priority"),
        expires_at: field::<Option<u64>>(vector, "expires_at_ms").map(UnixMillis),
        max_attempts: field(vector, "max_attempts"),
        max_infra_attempts: field(vector, "max_infra_attempts"),
        max_leased_ms: field(vector, "max_leased_ms"),
        meta: hex(&text(&vector["meta"])),
    }
}
