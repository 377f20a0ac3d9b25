//! Constant demand that is measured with noise.

use proptest::prelude::*;

use super::{Run, count};

/// From one sample's length to the next, in seconds.
const EVERY: u64 = 60;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn noise_on_constant_demand_never_gives_back_what_it_took(
        sample in 150.0..900.0_f64,
        noise in proptest::collection::vec(-0.1..0.1_f64, 60),
    ) {
        let mut run = Run::new(8, sample, 100, 180);
        let run_with_noise = |run: &mut Run, hours: u64| {
            for turn in 0..hours * 3600 / EVERY {
                let place = usize::try_from(turn).expect("few") % noise.len();
                run.sample = sample * (1.0 + noise[place]);
                run.run_for(EVERY);
            }
        };
        run_with_noise(&mut run, 3);
        let since = run.seconds;
        run_with_noise(&mut run, 5);
        let changes = run.changes_since(since);
        let (up, down) = (changes.iter().any(|it| *it > 0), changes.iter().any(|it| *it < 0));
        prop_assert!(!(up && down), "it oscillates: {:?}", run.changes);
        prop_assert!(changes.len() <= 2, "it does not come to rest: {:?}", run.changes);
    }
}

/// A fleet that is one replica too many by a little less than one: without it the buffer would run
/// low, and with it full, for ever.
#[test]
fn fleet_just_above_a_whole_number_of_replicas_comes_to_rest() {
    for knee in [2.9, 3.05, 3.2, 5.1, 6.2] {
        let mut run = Run::new(8, knee * 50.0, 100, 180);
        run.run_for(6 * 3600);
        assert_eq!(run.changes_since(3 * 3600), [0_i64; 0], "{knee}: {:?}", run.changes);
        assert!(count(run.running() as u64) >= knee, "{knee}: {} run", run.running());
    }
}
