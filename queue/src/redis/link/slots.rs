//! The parts of a Cluster: which slot a key has, and which server has a slot.

use redis::Value;

use super::super::address::Endpoint;

/// Hash slots of a Cluster.
const SLOT_COUNT: u16 = 16384;

/// Which server has which slots, as one node saw it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct SlotChart {
    ranges: Vec<(u16, u16, Endpoint)>,
    /// Every node, replicas too.
    pub nodes: Vec<Endpoint>,
}

impl SlotChart {
    /// Reads the answer to CLUSTER SLOTS; a node without a host is the one that was asked.
    pub fn read(answer: &Value, asked: &Endpoint) -> Option<Self> {
        let Value::Array(ranges) = answer else { return None };
        let mut chart = Self::default();
        for range in ranges {
            let Value::Array(parts) = range else { return None };
            let [Value::Int(first), Value::Int(last), nodes @ ..] = parts.as_slice() else {
                return None;
            };
            let nodes: Vec<Endpoint> = nodes.iter().filter_map(|node| read(node, asked)).collect();
            let master = nodes.first()?.clone();
            chart.ranges.push((u16::try_from(*first).ok()?, u16::try_from(*last).ok()?, master));
            let is_new = |node: &Endpoint| !chart.nodes.contains(node);
            let new: Vec<Endpoint> = nodes.into_iter().filter(is_new).collect();
            chart.nodes.extend(new);
        }
        Some(chart)
    }

    /// The master of a slot; `None` when no server has it.
    pub fn master_of(&self, slot: u16) -> Option<&Endpoint> {
        let has_slot = |(first, last, _): &&(u16, u16, Endpoint)| (*first..=*last).contains(&slot);
        self.ranges.iter().find(has_slot).map(|(_, _, master)| master)
    }

    /// Every master, each once.
    pub fn masters(&self) -> Vec<Endpoint> {
        let mut masters: Vec<Endpoint> =
            self.ranges.iter().map(|(_, _, master)| master.clone()).collect();
        masters.sort();
        masters.dedup();
        masters
    }

    /// Slots that no server has.
    pub fn unserved(&self) -> usize {
        let served: usize =
            self.ranges.iter().map(|(first, last, _)| usize::from(last - first) + 1).sum();
        usize::from(SLOT_COUNT).saturating_sub(served)
    }
}

fn read(node: &Value, asked: &Endpoint) -> Option<Endpoint> {
    let Value::Array(parts) = node else { return None };
    let [host, Value::Int(port), ..] = parts.as_slice() else { return None };
    let host = match host {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::SimpleString(text) => text.clone(),
        _ => String::new(),
    };
    Some(Endpoint { host: or_asked(&host, asked), port: u16::try_from(*port).ok()? })
}

/// Nodes that do not know how they are reached leave their host empty or write `?`.
fn or_asked(host: &str, asked: &Endpoint) -> String {
    if matches!(host, "" | "?") { asked.host.clone() } else { host.to_owned() }
}

/// Where a redirection points to: `SLOT HOST:PORT`.
pub(super) fn redirected(details: &str, asked: &Endpoint) -> Option<Endpoint> {
    let (host, port) = details.split_whitespace().nth(1)?.rsplit_once(':')?;
    let host = host.trim_matches(['[', ']']);
    Some(Endpoint { host: or_asked(host, asked), port: port.parse().ok()? })
}

/// The slot of a key: CRC-16 (XMODEM) of what stands between its first braces, modulo 16384.
pub(super) fn slot_of(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    let hashed = tag.filter(|tag| !tag.is_empty()).unwrap_or(key);
    crc16(hashed.as_bytes()) % SLOT_COUNT
}

fn crc16(bytes: &[u8]) -> u16 {
    const POLYNOMIAL: u16 = 0x1021;
    bytes.iter().fold(0, |checksum, byte| {
        (0..8).fold(checksum ^ (u16::from(*byte) << 8), |checksum, _| {
            let shifted = checksum << 1;
            if checksum & 0x8000 == 0 { shifted } else { shifted ^ POLYNOMIAL }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(host: &str, port: u16) -> Endpoint {
        Endpoint { host: host.to_owned(), port }
    }

    #[test]
    fn slots_are_those_of_the_cluster_specification() {
        assert_eq!(crc16(b"123456789"), 0x31C3);
        for (key, slot) in [("foo", 12182), ("bar", 5061), ("{user1000}.following", 3443)] {
            assert_eq!(slot_of(key), slot, "{key}");
        }
        assert_eq!(slot_of("foo{}{bar}"), crc16(b"foo{}{bar}") % SLOT_COUNT);
        assert_eq!(slot_of("foo{{bar}}zap"), crc16(b"{bar") % SLOT_COUNT);
        assert_eq!(slot_of("{run-1:3}:units"), slot_of("{run-1:3}:lease:generate"));
    }

    #[test]
    fn chart_names_masters_replicas_and_gaps() {
        let answer = redis::parse_redis_value(
            b"*2\r\n*4\r\n:0\r\n:99\r\n*2\r\n$1\r\na\r\n:1\r\n*2\r\n$1\r\nb\r\n:2\r\n\
              *3\r\n:200\r\n:16383\r\n*2\r\n$-1\r\n:3\r\n",
        )
        .expect("a reply");
        let chart = SlotChart::read(&answer, &at("me", 9)).expect("a chart");
        assert_eq!(chart.master_of(99), Some(&at("a", 1)));
        assert_eq!(chart.master_of(100), None);
        assert_eq!(chart.master_of(16383), Some(&at("me", 3)));
        assert_eq!(chart.nodes, [at("a", 1), at("b", 2), at("me", 3)]);
        assert_eq!(chart.masters(), [at("a", 1), at("me", 3)]);
        assert_eq!(chart.unserved(), 100);
    }

    #[test]
    fn redirections_name_a_server() {
        for (details, endpoint) in [
            ("3999 127.0.0.1:6381", Some(at("127.0.0.1", 6381))),
            ("3999 [::1]:6381", Some(at("::1", 6381))),
            ("3999 ::1:6381", Some(at("::1", 6381))),
            ("3999 :6381", Some(at("me", 6381))),
            ("3999 ?:6381", Some(at("me", 6381))),
            ("3999", None),
        ] {
            assert_eq!(redirected(details, &at("me", 9)), endpoint, "{details}");
        }
    }
}
