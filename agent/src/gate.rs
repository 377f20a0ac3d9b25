//! The lease gate: whether this agent may claim work.
//!
//! Closing is synchronous and counts from that very moment: a claim begins only while the gate is
//! open, and whoever closes it can see whether one is still under way. Reasons add up; the gate is
//! open when none is left.

use std::collections::BTreeSet;

use tokio::sync::watch;

/// Why the gate is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ClosedFor {
    /// The control keys have not been read yet: the replica may be draining.
    KeysUnread,
    /// The node is being drained.
    Drain,
    /// A rebalance recommendation stands.
    Rebalance,
    /// The process ends.
    Shutdown,
}

impl ClosedFor {
    /// The word that others are told.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::KeysUnread => "starting",
            Self::Drain => "drain",
            Self::Rebalance => "rebalance",
            Self::Shutdown => "shutdown",
        }
    }
}

#[derive(Debug, Default)]
struct State {
    closed_for: BTreeSet<ClosedFor>,
    claims: usize,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct LeaseGate {
    state: watch::Sender<State>,
}

/// Tells that the gate has changed.
#[derive(Debug)]
pub(crate) struct GateChanges(watch::Receiver<State>);

impl GateChanges {
    /// Waits for the next change; for ever once the gate is gone.
    pub(crate) async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// A claim under way; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Claim<'a> {
    gate: &'a LeaseGate,
}

impl LeaseGate {
    /// Closes the gate; returns whether it was open.
    pub(crate) fn close(&self, reason: ClosedFor) -> bool {
        let mut was_open = false;
        self.state.send_modify(|state| {
            was_open = state.closed_for.is_empty();
            state.closed_for.insert(reason);
        });
        was_open
    }

    /// Says of each of these reasons whether it holds. All change in one step: a gate that stays
    /// closed is not open in between.
    pub(crate) fn set(&self, reasons: impl IntoIterator<Item = (ClosedFor, bool)>) {
        self.state.send_if_modified(|state| {
            let mut is_changed = false;
            for (reason, holds) in reasons {
                is_changed |= if holds {
                    state.closed_for.insert(reason)
                } else {
                    state.closed_for.remove(&reason)
                };
            }
            is_changed
        });
    }

    pub(crate) fn is_open(&self) -> bool {
        self.state.borrow().closed_for.is_empty()
    }

    /// Whether this is one of the reasons for which the gate is closed.
    pub(crate) fn is_closed_for(&self, reason: ClosedFor) -> bool {
        self.state.borrow().closed_for.contains(&reason)
    }

    /// Why the gate is closed; empty when it is open.
    pub(crate) fn closed_for(&self) -> Vec<ClosedFor> {
        self.state.borrow().closed_for.iter().copied().collect()
    }

    /// Begins a claim, if the gate is open at this moment.
    pub(crate) fn begin_claim(&self) -> Option<Claim<'_>> {
        let mut is_begun = false;
        self.state.send_if_modified(|state| {
            is_begun = state.closed_for.is_empty();
            state.claims += usize::from(is_begun);
            false
        });
        // Not `then_some`: a claim that is only made to be dropped would end another one.
        is_begun.then(|| Claim { gate: self })
    }

    /// Whether a claim that began before the gate closed is still under way.
    pub(crate) fn has_claims(&self) -> bool {
        self.state.borrow().claims > 0
    }

    /// Notices every change from now on.
    pub(crate) fn subscribe(&self) -> GateChanges {
        GateChanges(self.state.subscribe())
    }

    /// Waits until the gate is open.
    pub(crate) async fn opened(&self) {
        // The sender lives in `self`, so the wait cannot end with an error.
        let _ = self.state.subscribe().wait_for(|state| state.closed_for.is_empty()).await;
    }

    /// Waits until the gate is closed.
    pub(crate) async fn closed(&self) {
        // The sender lives in `self`, so the wait cannot end with an error.
        let _ = self.state.subscribe().wait_for(|state| !state.closed_for.is_empty()).await;
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.gate.state.send_modify(|state| state.claims = state.claims.saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn no_claim_begins_once_the_gate_is_closed() {
        let gate = LeaseGate::default();
        let claim = gate.begin_claim();
        assert!(claim.is_some());
        assert!(gate.close(ClosedFor::Drain));
        assert!(gate.begin_claim().is_none());
        assert!(gate.has_claims(), "the one before is still under way");
        drop(claim);
        assert!(!gate.has_claims());
    }

    /// Not even one in the first millisecond, whoever asks at that very moment.
    #[test]
    fn no_claim_of_a_storm_begins_once_the_gate_is_closed_and_none_is_under_way() {
        for _ in 0..50 {
            let (gate, is_over) = (LeaseGate::default(), AtomicBool::new(false));
            let (begun, late) = (AtomicUsize::new(0), AtomicUsize::new(0));
            let storm = || {
                while let Some(_claim) = gate.begin_claim() {
                    begun.fetch_add(1, Ordering::SeqCst);
                    late.fetch_add(usize::from(is_over.load(Ordering::SeqCst)), Ordering::SeqCst);
                }
            };
            std::thread::scope(|scope| {
                (0..4).for_each(|_| drop(scope.spawn(storm)));
                while begun.load(Ordering::SeqCst) < 20 {
                    std::thread::yield_now();
                }
                gate.close(ClosedFor::Drain);
                while gate.has_claims() {
                    std::thread::yield_now();
                }
                is_over.store(true, Ordering::SeqCst);
            });
            assert_eq!(late.load(Ordering::SeqCst), 0);
        }
    }

    #[test]
    fn gate_opens_when_the_last_reason_is_gone() {
        let gate = LeaseGate::default();
        gate.close(ClosedFor::Rebalance);
        assert!(!gate.close(ClosedFor::Drain), "it was closed already");
        gate.set([(ClosedFor::Rebalance, false)]);
        assert!(!gate.is_open());
        gate.set([(ClosedFor::Drain, false)]);
        assert!(gate.is_open());
    }

    /// As at the start of an agent whose replica drains: the keys are read, and say so.
    #[test]
    fn gate_is_never_open_while_one_reason_takes_the_place_of_another() {
        for _ in 0..50 {
            let (gate, is_over) = (LeaseGate::default(), AtomicBool::new(false));
            gate.close(ClosedFor::KeysUnread);
            let claims = std::thread::scope(|scope| {
                let claims = scope.spawn(|| {
                    let mut claims = 0_u32;
                    while !is_over.load(Ordering::SeqCst) {
                        claims += u32::from(gate.begin_claim().is_some());
                    }
                    claims
                });
                for turn in 0..200 {
                    let is_read = turn % 2 == 0;
                    gate.set([(ClosedFor::KeysUnread, !is_read), (ClosedFor::Drain, is_read)]);
                }
                is_over.store(true, Ordering::SeqCst);
                claims.join().expect("it does not panic")
            });
            assert_eq!(claims, 0);
        }
    }
}
