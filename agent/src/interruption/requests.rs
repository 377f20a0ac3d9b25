//! The names of drain requests that a node's agents make.

use ebbtide_core::ids::NodeName;
use uuid::Uuid;

/// How the names of all agents begin.
const AGENTS: &str = "notice-";

/// Whether an agent has named it, of whichever node.
pub(super) fn is_of_an_agent(request_id: &str) -> bool {
    let rest = request_id.strip_prefix(AGENTS).and_then(|rest| rest.rsplit_once('-'));
    rest.is_some_and(|(_, unique)| Uuid::try_parse(unique).is_ok())
}

/// See the module.
#[derive(Debug)]
pub(super) struct OwnRequests {
    /// How they begin; a restarted agent knows its predecessor's.
    prefix: String,
    current: Option<String>,
}

impl OwnRequests {
    pub(super) fn of(node: &NodeName) -> Self {
        Self { prefix: format!("{AGENTS}{node}-"), current: None }
    }

    /// The name of the request that is to be made: one for as long as it stands.
    pub(super) fn current(&mut self) -> String {
        let prefix = &self.prefix;
        let fresh = || format!("{prefix}{}", Uuid::new_v4().simple());
        self.current.get_or_insert_with(fresh).clone()
    }

    /// The next request is another one.
    pub(super) fn forget(&mut self) {
        self.current = None;
    }

    /// Whether this process has named it, and it stands.
    pub(super) fn is_current(&self, request_id: &str) -> bool {
        self.current.as_deref() == Some(request_id)
    }

    /// Whether an agent of this node has named it. Names of nodes may begin like one another.
    pub(super) fn has_named(&self, request_id: &str) -> bool {
        let rest = request_id.strip_prefix(&self.prefix);
        rest.is_some_and(|rest| Uuid::try_parse(rest).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests(node: &str) -> OwnRequests {
        OwnRequests::of(&node.parse().expect("valid"))
    }

    #[test]
    fn request_keeps_its_name_until_it_is_forgotten() {
        let mut requests = requests("n1");
        let name = requests.current();
        assert_eq!(requests.current(), name);
        requests.forget();
        assert_ne!(requests.current(), name);
    }

    #[test]
    fn agents_of_a_node_know_their_requests_from_those_of_nodes_with_longer_names() {
        let own = requests("n1").current();
        assert!(requests("n1").has_named(&own), "a successor knows it");
        for other in ["n1-a", "n1-1", "n", "n2"] {
            let request = requests(other).current();
            assert!(!requests("n1").has_named(&request), "{request}");
            assert!(is_of_an_agent(&request), "{request}");
        }
        for other in ["event-n1-7", "notice-n1", "notice-n1-7", "operator-n1", ""] {
            assert!(!is_of_an_agent(other), "{other}");
        }
        assert!(!requests("n1").has_named("notice-n1-"));
        assert!(!requests("n1").has_named("event-n1-7"));
    }
}
