//! Laws of the tail: what is sent under which version, and what is thrown away.

use ebbtide_core::fabric::FabricVerdict;
use ebbtide_core::ids::FencingToken;

use super::*;

fn tail(offset: u32, version: u64) -> Tail {
    let origin = Origin {
        holder: "n/b/agent-p".parse().expect("valid"),
        fencing_token: FencingToken(1),
        engine: "vllm/0".to_owned(),
        fabric: FabricVerdict::NotApplicable,
        started_at: UnixMillis(0),
        ended_at: UnixMillis(0),
    };
    Tail::new(origin, offset, PolicyVersion(version))
}

fn shape(chunks: &[Chunk]) -> Vec<(u32, u64, Vec<i32>)> {
    chunks.iter().map(|c| (c.offset, c.weight_version.0, c.token_ids.clone())).collect()
}

fn push(tail: &mut Tail, ids: &[i32]) {
    assert!(tail.push(ids, &vec![-1.0; ids.len()], UnixMillis(5)));
}

fn span(label: &str, start: u32, end: u32) -> WeightSpan {
    WeightSpan { label: label.to_owned(), start, end }
}

#[test]
fn tokens_of_one_version_are_one_chunk() {
    let mut tail = tail(10, 3);
    push(&mut tail, &[1]);
    push(&mut tail, &[2, 3]);
    tail.raise_version(PolicyVersion(2));
    push(&mut tail, &[4]);
    tail.raise_version(PolicyVersion(4));
    push(&mut tail, &[5]);
    assert_eq!(tail.end(), 15);
    assert_eq!(shape(tail.send()), [(10, 3, vec![1, 2, 3, 4]), (14, 4, vec![5])]);
}

#[test]
fn sent_chunk_stays_as_it_was_until_it_is_stored() {
    let mut tail = tail(0, 1);
    push(&mut tail, &[1, 2]);
    let first = tail.send().to_vec();
    push(&mut tail, &[3]);
    tail.correct(&[span("2", 0, 3)], 0);
    let again = tail.send().to_vec();
    assert_eq!(again[..1], first, "the lost reply is repeated");
    assert_eq!(shape(&again), [(0, 1, vec![1, 2]), (2, 2, vec![3])]);
    assert_eq!(tail.stored(1), 2);
    assert_eq!(tail.tokens(), 1);
}

#[test]
fn versions_told_at_the_end_cut_chunks_and_never_fall() {
    let mut tail = tail(10, 5);
    push(&mut tail, &[1, 2, 3, 4, 5]);
    assert_eq!(tail.correct(&[span("5", 0, 2), span("6", 2, 4), span("3", 4, 5)], 10), 1);
    assert_eq!((tail.end(), tail.is_cut()), (14, true));
    assert_eq!(shape(tail.send()), [(10, 5, vec![1, 2]), (12, 6, vec![3, 4])]);
}

/// Contract, sections 1 and 5: unknown weights are never appended, lower ones never accepted.
#[test]
fn tokens_of_labels_that_are_no_versions_or_fell_are_thrown_away() {
    for label in ["default", "", "4", "-1"] {
        for (spans, kept) in [
            (vec![span(label, 0, 5)], 0),
            (vec![span("5", 0, 3), span(label, 3, 5)], 3),
            (vec![span("5", 0, 1), span(label, 1, 2), span("5", 2, 5)], 1),
        ] {
            let mut tail = tail(10, 5);
            push(&mut tail, &[1, 2]);
            push(&mut tail, &[3, 4, 5]);
            assert_eq!(tail.correct(&spans, 10), u64::from(5 - kept), "{spans:?}");
            assert!(tail.is_cut(), "{spans:?}");
            assert_eq!(tail.end(), 10 + kept, "{spans:?}");
            let shape = shape(tail.send());
            let ids: Vec<i32> = shape.iter().flat_map(|(_, _, ids)| ids.clone()).collect();
            assert_eq!(ids, [1, 2, 3, 4, 5][..kept as usize], "{spans:?}");
            assert!(shape.iter().all(|(_, version, _)| *version == 5), "{spans:?}");
        }
    }
}

#[test]
fn engine_that_tells_no_versions_in_its_streams_is_taken_at_its_probes_word() {
    let mut tail = tail(0, 5);
    push(&mut tail, &[1, 2]);
    tail.raise_version(PolicyVersion(6));
    push(&mut tail, &[3]);
    assert_eq!((tail.correct(&[], 0), tail.is_cut()), (0, false));
    assert_eq!(shape(tail.send()), [(0, 5, vec![1, 2]), (2, 6, vec![3])]);
}

/// The probe may see a new version before the tokens of the old one have come.
#[test]
fn version_below_what_the_agent_believed_is_no_fall() {
    let mut tail = tail(0, 5);
    push(&mut tail, &[1]);
    tail.raise_version(PolicyVersion(6));
    push(&mut tail, &[2, 3]);
    assert_eq!(tail.correct(&[span("5", 0, 2), span("6", 2, 3)], 0), 0);
    assert_eq!(shape(tail.send()), [(0, 5, vec![1, 2]), (2, 6, vec![3])]);
}

#[test]
fn tokens_in_doubt_are_kept_as_far_as_the_engine_vouches_for_them() {
    let doubted = || {
        let mut tail = tail(0, 5);
        push(&mut tail, &[1, 2]);
        tail.send();
        push(&mut tail, &[3, 4]);
        tail.doubt();
        tail
    };
    for (spans, kept) in [
        (vec![span("5", 0, 4)], 4),
        (vec![span("5", 0, 3), span("x", 3, 4)], 3),
        (vec![span("5", 0, 3)], 3),
        (vec![], 2),
    ] {
        let mut tail = doubted();
        assert_eq!(tail.correct(&spans, 0), 4 - kept, "{spans:?}");
        assert_eq!((tail.tokens(), tail.is_cut()), (kept, kept < 4), "{spans:?}");
    }
    let mut tail = doubted();
    assert!(!tail.push(&[5], &[-1.0], UnixMillis(5)), "it is of unknown weights");
    assert_eq!((tail.correct(&[span("5", 0, 4)], 0), tail.tokens()), (0, 4));
    assert!(tail.is_cut(), "a token is missing");
    let mut tail = doubted();
    assert_eq!((tail.drop_doubted(), tail.tokens()), (2, 2), "what was sent is repeated");
}

#[test]
fn offset_of_the_queue_is_followed_only_where_a_chunk_ends() {
    let mut tail = tail(0, 1);
    push(&mut tail, &[1, 2]);
    tail.send();
    push(&mut tail, &[3]);
    tail.send();
    assert_eq!(tail.realign(1), None);
    assert_eq!(tail.realign(2), Some(2));
    assert_eq!(shape(tail.send()), [(2, 1, vec![3])]);
}
