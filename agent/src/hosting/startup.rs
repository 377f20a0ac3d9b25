//! How long an engine takes to start, in parts: from the pod, whose moments Kubernetes tells, to
//! the first token, as this agent sees it.
//!
//! A start is measured when the agent has seen the engine away: otherwise nobody knows when it
//! first answered. What was measured of a start stays until the next one.

use std::time::Duration;

use ebbtide_core::time::UnixMillis;

use crate::kubernetes::PodStart;

/// The parts of a start-up, each `None` while it is not over or not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct StartupParts {
    /// From the creation of the pod until it has a node.
    pub(crate) node: Option<Duration>,
    /// From there until its containers run: images, volumes.
    pub(crate) image: Option<Duration>,
    /// From there to the first answer: libraries, communicators, the weights that it begins with.
    pub(crate) engine: Option<Duration>,
    /// From there until the run takes its weights.
    pub(crate) weights: Option<Duration>,
    /// From there to the first token.
    pub(crate) first_token: Option<Duration>,
}

/// The moments of a start that the agent sees itself, on its node's wall clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Startup {
    is_seen_away: bool,
    answered: Option<UnixMillis>,
    taken: Option<UnixMillis>,
    first_token: Option<UnixMillis>,
}

impl Startup {
    /// It is away: what comes is another start.
    pub(crate) fn note_away(&mut self) {
        *self = Self { is_seen_away: true, ..Self::default() };
    }

    /// It answers, and the run may take its weights.
    pub(crate) fn note_answer(&mut self, is_taken: bool, now: UnixMillis) {
        if !self.is_seen_away {
            return;
        }
        self.answered.get_or_insert(now);
        if is_taken {
            self.taken.get_or_insert(now);
        }
    }

    /// It has brought a token.
    pub(crate) fn note_token(&mut self, now: UnixMillis) {
        if self.taken.is_some() {
            self.first_token.get_or_insert(now);
        }
    }

    /// The parts, with the moments of its pod where there is one.
    pub(crate) fn parts(&self, pod: Option<(Option<UnixMillis>, PodStart)>) -> StartupParts {
        let (created, start) = pod.unwrap_or_default();
        let between = |from: Option<UnixMillis>, to: Option<UnixMillis>| Some(to?.since(from?));
        // A container that was started again tells nothing of images.
        let first_started = start.started.filter(|_| !start.is_restarted);
        // Those of a pod that began after the answer are of a start that is still to come.
        let began = start.started.filter(|started| self.answered.is_some_and(|it| it >= *started));
        StartupParts {
            node: between(created, start.scheduled),
            image: between(start.scheduled, first_started),
            engine: between(began, self.answered),
            weights: between(self.answered, self.taken),
            first_token: between(self.taken, self.first_token),
        }
    }
}

impl StartupParts {
    /// The parts by name.
    pub(crate) fn named(&self) -> [(&'static str, Option<Duration>); 5] {
        [
            ("node", self.node),
            ("image", self.image),
            ("engine", self.engine),
            ("weights", self.weights),
            ("first_token", self.first_token),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> UnixMillis {
        UnixMillis(seconds * 1000)
    }

    fn seconds(parts: &StartupParts) -> [Option<u64>; 5] {
        parts.named().map(|(_, part)| part.map(|part| part.as_secs()))
    }

    fn pod(is_restarted: bool) -> Option<(Option<UnixMillis>, PodStart)> {
        let start = PodStart { scheduled: Some(at(100)), started: Some(at(130)), is_restarted };
        Some((Some(at(10)), start))
    }

    #[test]
    fn parts_follow_one_another_from_the_pod_to_the_first_token() {
        let mut startup = Startup::default();
        startup.note_away();
        assert_eq!(seconds(&startup.parts(pod(false))), [Some(90), Some(30), None, None, None]);
        startup.note_answer(false, at(200));
        startup.note_token(at(205));
        startup.note_answer(true, at(260));
        startup.note_answer(true, at(261));
        startup.note_token(at(263));
        startup.note_token(at(264));
        let all = [Some(90), Some(30), Some(70), Some(60), Some(3)];
        assert_eq!(seconds(&startup.parts(pod(false))), all);
        assert_eq!(seconds(&startup.parts(None)), [None, None, None, Some(60), Some(3)]);
    }

    #[test]
    fn start_that_nobody_saw_begin_is_not_measured() {
        let mut startup = Startup::default();
        startup.note_answer(true, at(200));
        startup.note_token(at(201));
        assert_eq!(startup.parts(None), StartupParts::default());
    }

    #[test]
    fn restart_in_the_same_pod_is_measured_from_its_container_on() {
        let mut startup = Startup::default();
        startup.note_away();
        startup.note_answer(true, at(120));
        assert_eq!(startup.parts(pod(false)).engine, None, "the answer was of the one before");
        startup.note_away();
        startup.note_answer(true, at(180));
        let parts = startup.parts(pod(true));
        assert_eq!(seconds(&parts), [Some(90), None, Some(50), Some(0), None]);
    }
}
