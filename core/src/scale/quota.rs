//! Quotas of EC2: what one refusal says about other pools.
//!
//! A quota bounds the virtual processors of one market and class of instance types in one region,
//! whatever the zone. So a pool that was refused for a quota speaks for all pools of the same one.
//!
//! Source: the lists of Spot and On-Demand quotas in EC2's user guide.

use std::collections::BTreeMap;
use std::fmt;

use super::bench::PoolMemory;
use super::terms::{PoolTerms, SizingTerms};
use crate::policy::{Market, PoolName, ReservationKind};
use crate::time::UnixMillis;

/// What shares one quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QuotaFamily {
    market: Market,
    class: &'static str,
    /// Where each generation has a quota of its own.
    generation: Option<u32>,
}

impl QuotaFamily {
    /// The quota that an instance type falls under; `None` for a type that no list has.
    pub(super) fn of(instance_type: &str, market: Market) -> Option<Self> {
        let letters: String = instance_type.chars().take_while(char::is_ascii_alphabetic).collect();
        let digits = instance_type[letters.len()..].chars().take_while(char::is_ascii_digit);
        let number: Option<u32> = digits.collect::<String>().parse().ok();
        let (class, generation) = match (letters.as_str(), market, number) {
            ("a" | "c" | "d" | "h" | "i" | "im" | "is" | "m" | "r" | "t" | "z", ..) => {
                ("Standard", None)
            }
            ("f", ..) => ("F", None),
            ("g" | "gr" | "vt", ..) => ("G and VT", None),
            ("inf", ..) => ("Inf", None),
            ("x", ..) => ("X", None),
            ("dl", ..) => ("DL", None),
            ("trn", ..) => ("Trn", None),
            ("hpc", ..) => ("HPC", None),
            ("u", ..) => ("High Memory", None),
            ("p", Market::OnDemand, _) => ("P", None),
            ("p", Market::Spot, Some(2..=4)) => ("P4, P3 and P2", None),
            ("p", Market::Spot, generation) => ("P", generation),
            _ => return None,
        };
        Some(Self { market, class, generation })
    }

    /// The quota of a pool; a Capacity Block has none, it is there or not.
    fn of_pool(pool: &PoolTerms) -> Option<Self> {
        let block = ReservationKind::CapacityBlock;
        if pool.reservation.as_ref().is_some_and(|reservation| reservation.kind == block) {
            return None;
        }
        Self::of(pool.instance_type.as_ref()?.as_str(), pool.market)
    }
}

impl fmt::Display for QuotaFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.class)?;
        if let Some(generation) = self.generation {
            write!(f, "{generation}")?;
        }
        let market = match self.market {
            Market::Spot => "Spot",
            Market::OnDemand => "On-Demand",
        };
        write!(f, " {market}")
    }
}

/// Benches every pool of a quota that one of them was refused for, until that one has been probed.
/// Answers which quotas those are, and until when.
pub(super) fn share_refusals(
    terms: &SizingTerms,
    pools: &mut BTreeMap<PoolName, PoolMemory>,
) -> BTreeMap<QuotaFamily, UnixMillis> {
    let mut refused = BTreeMap::<QuotaFamily, UnixMillis>::new();
    let families = || {
        let families = terms.pools.iter().map(|pool| (&pool.name, QuotaFamily::of_pool(pool)));
        families.filter_map(|(name, family)| Some((name, family?)))
    };
    for (name, family) in families() {
        if let Some(until) = pools.get(name).and_then(PoolMemory::lacks_quota_until) {
            let latest = refused.entry(family).or_default();
            *latest = until.max(*latest);
        }
    }
    for (name, family) in families() {
        if let Some(pool) = pools.get_mut(name) {
            pool.share_quota(refused.get(&family).copied());
        }
    }
    refused
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_are_those_of_ec2() {
        let spot = [
            ("p5en.48xlarge", "P5 Spot"),
            ("p5.48xlarge", "P5 Spot"),
            ("p4de.24xlarge", "P4, P3 and P2 Spot"),
            ("p3.16xlarge", "P4, P3 and P2 Spot"),
            ("p6-b200.48xlarge", "P6 Spot"),
            ("g6e.48xlarge", "G and VT Spot"),
            ("vt1.3xlarge", "G and VT Spot"),
            ("trn2.48xlarge", "Trn Spot"),
            ("m7i.large", "Standard Spot"),
            ("im4gn.large", "Standard Spot"),
        ];
        for (instance_type, expected) in spot {
            let family = QuotaFamily::of(instance_type, Market::Spot).expect("known");
            assert_eq!(family.to_string(), expected, "{instance_type}");
        }
        let on_demand = |instance_type| QuotaFamily::of(instance_type, Market::OnDemand);
        assert_eq!(on_demand("p5.48xlarge"), on_demand("p3.2xlarge"));
        assert_ne!(on_demand("p5.48xlarge"), QuotaFamily::of("p5.48xlarge", Market::Spot));
        assert_eq!(on_demand("mac2.metal"), None);
        assert_eq!(on_demand(""), None);
    }
}
