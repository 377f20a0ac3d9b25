//! Laws of the scheduler, without HTTP and without time.

use super::super::sequence::VersionSpan;
use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn scheduler(change: impl FnOnce(&mut EngineConfig)) -> Scheduler {
    let mut config = EngineConfig { tokens_per_second: 10.0, ..EngineConfig::default() };
    change(&mut config);
    Scheduler::new(&config)
}

fn call(id: &str, max_tokens: u32) -> GenerateCall {
    GenerateCall {
        request_id: id.to_owned(),
        prompt: vec![5, 6, 7],
        max_tokens: Some(max_tokens),
        sampling_seed: 0,
        ignore_eos: true,
        stop_token_ids: Vec::new(),
    }
}

/// Everything sent so far: how many tokens, and the end if there was one.
fn drain(emissions: &mut Emissions) -> (usize, Option<(Finish, Vec<VersionSpan>)>) {
    let (mut count, mut end) = (0, None);
    while let Ok(emission) = emissions.try_recv() {
        match emission {
            Emission::Tokens { tokens, .. } => count += tokens.len(),
            Emission::End { tokens, finish, spans } => {
                count += tokens.len();
                end = Some((finish, spans));
            }
            Emission::Failed => panic!("the core was not killed"),
        }
    }
    (count, end)
}

fn finish(emissions: &mut Emissions) -> Option<Finish> {
    drain(emissions).1.map(|(finish, _)| finish)
}

#[test]
fn stream_runs_at_the_set_speed_and_ends_at_its_limit() {
    let mut scheduler = scheduler(|_| {});
    let mut emissions = scheduler.submit(call("a", 25)).unwrap();
    scheduler.tick(SECOND);
    assert_eq!(drain(&mut emissions), (10, None));
    scheduler.tick(SECOND / 20);
    assert_eq!(drain(&mut emissions).0, 0, "half a token is none");
    scheduler.tick(SECOND / 20);
    assert_eq!(drain(&mut emissions).0, 1);
    scheduler.tick(SECOND * 5);
    let span = VersionSpan { label: "default".into(), start: 0, end: 25 };
    assert_eq!(drain(&mut emissions), (14, Some((Finish::Length, vec![span]))));
    assert_eq!(scheduler.counts().tokens_generated, 25);
}

#[test]
fn streams_slow_each_other_as_configured() {
    let mut scheduler = scheduler(|config| config.slowdown_per_stream = 0.5);
    let mut streams: Vec<_> =
        ["a", "b", "c"].iter().map(|id| scheduler.submit(call(id, 100)).unwrap()).collect();
    scheduler.tick(SECOND);
    let made: Vec<_> = streams.iter_mut().map(|stream| drain(stream).0).collect();
    assert_eq!(made, [5, 5, 5]);
}

#[test]
fn waiting_streams_get_the_free_place_in_order() {
    let mut scheduler = scheduler(|config| config.max_running = 1);
    let mut first = scheduler.submit(call("a", 10)).unwrap();
    let mut second = scheduler.submit(call("b", 10)).unwrap();
    let mut third = scheduler.submit(call("c", 10)).unwrap();
    assert_eq!((scheduler.counts().running, scheduler.counts().waiting), (1, 2));
    scheduler.tick(SECOND);
    assert_eq!(finish(&mut first), Some(Finish::Length));
    assert_eq!(scheduler.counts().running, 1, "the place is filled in the same tick");
    scheduler.tick(SECOND);
    assert_eq!(finish(&mut second), Some(Finish::Length));
    assert_eq!(drain(&mut third).0, 0);
}

#[test]
fn long_emission_is_split_into_chunks() {
    let mut scheduler = scheduler(|config| config.chunk_tokens_max = 4);
    let mut emissions = scheduler.submit(call("a", 100)).unwrap();
    scheduler.tick(SECOND);
    let mut sizes = Vec::new();
    while let Ok(Emission::Tokens { tokens, .. }) = emissions.try_recv() {
        sizes.push(tokens.len());
    }
    assert_eq!(sizes, [4, 4, 2]);
}

#[test]
fn stop_token_ends_a_stream_and_is_part_of_it() {
    let mut scheduler = scheduler(|_| {});
    let mut whole = scheduler.submit(call("a", 8)).unwrap();
    scheduler.tick(SECOND);
    let Ok(Emission::End { tokens, .. }) = whole.try_recv() else { panic!("expected the end") };
    let stop = tokens[5].id;
    let mut stopped =
        scheduler.submit(GenerateCall { stop_token_ids: vec![stop], ..call("b", 8) }).unwrap();
    scheduler.tick(SECOND);
    let (count, end) = drain(&mut stopped);
    assert_eq!((count, end.unwrap().0), (6, Finish::Stop(Some(stop))));
}

#[test]
fn aborted_stream_gets_the_tokens_it_was_due_and_then_the_end() {
    let mut scheduler = scheduler(|config| config.max_running = 1);
    let mut running = scheduler.submit(call("a", 100)).unwrap();
    let mut waiting = scheduler.submit(call("b", 100)).unwrap();
    scheduler.abort(&Selection::Ids(vec!["a".into(), "b".into(), "unknown".into()]));
    scheduler.tick(SECOND / 5);
    let span = VersionSpan { label: "default".into(), start: 0, end: 2 };
    assert_eq!(drain(&mut running), (2, Some((Finish::Abort, vec![span]))));
    assert_eq!(drain(&mut waiting), (0, Some((Finish::AbortInQueue, Vec::new()))));
    assert!(scheduler.counts().is_idle());
}

#[test]
fn kept_streams_make_nothing_while_paused_and_go_on_after() {
    let mut scheduler = scheduler(|_| {});
    let mut kept = scheduler.submit(call("a", 20)).unwrap();
    scheduler.pause(PauseMode::Keep);
    let mut held = scheduler.submit(call("b", 20)).unwrap();
    scheduler.tick(SECOND);
    assert_eq!((drain(&mut kept).0, drain(&mut held).0), (0, 0));
    scheduler.resume();
    scheduler.tick(SECOND);
    assert_eq!((drain(&mut kept).0, drain(&mut held).0), (10, 10));
}

#[test]
fn pause_that_waits_lets_running_streams_finish_and_starts_none() {
    let mut scheduler = scheduler(|_| {});
    let mut running = scheduler.submit(call("a", 10)).unwrap();
    scheduler.pause(PauseMode::Wait);
    let mut held = scheduler.submit(call("b", 10)).unwrap();
    assert!(scheduler.is_paused() && !scheduler.is_frozen());
    scheduler.tick(SECOND);
    assert_eq!(finish(&mut running), Some(Finish::Length));
    assert!(scheduler.is_frozen());
    assert_eq!(drain(&mut held).0, 0);
}

#[test]
fn pause_that_aborts_ends_everything() {
    let mut scheduler = scheduler(|config| config.max_running = 1);
    let mut running = scheduler.submit(call("a", 10)).unwrap();
    let mut waiting = scheduler.submit(call("b", 10)).unwrap();
    scheduler.pause(PauseMode::Abort);
    scheduler.tick(SECOND);
    assert_eq!(finish(&mut running), Some(Finish::Abort));
    assert_eq!(finish(&mut waiting), Some(Finish::AbortInQueue));
    assert_eq!(scheduler.counts().paused_aborts, 2);
}

#[test]
fn label_set_in_mid_stream_starts_a_new_span() {
    let mut scheduler = scheduler(|_| {});
    let mut emissions = scheduler.submit(call("a", 30)).unwrap();
    scheduler.tick(SECOND);
    scheduler.set_label("2");
    scheduler.tick(SECOND * 2);
    let spans = drain(&mut emissions).1.unwrap().1;
    let bounds: Vec<_> = spans.iter().map(|span| (&*span.label, span.start, span.end)).collect();
    assert_eq!(bounds, [("default", 0, 10), ("2", 10, 30)]);
}

#[test]
fn client_that_hangs_up_frees_its_place_and_costs_no_more_tokens() {
    let mut scheduler = scheduler(|_| {});
    let emissions = scheduler.submit(call("a", 100)).unwrap();
    scheduler.tick(SECOND);
    drop(emissions);
    scheduler.tick(SECOND);
    assert_eq!((scheduler.counts().running, scheduler.counts().tokens_generated), (0, 10));
}

#[test]
fn hung_engine_makes_nothing_and_ends_nothing() {
    let mut scheduler = scheduler(|_| {});
    let mut emissions = scheduler.submit(call("a", 100)).unwrap();
    scheduler.set_hung(true);
    scheduler.abort(&Selection::All);
    scheduler.tick(SECOND);
    assert_eq!(drain(&mut emissions), (0, None));
}

#[test]
fn call_during_a_drain_is_aborted_without_a_token() {
    let mut scheduler = scheduler(|_| {});
    let mut before = scheduler.submit(call("a", 10)).unwrap();
    scheduler.drain();
    let mut after = scheduler.submit(call("b", 10)).unwrap();
    assert_eq!(drain(&mut after), (0, Some((Finish::Abort, Vec::new()))));
    scheduler.tick(SECOND);
    assert_eq!(finish(&mut before), Some(Finish::Length));
}

#[test]
fn dead_core_tells_every_stream_and_takes_no_more() {
    let mut scheduler = scheduler(|_| {});
    let mut emissions = scheduler.submit(call("a", 10)).unwrap();
    scheduler.kill_core();
    assert_eq!(emissions.try_recv(), Ok(Emission::Failed));
    assert!(scheduler.submit(call("b", 10)).is_none());
}

#[test]
fn limit_is_capped_at_the_context() {
    let mut scheduler = scheduler(|config| config.context_length = 6);
    let mut emissions = scheduler.submit(call("a", 10)).unwrap();
    scheduler.tick(SECOND);
    let (count, end) = drain(&mut emissions);
    assert_eq!((count, end.unwrap().0), (3, Finish::Length));
}
