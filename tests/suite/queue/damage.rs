//! Raw keys of a run are damaged in every way that the audit knows: each damage is found, mended,
//! and the run goes on to its end with nothing lost that was not lost before.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ebbtide_core::ids::{FencingToken, PolicyVersion};
use ebbtide_harness::{Redis, require};
use ebbtide_queue::control::VersionRecord;

use super::damages::{CHANGE_NUMBER, DAMAGES, DROP_LAST, GARBLE_IDS};
use super::world::{LONG, Run, WHOLE, complete, group, holder, tokens};

async fn inflict(run: &mut Run, command: &str) {
    let words: Vec<String> = command
        .split(' ')
        .map(|word| word.strip_prefix(':').map_or(word.to_owned(), |name| run.key(name)))
        .collect();
    let script = match words[0].as_str() {
        "CHANGE" => Some(CHANGE_NUMBER),
        "DROP_LAST" => Some(DROP_LAST),
        "GARBLE_IDS" => Some(GARBLE_IDS),
        _ => None,
    };
    let mut call = redis::cmd(if script.is_some() { "EVAL" } else { &words[0] });
    if let Some(script) = script {
        call.arg(script).arg(1);
    }
    call.arg(&words[1..]);
    call.query_async::<redis::Value>(&mut run.raw).await.unwrap();
}

/// Subject and problem of everything that was found.
fn problems(run: &Run, arguments: &[&str]) -> (i32, Vec<(String, String, bool)>) {
    let (code, answer) = run.json(arguments);
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    let problem = |found: &serde_json::Value| {
        (text(&found["subject"]), text(&found["problem"]), found["repaired"] == true)
    };
    (code, answer["problems"].as_array().unwrap().iter().map(problem).collect())
}

#[tokio::test]
async fn every_damage_is_found_and_mended_and_the_run_goes_on_to_its_end() {
    let redis = require!(Redis::start().await);
    for damage in DAMAGES {
        let mut run = Run::begin(&redis, damage.name, 1).await;
        let name = damage.name;
        run.fill().await;
        assert_eq!(problems(&run, &["check"]), (0, vec![]), "{name}: it begins whole");
        for command in damage.commands {
            inflict(&mut run, command).await;
        }

        let (code, found) = problems(&run, &["check"]);
        assert_eq!(code, 1, "{name}: {found:?}");
        for (subject, problem) in damage.found {
            let is_found = found
                .iter()
                .any(|(s, p, mended)| s == subject && p.starts_with(problem) && !mended);
            assert!(is_found, "{name}: {subject} {problem} is not in {found:#?}");
        }
        let (code, mended) = problems(&run, &["check", "--repair"]);
        assert!(code == 0 && mended.iter().all(|(_, _, mended)| *mended), "{name}: {mended:#?}");
        assert!(mended.len() >= found.len(), "{name}: {mended:#?}");
        assert_eq!(problems(&run, &["check"]), (0, vec![]), "{name}: it is whole again");
        let wasted = run.status().await.tokens.wasted_total();
        assert!(wasted <= damage.tokens_wasted, "{name}: {wasted} tokens are wasted");

        // Groups whose record was lost have failed with their prompt: they are enqueued again.
        run.command(&["dead", "retry", "--all"]);
        let delivered = run.finish().await;
        let all = BTreeSet::from(["fresh", "mixed", "partly", "sealed", "taken"].map(String::from));
        let lost = damage.lost_groups.iter().map(|group| (*group).to_owned()).collect();
        assert_eq!(delivered, &all - &lost, "{name}");
        assert_eq!(problems(&run, &["check"]), (0, vec![]), "{name}: it ends whole");
        assert_eq!(run.status().await.in_system(), 0, "{name}");
    }
}

#[tokio::test]
async fn damage_in_the_reward_stage_is_mended_too() {
    let redis = require!(Redis::start().await);
    let damages = [
        ("reward-lease", "ZREM :lease:reward g.0000", "is in no queue", 0),
        ("reward-ready", "ZREM :ready:reward g.0001", "is in no queue", 0),
        ("reward-chunk", "HDEL :chunks g.0001/0", "has lost stored tokens", WHOLE),
        // Nobody knows how the response had ended: it is generated once more.
        ("reward-record", "HDEL :units g.0001", "has lost its record", WHOLE),
    ];
    for (name, command, problem, wasted) in damages {
        let mut run = Run::begin_with(&redis, name, 1, 2).await;
        run.enqueue("g").await;
        for grant in run.lease("a", 3).await {
            run.write("a", &grant, vec![tokens(0, WHOLE)], complete()).await;
        }
        let scorer = holder("s");
        assert_eq!(run.queue.lease_to_score(&scorer, 1, LONG).await.unwrap().grants.len(), 1);
        inflict(&mut run, command).await;
        let (code, mended) = problems(&run, &["check", "--repair"]);
        assert_eq!((code, mended[0].1.as_str()), (0, problem), "{name}");
        assert_eq!(run.status().await.tokens.wasted_total(), u64::from(wasted), "{name}");
        for grant in run.lease("a", 3).await {
            run.write("a", &grant, vec![tokens(0, WHOLE)], complete()).await;
        }
        run.queue.reclaim(&"s/boot-2/agent-s".parse().unwrap()).await.unwrap();
        for grant in run.queue.lease_to_score(&scorer, 3, LONG).await.unwrap().grants {
            let score = ebbtide_core::sample::Score {
                value: 1.0,
                scorer_version: "s/1".to_owned(),
                metadata: Vec::new(),
            };
            run.write("s", &grant, vec![], ebbtide_queue::command::Then::Score(score)).await;
        }
        assert_eq!(run.finish().await.len(), 1, "{name}");
        assert_eq!(problems(&run, &["check"]), (0, vec![]), "{name}");
    }
}

#[tokio::test]
async fn sample_lost_from_a_taken_group_is_missing_and_its_siblings_come_again() {
    let redis = require!(Redis::start().await);
    for (name, command) in
        [("taken-chunk", "HDEL :chunks taken.0001/0"), ("taken-record", "HDEL :units taken.0001")]
    {
        let mut run = Run::begin(&redis, name, 1).await;
        run.fill().await;
        inflict(&mut run, command).await;
        let (code, mended) = problems(&run, &["check", "--repair"]);
        assert_eq!(code, 0, "{name}: {mended:#?}");
        let taken = run.queue.take("trainer", 1).await.unwrap().remove(0);
        assert!(taken.is_redelivered);
        assert_eq!((taken.samples.len(), taken.missing_slots), (2, vec![1]), "{name}");
        assert_eq!(run.status().await.tokens.wasted_total(), u64::from(WHOLE), "{name}");
        assert_eq!(run.finish().await.len(), 5, "{name}");
        assert_eq!(problems(&run, &["check"]), (0, vec![]), "{name}");
    }
}

#[tokio::test]
async fn what_a_trainer_holds_is_not_put_into_the_buffer_a_second_time() {
    let redis = require!(Redis::start().await);
    let mut run = Run::begin(&redis, "taken-entry", 1).await;
    run.fill().await;
    let entries: Vec<(String, Vec<String>)> = redis::cmd("XRANGE")
        .arg(run.key("out"))
        .arg("-")
        .arg("+")
        .query_async(&mut run.raw)
        .await
        .unwrap();
    inflict(&mut run, &format!("XDEL :out {}", entries[0].0)).await;
    let (code, found) = problems(&run, &["check", "--repair"]);
    let text = "is taken and would not be delivered again".to_owned();
    assert_eq!((code, found), (1, vec![("taken".to_owned(), text, false)]));
    // The trainer that has it acknowledges it, and all is well.
    let acknowledged = run.queue.acknowledge("trainer", &["taken".parse().unwrap()]).await.unwrap();
    assert_eq!(acknowledged, 1);
    assert_eq!(problems(&run, &["check"]), (0, vec![]));
}

#[tokio::test]
async fn lost_policy_version_is_raised_again() {
    let redis = require!(Redis::start().await);
    let mut run = Run::begin(&redis, "version", 2).await;
    let record = VersionRecord { version: PolicyVersion(3), ..VersionRecord::default() };
    run.queue.set_version(record).await.unwrap();
    inflict(&mut run, "DEL :version").await;
    let (code, found) = problems(&run, &["check"]);
    assert_eq!((code, found.len()), (1, 1), "{found:?}");
    assert_eq!(found[0].1, "its policy version is 0, 3 is published");
    assert_eq!(problems(&run, &["check", "--repair"]).0, 0);
    assert_eq!(run.status().await.version, PolicyVersion(3));
}

#[tokio::test]
async fn group_that_would_not_expire_expires_again() {
    let redis = require!(Redis::start().await);
    let mut run = Run::begin(&redis, "expiry", 1).await;
    let mut short_lived = group("g");
    short_lived.expires_at = Some(ebbtide_core::time::UnixMillis(1_900_000_000_000));
    run.queue.enqueue(short_lived).await.unwrap();
    inflict(&mut run, "DEL :expiry").await;
    let found = problems(&run, &["check", "--repair"]);
    assert_eq!(found, (0, vec![("g".to_owned(), "would not expire".to_owned(), true)]));
}

#[tokio::test]
async fn older_token_is_refused_after_its_record_was_lost() {
    let redis = require!(Redis::start().await);
    let mut run = Run::begin(&redis, "fencing", 1).await;
    run.fill().await;
    inflict(&mut run, "HDEL :units mixed.0000").await;
    inflict(&mut run, "HSET :counters token 0").await;
    assert_eq!(problems(&run, &["check", "--repair"]).0, 0);
    let new = run.lease("z", 100).await;
    let new = new.iter().find(|grant| grant.unit.to_string() == "mixed.0000").unwrap();
    assert_eq!(new.partial.last().unwrap().end(), 7, "its tokens are kept");
    let zombie = ebbtide_queue::command::UnitWrite {
        unit: new.unit.clone(),
        fencing_token: FencingToken(new.fencing_token.0 - 1),
        tail: vec![tokens(7, WHOLE)],
        then: complete(),
    };
    let reply = run.queue.write(&holder("b"), vec![zombie]).await.remove(0).unwrap();
    assert_eq!(reply, ebbtide_queue::reply::WriteReply::Fenced);
}

#[tokio::test(flavor = "multi_thread")]
async fn run_at_work_gives_no_false_alarm() {
    let redis = require!(Redis::start().await);
    let run = Arc::new(Run::begin(&redis, "busy", 2).await);
    let is_over = Arc::new(AtomicBool::new(false));
    let working = tokio::spawn({
        let (run, is_over) = (run.clone(), is_over.clone());
        async move {
            let mut number = 0;
            while !is_over.load(Ordering::Relaxed) {
                number += 1;
                run.enqueue(&format!("g{number}")).await;
                let terms = ebbtide_queue::client::LeaseTerms {
                    stage: ebbtide_queue::command::Stage::Generate,
                    holder: &holder("a"),
                    ttl: LONG,
                    worker_version: PolicyVersion(0),
                };
                let leased = run.queue.lease_while(terms, 5, || true).await.unwrap();
                for grant in leased.grants {
                    let from = grant.partial.last().map_or(0, ebbtide_core::sample::Chunk::end);
                    let then = if number % 3 == 0 {
                        ebbtide_queue::command::Then::HandBack(
                            ebbtide_queue::command::HandBackCause::Drain.into(),
                        )
                    } else {
                        complete()
                    };
                    run.write("a", &grant, vec![tokens(from, from + 2)], then).await;
                }
                let taken = run.queue.take("t", 8).await.unwrap();
                let ids: Vec<_> = taken.iter().map(|taken| taken.group.group_id.clone()).collect();
                run.queue.acknowledge("t", &ids).await.unwrap();
            }
            number
        }
    });
    for _ in 0..10 {
        let run = run.clone();
        let (code, found) =
            tokio::task::spawn_blocking(move || problems(&run, &["check"])).await.unwrap();
        assert_eq!((code, found), (0, vec![]));
    }
    is_over.store(true, Ordering::Relaxed);
    assert!(working.await.unwrap() > 10, "it was at work meanwhile");
}
