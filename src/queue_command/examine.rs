//! Looks at everything that must hold in a run: three accounts that know nothing of each other.
//!
//! The audit that Redis makes of each shard's raw keys, the sums of all units against the counters,
//! and the stored tokens themselves. Other clients may be at work meanwhile: what was found is
//! looked for once more, and only what stands both times is reported.

use std::collections::{BTreeMap, BTreeSet};

use ebbtide_core::ids::{GroupId, PolicyVersion};
use ebbtide_queue::client::{QueueError, WorkQueue};
use ebbtide_queue::command::{AuditPart, Stage};
use ebbtide_queue::state::Finding;
use futures::StreamExt;

use super::sums::{self, Gap};
use super::tokens;

/// Groups whose tokens are read at a time.
const READS_AT_ONCE: usize = 8;

/// Something that does not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// What it is about.
    pub subject: String,
    /// What is wrong.
    pub text: String,
    /// Of a sum: by how much it is wrong.
    difference: i128,
    /// Of a sum: which one.
    sum: Option<String>,
}

/// What is wrong with what, each once.
pub type Problems = BTreeMap<(String, String), Problem>;

/// Everything that was looked at, and what was found.
#[derive(Debug, Default)]
pub struct Examination {
    pub problems: Problems,
    pub shards: u16,
    pub groups: u64,
    pub units: u64,
    pub tokens: u64,
    /// Shards that changed in every reading of their sums.
    pub busy_shards: Vec<u16>,
}

impl Problem {
    /// Something that is wrong with `subject`.
    pub fn new(subject: impl ToString, text: impl ToString) -> Self {
        let (subject, text) = (subject.to_string(), text.to_string());
        Self { subject, text, difference: 0, sum: None }
    }

    fn of_sum(shard: u16, gap: &Gap) -> Self {
        let problem = Self::new(format!("shard {shard}"), gap.words());
        Self { difference: gap.difference(), sum: Some(gap.what.clone()), ..problem }
    }

    /// What the audit says of a shard as a whole bears the shard's name.
    fn of_audit(shard: u16, part: AuditPart, finding: &Finding) -> Self {
        let Finding { subject, problem } = finding;
        if part == AuditPart::Held && [sums::SLOTS, sums::TOKENS].contains(&subject.as_str()) {
            let problem = Self::new(format!("shard {shard}"), format!("{subject}: {problem}"));
            return Self { sum: Some(subject.clone()), ..problem };
        }
        if part == AuditPart::Held || subject.starts_with("counter ") {
            return Self::new(format!("{subject} of shard {shard}"), problem);
        }
        Self::new(subject, problem)
    }

    /// What makes it the same when it is found again.
    pub fn name(&self) -> (String, String) {
        (self.subject.clone(), self.sum.as_ref().unwrap_or(&self.text).clone())
    }
}

/// What stands in two readings; the second is only made when the first found something.
pub async fn examine_twice(queue: &WorkQueue) -> Examination {
    let first = examine(queue).await;
    if first.problems.is_empty() {
        return first;
    }
    let mut second = examine(queue).await;
    second.problems.retain(|name, problem| {
        first.problems.get(name).is_some_and(|before| before.difference == problem.difference)
    });
    second
}

async fn examine(queue: &WorkQueue) -> Examination {
    let mut seen = Examination { shards: queue.shard_count(), ..Examination::default() };
    let published = match queue.view().await {
        Ok(view) => view.version.version,
        Err(error) => {
            seen.add(Problem::new("control keys", error));
            PolicyVersion(0)
        }
    };
    for shard in 0..queue.shard_count() {
        let audited = audit(queue, shard, false).await;
        let outcome = seen.add_shard(queue, shard, published, &audited).await;
        // A record that nobody can read, which the audit names, stops the rest.
        if let Err(error) = outcome
            && audited.is_empty()
        {
            seen.add(Problem::new(format!("shard {shard}"), error));
        }
        for problem in audited {
            seen.add(problem);
        }
    }
    seen
}

impl Examination {
    fn add(&mut self, problem: Problem) {
        self.problems.insert(problem.name(), problem);
    }

    async fn add_shard(
        &mut self,
        queue: &WorkQueue,
        shard: u16,
        published: PolicyVersion,
        audited: &[Problem],
    ) -> Result<(), QueueError> {
        let version = queue.shard_status(shard).await?.version;
        if version < published {
            let text = format!("its policy version is {version}, {published} is published");
            self.add(Problem::new(format!("shard {shard}"), text));
        }
        let sums = sums::compare(queue, shard).await?;
        if !sums.is_exact && !sums.gaps.is_empty() {
            self.busy_shards.push(shard);
        }
        // Units at a wrong place, which the audit names, make the queues' lengths wrong as well.
        for gap in sums.gaps.iter().filter(|gap| audited.is_empty() || gap.is_of_counters()) {
            self.add(Problem::of_sum(shard, gap));
        }
        let group_of = |unit: &ebbtide_queue::state::UnitSnapshot| unit.unit.group.clone();
        let groups: BTreeSet<GroupId> = sums.units.iter().map(group_of).collect();
        let with_tokens = sums.units.iter().filter(|unit| unit.tokens > 0).map(group_of).collect();
        self.groups += groups.len() as u64;
        self.units += sums.units.len() as u64;
        self.tokens += sums.units.iter().map(|unit| u64::from(unit.tokens)).sum::<u64>();
        for problem in token_problems(queue, with_tokens).await {
            if !audited.iter().any(|known| explains(&known.subject, &problem.subject)) {
                self.add(problem);
            }
        }
        Ok(())
    }
}

/// Whether what was found about `subject` explains what is wrong with a unit or a group.
fn explains(subject: &str, other: &str) -> bool {
    subject == other || subject.strip_prefix(other).is_some_and(|rest| rest.starts_with('.'))
}

async fn token_problems(queue: &WorkQueue, groups: BTreeSet<GroupId>) -> Vec<Problem> {
    let reads = groups.into_iter().map(|group| async move {
        match queue.trace(&group).await {
            Ok(trace) => {
                let found = tokens::problems(&trace).into_iter();
                found.map(|(unit, text)| Problem::new(unit, text)).collect()
            }
            Err(error) => vec![Problem::new(group, format!("its tokens cannot be read: {error}"))],
        }
    });
    let found: Vec<Vec<Problem>> =
        futures::stream::iter(reads).buffer_unordered(READS_AT_ONCE).collect().await;
    found.concat()
}

/// Everything that the audit finds on a shard, mended when `repair` says so; a part that it cannot
/// read is a finding too.
pub async fn audit(queue: &WorkQueue, shard: u16, repair: bool) -> Vec<Problem> {
    let mut problems = Vec::new();
    for part in AuditPart::ALL {
        match queue.audit_part(shard, part, repair).await {
            Ok(findings) => {
                let found = findings.iter();
                problems.extend(found.map(|finding| Problem::of_audit(shard, part, finding)));
            }
            Err(error) => {
                let text = format!("its {} cannot be audited: {error}", part_words(part));
                problems.push(Problem::new(format!("shard {shard}"), text));
            }
        }
    }
    problems
}

fn part_words(part: AuditPart) -> &'static str {
    match part {
        AuditPart::Groups => "groups",
        AuditPart::Units => "unit records",
        AuditPart::Specs => "prompts",
        AuditPart::History => "histories",
        AuditPart::Chunks => "stored tokens",
        AuditPart::Ready(Stage::Generate) => "units ready to be generated",
        AuditPart::Ready(Stage::Reward) => "units ready to be scored",
        AuditPart::Leases(Stage::Generate) => "leases to generate",
        AuditPart::Leases(Stage::Reward) => "leases to score",
        AuditPart::Held => "counters",
    }
}
