//! `spec.pools[].reservation`: capacity that is reserved until a moment.

use std::time::Duration;

use super::goal::Moment;
use super::kinds::{Named, choice, text};
use super::pool::ReservationId;
use super::section::Section;
use crate::time::UnixMillis;

/// How long before the end of a Capacity Block EC2 begins to terminate its instances (user guide of
/// EC2, Capacity Blocks for ML).
const BLOCK_LEFT_BEFORE_END: Duration = Duration::from_mins(30);

/// What is reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ReservationKind {
    /// A Capacity Block for ML: EC2 begins to terminate its instances 30 minutes before its end.
    #[default]
    CapacityBlock,
    /// An On-Demand Capacity Reservation: what still runs at its end would be paid as any other
    /// on-demand node.
    OnDemand,
}

impl Named for ReservationKind {
    const NAMES: &'static [(&'static str, Self)] =
        &[("capacityBlock", Self::CapacityBlock), ("onDemand", Self::OnDemand)];
}

/// `reservation` of a pool: its nodes are there from one moment to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reservation {
    /// `id`: required, the Capacity Reservation that the pool's nodes start in.
    pub id: ReservationId,
    /// `kind`: `capacityBlock` (default) or `onDemand`.
    pub kind: ReservationKind,
    /// `startsAt`: nothing is ordered before it; none is at any time.
    pub starts_at: Option<UnixMillis>,
    /// `endsAt`: required, the end of the reservation as EC2 shows it.
    pub ends_at: UnixMillis,
}

impl Reservation {
    /// The moment by which the pool must be empty, by the clock of EC2.
    pub fn gone_by(&self) -> UnixMillis {
        match self.kind {
            ReservationKind::CapacityBlock => self.ends_at.minus(BLOCK_LEFT_BEFORE_END),
            ReservationKind::OnDemand => self.ends_at,
        }
    }

    pub(super) fn read(reservation: &mut Section<'_, '_>) -> Self {
        Self {
            id: reservation.required("id", text()),
            kind: reservation.or("kind", choice(), ReservationKind::default()),
            starts_at: reservation.optional("startsAt", text::<Moment>()).map(|at| at.0),
            ends_at: reservation.required("endsAt", text::<Moment>()).0,
        }
    }
}
