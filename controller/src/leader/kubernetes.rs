//! The leader lease as a Kubernetes `Lease` (coordination.k8s.io/v1).
//!
//! Every update carries the resource version that it is based on, so that of two candidates one
//! loses. Whether another holder's lease has ended is judged by this process's own clock since
//! the record last changed, never by comparing wall clocks. `leaseTransitions` is the generation.

use std::time::Duration;

use async_trait::async_trait;
use ebbtide_core::time::UnixMillis;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ObjectMeta, PostParams};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{LeaderLease, Leadership, MINUTE_MS, Standing};

/// When a lease is renewed and when it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseTiming {
    /// Time between two renewals, and between two looks of a passive candidate.
    pub renew_every: Duration,
    /// How long a lease lasts without renewal. In whole seconds.
    pub duration: Duration,
    /// Longest time that one call may take.
    pub call_limit: Duration,
}

impl Default for LeaseTiming {
    /// 15 s leave a leader 13 s after a renewal: enough for a call of 10 s and 2 s of margin.
    fn default() -> Self {
        Self {
            renew_every: Duration::from_secs(2),
            duration: Duration::from_secs(15),
            call_limit: Duration::from_secs(5),
        }
    }
}

/// One candidate for a Kubernetes `Lease`.
pub struct KubernetesLease {
    leases: Api<Lease>,
    name: String,
    identity: String,
    timing: LeaseTiming,
    now: fn() -> UnixMillis,
}

/// What a candidate knows between two rounds.
#[derive(Default)]
struct Campaign {
    /// The lease as this candidate last wrote it, while it leads.
    own: Option<Lease>,
    /// Resource version of another's lease, and when it was first seen.
    rival: Option<(String, Instant)>,
    held: Option<Leadership>,
}

impl Campaign {
    /// At most this long, and not past the end of a lease that is held.
    fn bounded(&self, wait: Duration) -> Duration {
        let until = self.held.and_then(|held| held.until);
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        left.filter(|left| !left.is_zero()).map_or(wait, |left| wait.min(left))
    }
}

impl KubernetesLease {
    /// A candidate called `identity`, which must be of this process alone.
    pub fn new(
        client: kube::Client,
        namespace: &str,
        name: &str,
        identity: &str,
        now: fn() -> UnixMillis,
    ) -> Self {
        Self {
            leases: Api::namespaced(client, namespace),
            name: name.to_owned(),
            identity: identity.to_owned(),
            timing: LeaseTiming::default(),
            now,
        }
    }

    /// The same candidate with other times.
    #[must_use]
    pub fn with_timing(self, timing: LeaseTiming) -> Self {
        Self { timing, ..self }
    }

    /// One look or renewal; `campaign` then says who leads.
    async fn round(&self, campaign: &mut Campaign) -> Result<(), kube::Error> {
        let started_at = Instant::now();
        let current = match campaign.own.take() {
            Some(own) => Some(own),
            None => self.leases.get_opt(&self.name).await?,
        };
        let is_first = current.is_none();
        // A rival's renewal counts from when it was seen, which is after the reply.
        let Some(wanted) = self.wanted(campaign, current, Instant::now()) else {
            campaign.held = None;
            return Ok(());
        };
        let post = PostParams::default();
        let written = if is_first {
            self.leases.create(&post, &wanted).await
        } else {
            self.leases.replace(&self.name, &post, &wanted).await
        };
        match written {
            Ok(lease) => {
                let transitions = lease.spec.as_ref().and_then(|spec| spec.lease_transitions);
                let generation = u64::try_from(transitions.unwrap_or(0)).unwrap_or(0) + 1;
                let until = Some(started_at + self.timing.duration);
                campaign.held = Some(Leadership { generation, until });
                campaign.own = Some(lease);
                campaign.rival = None;
                Ok(())
            }
            // Somebody wrote in between. A leader keeps its standing until it has looked again:
            // the one who wrote may have been itself, with a reply that was lost.
            Err(kube::Error::Api(status)) if status.is_conflict() => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The lease to write in order to lead, or `None` while another holds it.
    fn wanted(
        &self,
        campaign: &mut Campaign,
        current: Option<Lease>,
        now: Instant,
    ) -> Option<Lease> {
        let Some(current) = current else {
            let metadata = ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() };
            return Some(self.claimed(Lease { metadata, spec: None }));
        };
        if holder(&current) == Some(self.identity.as_str()) {
            if campaign.held.is_none() {
                // An earlier process of that name had it, or this one lost its standing: either
                // way another generation begins.
                return Some(self.claimed(current));
            }
            let mut lease = current;
            if let Some(spec) = &mut lease.spec {
                spec.renew_time = Some(self.micro_time());
            }
            return Some(lease);
        }
        let version = current.metadata.resource_version.clone().unwrap_or_default();
        let since = match &campaign.rival {
            Some((seen, since)) if *seen == version => *since,
            _ => now,
        };
        campaign.rival = Some((version, since));
        let lasts = current.spec.as_ref().and_then(|spec| spec.lease_duration_seconds);
        let lasts = lasts.and_then(|seconds| u64::try_from(seconds).ok());
        let lasts = lasts.map_or(self.timing.duration, Duration::from_secs);
        let is_free = holder(&current).is_none() || since + lasts <= now;
        is_free.then(|| self.claimed(current))
    }

    /// The lease with this candidate as its new holder, under the next generation.
    ///
    /// Generations never fall below the minutes of the clock, which rise faster than leaders
    /// change: neither a lease that was deleted nor a while without Kubernetes leads back to
    /// generations that the queue refuses as older.
    fn claimed(&self, lease: Lease) -> Lease {
        let before = lease.spec.as_ref().and_then(|spec| spec.lease_transitions).unwrap_or(0);
        let minutes = i32::try_from((self.now)().0 / MINUTE_MS).unwrap_or(0);
        let seconds = i32::try_from(self.timing.duration.as_secs()).unwrap_or(i32::MAX);
        let spec = LeaseSpec {
            acquire_time: Some(self.micro_time()),
            renew_time: Some(self.micro_time()),
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: Some(seconds.max(1)),
            lease_transitions: Some(before.saturating_add(1).max(minutes)),
            ..lease.spec.unwrap_or_default()
        };
        Lease { spec: Some(spec), ..lease }
    }

    /// Gives the lease back, so that the next leader need not wait for its end.
    async fn release(&self, campaign: Campaign) {
        let Some(mut lease) = campaign.own else { return };
        if let Some(spec) = &mut lease.spec {
            spec.holder_identity = None;
            spec.renew_time = Some(self.micro_time());
        }
        let post = PostParams::default();
        let call = self.leases.replace(&self.name, &post, &lease);
        match tokio::time::timeout(self.timing.call_limit, call).await {
            Ok(Ok(_)) => tracing::info!(lease = %self.name, "leader lease given back"),
            Ok(Err(error)) => tracing::warn!(%error, "leader lease not given back"),
            Err(_) => tracing::warn!("leader lease not given back in time"),
        }
    }

    fn micro_time(&self) -> MicroTime {
        let millis = i64::try_from((self.now)().0).unwrap_or(i64::MAX);
        MicroTime(Timestamp::from_millisecond(millis).unwrap_or(Timestamp::UNIX_EPOCH))
    }
}

#[async_trait]
impl LeaderLease for KubernetesLease {
    async fn campaign(&self, standing: Standing, shutdown: CancellationToken) {
        let mut campaign = Campaign::default();
        let mut was_away = false;
        loop {
            // No wait reaches past the end of the lease, so that the end is published at once.
            let call_limit = campaign.bounded(self.timing.call_limit);
            let call = self.round(&mut campaign);
            let outcome = tokio::select! {
                outcome = tokio::time::timeout(call_limit, call) => outcome,
                () = shutdown.cancelled() => break,
            };
            let problem = match outcome {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(error.to_string()),
                Err(_) => Some(format!("no answer within {call_limit:?}")),
            };
            match &problem {
                Some(problem) if !was_away => {
                    tracing::warn!(lease = %self.name, %problem, "leader lease is not reachable");
                }
                None if was_away => {
                    tracing::info!(lease = %self.name, "leader lease is reachable again");
                }
                _ => {}
            }
            was_away = problem.is_some();
            let now = Instant::now();
            campaign.held = campaign.held.filter(|held| held.holds_for(Duration::ZERO, now));
            publish(&standing, campaign.held);
            tokio::select! {
                () = tokio::time::sleep(campaign.bounded(self.timing.renew_every)) => {}
                () = shutdown.cancelled() => break,
            }
        }
        publish(&standing, None);
        self.release(campaign).await;
    }
}

fn publish(standing: &Standing, held: Option<Leadership>) {
    let before = standing.send_replace(held);
    match (before, held) {
        (None, Some(held)) => tracing::info!(generation = held.generation, "leads"),
        (Some(lost), None) => tracing::info!(generation = lost.generation, "leads no more"),
        _ => {}
    }
}

fn holder(lease: &Lease) -> Option<&str> {
    let holder = lease.spec.as_ref()?.holder_identity.as_deref()?;
    (!holder.is_empty()).then_some(holder)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(identity: &str) -> KubernetesLease {
        let config = kube::Config::new("http://127.0.0.1:1".parse().expect("valid"));
        let client = kube::Client::try_from(config).expect("nothing is called");
        KubernetesLease::new(client, "default", "lease", identity, || UnixMillis(60_000 * 500))
    }

    fn of_rival(version: &str) -> Lease {
        let spec = LeaseSpec {
            holder_identity: Some("rival".to_owned()),
            lease_duration_seconds: Some(15),
            lease_transitions: Some(700),
            ..LeaseSpec::default()
        };
        let resource_version = Some(version.to_owned());
        let metadata = ObjectMeta { resource_version, ..ObjectMeta::default() };
        Lease { metadata, spec: Some(spec) }
    }

    fn transitions(lease: &Lease) -> Option<i32> {
        lease.spec.as_ref().and_then(|spec| spec.lease_transitions)
    }

    #[tokio::test(start_paused = true)]
    async fn lease_of_a_rival_is_taken_only_after_it_stood_still() {
        let (candidate, mut campaign) = (candidate("one"), Campaign::default());
        let began_at = Instant::now();
        let seconds = |count| began_at + Duration::from_secs(count);
        assert!(candidate.wanted(&mut campaign, Some(of_rival("1")), began_at).is_none());
        assert!(candidate.wanted(&mut campaign, Some(of_rival("1")), seconds(14)).is_none());
        assert!(candidate.wanted(&mut campaign, Some(of_rival("2")), seconds(16)).is_none());
        assert!(candidate.wanted(&mut campaign, Some(of_rival("2")), seconds(30)).is_none());
        let taken = candidate.wanted(&mut campaign, Some(of_rival("2")), seconds(31));
        let taken = taken.expect("it stood still for its whole duration");
        assert_eq!((holder(&taken), transitions(&taken)), (Some("one"), Some(701)));
    }

    #[tokio::test]
    async fn lease_given_back_is_taken_at_once() {
        let (candidate, mut campaign) = (candidate("one"), Campaign::default());
        let mut given_back = of_rival("1");
        given_back.spec.as_mut().expect("just made").holder_identity = Some(String::new());
        let taken = candidate.wanted(&mut campaign, Some(given_back), Instant::now());
        assert_eq!(taken.as_ref().and_then(transitions), Some(701));
    }

    #[tokio::test]
    async fn new_lease_begins_above_generations_that_were_used() {
        let (candidate, mut campaign) = (candidate("one"), Campaign::default());
        let made = candidate.wanted(&mut campaign, None, Instant::now()).expect("nobody has it");
        assert_eq!(transitions(&made), Some(500), "minutes of the clock");
    }

    #[tokio::test]
    async fn renewal_keeps_the_generation_and_a_new_process_raises_it() {
        let (candidate, mut campaign) = (candidate("rival"), Campaign::default());
        let restarted = candidate.wanted(&mut campaign, Some(of_rival("1")), Instant::now());
        assert_eq!(restarted.as_ref().and_then(transitions), Some(701));
        campaign.held = Some(Leadership { generation: 701, until: None });
        let renewed = candidate.wanted(&mut campaign, Some(of_rival("1")), Instant::now());
        assert_eq!(renewed.as_ref().and_then(transitions), Some(700));
    }
}
