//! What holds of every plan of the trainer's size, and of every run that follows them.

use proptest::prelude::*;

use super::*;

/// One look, drawn at random.
#[derive(Debug, Clone)]
struct Moment {
    nodes: Option<u32>,
    is_alive: bool,
    is_slow: bool,
    pool: u32,
    resize: Option<(u32, bool, Vec<u32>, u64, bool)>,
    minutes: u64,
}

fn moments() -> impl Strategy<Value = Vec<Moment>> {
    let nodes = prop_oneof![4 => (1..10_u32).prop_map(Some), 1 => Just(None)];
    let released = proptest::collection::vec(1..10_u32, 0..4);
    let restarted = prop::bool::weighted(0.1);
    let resize = (0..10_u32, any::<bool>(), released, 0..200_u64, restarted);
    let resize = proptest::option::of(resize);
    let flags = (prop::bool::weighted(0.8), any::<bool>());
    let moment = (nodes, flags, 0..10_u32, resize, 0..40_u64);
    let moment = moment.prop_map(|(nodes, (is_alive, is_slow), pool, resize, minutes)| Moment {
        nodes,
        is_alive,
        is_slow,
        pool,
        resize,
        minutes,
    });
    proptest::collection::vec(moment, 1..40)
}

fn look_at(run: &mut Run, moment: &Moment, step: u64) {
    let seconds = PhaseSeconds { train: 20.0, wait: 80.0, ..PhaseSeconds::default() };
    let stage = if moment.is_slow { IterationStage::Trainer } else { IterationStage::Rollout };
    run.limits(stage, moment.is_slow, seconds);
    run.says(TrainerPhase::Train, step, moment.nodes);
    run.holds(moment.pool);
    run.seen.trainer_resize = None;
    if let Some((size, is_confirmed, released, minutes, restarted)) = &moment.resize {
        run.asked(*size);
        if *is_confirmed {
            let names: Vec<String> = released.iter().map(|number| format!("n{number}")).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            run.confirmed(&names);
        }
        run.resize().has_restarted = *restarted;
        run.resize().asked_for = MINUTE * u32::try_from(*minutes).expect("few");
    }
    if !moment.is_alive {
        run.seen.trainer = Signal::unknown("silent");
    }
    run.seen.now = run.seen.now.plus(Duration::from_secs(60 * moment.minutes));
}

fn keeps_the_laws(run: &mut Run, action: Option<&TrainerAction>) -> Result<(), TestCaseError> {
    let Some(action) = action else { return Ok(()) };
    let trainer = run.seen.trainer.known().copied();
    prop_assert!(trainer.is_some(), "written while the trainer is silent: {action}");
    let nodes = trainer.and_then(|trainer| trainer.nodes).expect("known");
    let resize = run.seen.trainer_resize.clone();
    let sizes = [2, 4, 8];
    match action {
        TrainerAction::Request { from, to } => {
            prop_assert!(resize.is_none() && *from == nodes && sizes.contains(to));
            prop_assert!(from != to || run.pool().desired > nodes, "nothing is to be named");
            let between = |size: &u32| (nodes.min(*to)..nodes.max(*to)).contains(size);
            let passed: Vec<_> = sizes.iter().filter(|size| **size != nodes).collect();
            let passed = passed.into_iter().filter(|size| between(size) && *size != to);
            prop_assert_eq!(passed.count(), 0, "one step at a time: {}", action);
        }
        TrainerAction::Raise { from, to, .. } => {
            let resize = resize.expect("asked");
            prop_assert!(resize.is_confirmed && *to == resize.size && sizes.contains(to));
            prop_assert!(*from == run.pool().desired && from < to && nodes <= *to);
        }
        TrainerAction::Release { instances, .. } => {
            let resize = resize.expect("asked");
            prop_assert!(resize.is_confirmed && nodes <= resize.size);
            prop_assert!(!resize.has_restarted);
            let stay = run.pool().counted().filter(|it| !instances.contains(&it.id)).count();
            prop_assert!(stay >= nodes as usize, "{stay} stay of {nodes}");
            for instance in instances {
                let of_node =
                    |node: &ReleasedNode| format!("i{}", &node.name.as_str()[1..].to_owned());
                let named = resize.released.iter().map(of_node);
                let id = instance.0.replace('-', "");
                prop_assert!(named.into_iter().any(|name| name == id), "{instance}");
            }
        }
        TrainerAction::End { .. } => prop_assert!(resize.is_some()),
    }
    Ok(())
}

/// A run that does what is planned: its trainer confirms, its pool brings and loses nodes.
struct Story {
    run: Run,
    nodes: u32,
    step: f64,
    sizes: Vec<u32>,
}

impl Story {
    fn new(nodes: u32) -> Self {
        let mut run = Run::new();
        run.holds(nodes);
        Self { run, nodes, step: 0.0, sizes: vec![nodes] }
    }

    /// One minute in which training takes `train` seconds an update and rollouts `rollout`.
    fn minute(&mut self, train: f64, rollout: f64) {
        let total = train.max(rollout);
        let wait = total - train;
        let is_filled = train > rollout;
        let stage =
            if wait >= 0.1 * total { IterationStage::Rollout } else { IterationStage::Trainer };
        let seconds = PhaseSeconds { train, wait, ..PhaseSeconds::default() };
        self.run.limits(stage, is_filled, seconds);
        self.run.plan.reasons = vec![Reason::AtMaximum { maximum: 10 }];
        self.step += 60.0 / total;
        self.run.says(TrainerPhase::Train, self.step as u64, Some(self.nodes));
        match self.run.plan().action {
            Some(TrainerAction::Request { from, to }) => {
                self.run.asked(to);
                let names: Vec<String> = (to + 1..=from).map(|it| format!("n{it}")).collect();
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                self.run.confirmed(&names);
                if to < from {
                    self.becomes(to);
                }
            }
            Some(TrainerAction::Raise { to, .. }) => {
                self.run.holds(to);
                self.becomes(to);
            }
            Some(TrainerAction::Release { instances, .. }) => {
                let before = self.run.pool().desired;
                self.run.holds(before - u32::try_from(instances.len()).expect("few"));
            }
            Some(TrainerAction::End { .. }) => self.run.seen.trainer_resize = None,
            None => {}
        }
        self.run.pass(MINUTE);
    }

    fn becomes(&mut self, nodes: u32) {
        self.nodes = nodes;
        self.sizes.push(nodes);
    }
}

proptest! {
    #[test]
    fn no_plan_breaks_a_law_whatever_is_seen(moments in moments()) {
        let mut run = Run::new().too_fast();
        for (step, moment) in moments.iter().enumerate() {
            look_at(&mut run, moment, 10 * step as u64);
            let action = run.plan().action;
            keeps_the_laws(&mut run, action.as_ref())?;
        }
    }

    /// However well or badly training scales, and however measurements vary, a size that was left
    /// is not gone back to while the run is what it was.
    #[test]
    fn size_does_not_come_and_go(
        begins in prop::sample::select(vec![2, 4, 8_u32]),
        work in 100.0..4000.0_f64,
        scaling in 0.4..1.0_f64,
        rollout in 100.0..1000.0_f64,
        noise in proptest::collection::vec(-0.04..0.04_f64, 200),
    ) {
        let mut story = Story::new(begins);
        for minute in 0..1440 {
            let train = work / f64::from(story.nodes).powf(scaling);
            let vary = |at: usize| 1.0 + noise[at % noise.len()];
            story.minute(train * vary(minute), rollout * vary(3 * minute + 1));
        }
        let sizes = &story.sizes;
        let is_back = sizes.windows(3).any(|sizes| sizes[0] == sizes[2]);
        prop_assert!(!is_back, "{sizes:?}");
        prop_assert_eq!(story.run.pool().desired, story.nodes, "{:?}", sizes);
    }
}
