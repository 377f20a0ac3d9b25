//! Finding a node among those that a run knows.

use std::time::Duration;

use ebbtide_core::ids::NodeName;
use ebbtide_core::policy::nearest;
use ebbtide_core::scale::SILENCE_LIMIT;
use ebbtide_queue::control::{ControlView, NodeRecord};

use crate::words::counted;

/// Names that a message tells.
const NAMES_SHOWN: usize = 3;

/// The record of a node.
///
/// # Errors
/// No such node has reported; the message tells names that were probably meant.
pub fn find_node<'a>(view: &'a ControlView, name: &NodeName) -> anyhow::Result<&'a NodeRecord> {
    let found = view.nodes.iter().find(|node| node.node == *name);
    found.ok_or_else(|| {
        anyhow::anyhow!("no node {name} has reported to this run{}", hint(view, name))
    })
}

fn hint(view: &ControlView, name: &NodeName) -> String {
    if view.nodes.is_empty() {
        return ", and no other either: does an agent run with this --run and --redis?".to_owned();
    }
    let known = counted(view.nodes.len() as u64, "node");
    let verb = if view.nodes.len() == 1 { "is" } else { "are" };
    let near = near_names(view, name.as_str());
    if !near.is_empty() {
        return format!("; did you mean {}? {known} {verb} known", any_of(&near));
    }
    let mut names: Vec<&str> = view.nodes.iter().map(|node| node.node.as_str()).collect();
    names.sort_unstable();
    let rest = names.len().saturating_sub(NAMES_SHOWN);
    names.truncate(NAMES_SHOWN);
    let more = if rest > 0 { format!(" and {rest} more") } else { String::new() };
    format!("; {known} {verb} known: {}{more}", names.join(", "))
}

/// `a, b or c`.
fn any_of(names: &[&str]) -> String {
    match names {
        [first @ .., before, last] => {
            first.iter().map(|name| format!("{name}, ")).collect::<String>()
                + &format!("{before} or {last}")
        }
        names => names.concat(),
    }
}

/// Names that were probably meant: of the instance or the replica that was named, longer or
/// shorter forms of the name, or a slip of the pen.
fn near_names<'a>(view: &'a ControlView, text: &str) -> Vec<&'a str> {
    let is_meant = |node: &&NodeRecord| {
        let name = node.node.as_str();
        node.instance_id.as_deref() == Some(text)
            || node.replica.as_str() == text
            || name.starts_with(text)
            || text.starts_with(name)
    };
    let mut names: Vec<&str> =
        view.nodes.iter().filter(is_meant).map(|node| node.node.as_str()).collect();
    if names.is_empty() {
        let known: Vec<&str> = view.nodes.iter().map(|node| node.node.as_str()).collect();
        names.extend(nearest(text, &known));
    }
    names.sort_unstable();
    names.truncate(NAMES_SHOWN);
    names
}

/// Time since a node's last word, when that is so long that the node is unknown.
pub fn silence(view: &ControlView, node: &NodeRecord) -> Option<Duration> {
    Some(view.now.since(node.heartbeat)).filter(|silence| *silence > SILENCE_LIMIT)
}

#[cfg(test)]
pub mod tests {
    use ebbtide_core::fabric::FabricVerdict;
    use ebbtide_core::time::UnixMillis;
    use ebbtide_queue::control::NodeState;

    use super::*;

    pub const NOW: UnixMillis = UnixMillis(1_795_975_200_000);

    /// A node in service that was heard just now.
    pub fn node(name: &str, replica: &str) -> NodeRecord {
        let holder = format!("{name}/boot/agent-1").parse().expect("valid");
        NodeRecord {
            replica: replica.parse().expect("valid"),
            fabric: FabricVerdict::Passed,
            in_flight: 4,
            tokens_per_second: 10.0,
            heartbeat: NOW,
            ..NodeRecord::new(holder, NodeState::Ready)
        }
    }

    fn message(nodes: Vec<NodeRecord>, name: &str) -> String {
        let view = ControlView { now: NOW, nodes, ..ControlView::default() };
        find_node(&view, &name.parse().expect("valid")).expect_err("unknown").to_string()
    }

    #[test]
    fn unknown_node_is_answered_with_what_was_probably_meant() {
        let named = |names: &[&str]| -> Vec<NodeRecord> {
            names.iter().map(|name| node(name, name)).collect()
        };
        let long = ["ip-10-0-1-12.ec2.internal", "ip-10-0-1-77.ec2.internal"];
        let of_instance = NodeRecord { instance_id: Some("i-0abc".to_owned()), ..node("n7", "n7") };
        let table = [
            (named(&[]), "n1", ", and no other either: does an agent run"),
            (named(&long), "ip-10-0-1-12", "; did you mean ip-10-0-1-12.ec2.internal? 2 nodes"),
            (named(&["node-1"]), "nodee-1", "; did you mean node-1? 1 node is known"),
            (vec![of_instance], "i-0abc", "; did you mean n7?"),
            (vec![node("a1", "ep-0"), node("a2", "ep-0")], "ep-0", "; did you mean a1 or a2?"),
            (named(&["n1", "n2", "n3"]), "n", "; did you mean n1, n2 or n3? 3 nodes are known"),
            (named(&["d", "b", "a", "c"]), "other", "; 4 nodes are known: a, b, c and 1 more"),
        ];
        for (nodes, name, expected) in table {
            let message = message(nodes, name);
            let begin = format!("no node {name} has reported to this run{expected}");
            assert!(message.starts_with(&begin), "{message}");
        }
    }

    #[test]
    fn only_a_long_silence_makes_a_node_unknown() {
        let view = |seconds| ControlView {
            now: NOW.plus(Duration::from_secs(seconds)),
            ..ControlView::default()
        };
        assert_eq!(silence(&view(10), &node("n1", "n1")), None);
        assert_eq!(silence(&view(42), &node("n1", "n1")), Some(Duration::from_secs(42)));
    }
}
