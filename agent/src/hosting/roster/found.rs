//! The engines that the pods of a node have. No I/O.

use ebbtide_core::ids::RunId;

use crate::kubernetes::{EnginePort, SeenPod};

/// An engine of a running pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    /// Where it answers.
    pub(super) url: String,
    also: Vec<String>,
}

impl Found {
    /// Whether `url`, which somebody has given the agent, stands for this engine.
    pub(super) fn may_be(&self, url: &str) -> bool {
        let mut known = [&self.url].into_iter().chain(&self.also);
        known.any(|known| is_same_server(known, url))
    }
}

/// Each engine for the run once, in the order of their addresses; and whether a pod that has one
/// does not run yet. A pod on its way out has its engines for as long as it is there.
pub(super) fn found_engines(pods: &[SeenPod], run: &RunId) -> (Vec<Found>, bool) {
    let is_ours = |port: &&EnginePort| port.run.as_ref().is_none_or(|it| it == run.as_str());
    let ports = || pods.iter().flat_map(|pod| &pod.engines).filter(is_ours);
    let found = |port: &EnginePort| {
        let url = port.url.clone()?;
        Some(Found { url, also: port.also.clone() })
    };
    let mut engines: Vec<Found> = ports().filter_map(found).collect();
    engines.sort_by(|a, b| a.url.cmp(&b.url));
    engines.dedup_by(|a, b| a.url == b.url);
    (engines, ports().any(|port| port.url.is_none()))
}

fn is_same_server(one: &str, other: &str) -> bool {
    let server = |url: &str| {
        let url = reqwest::Url::parse(url).ok()?;
        Some((url.host_str()?.to_ascii_lowercase(), url.port_or_known_default()?))
    };
    server(one).is_some_and(|one| Some(one) == server(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, urls: &[Option<&str>]) -> SeenPod {
        let port = |url: &Option<&str>| EnginePort {
            url: url.map(str::to_owned),
            also: vec!["http://127.0.0.1:8000".to_owned()],
            run: None,
        };
        SeenPod { engines: urls.iter().map(port).collect(), ..SeenPod::ordinary("rl", name, name) }
    }

    fn run() -> RunId {
        "r1".parse().expect("valid")
    }

    #[test]
    fn engines_of_all_pods_are_found_once_and_those_to_come_are_awaited() {
        let urls = |pods: &[SeenPod]| -> (Vec<String>, bool) {
            let (found, is_awaited) = found_engines(pods, &run());
            (found.into_iter().map(|found| found.url).collect(), is_awaited)
        };
        let (two, one) = (Some("http://10.0.0.2:8000"), Some("http://10.0.0.1:8000"));
        let pods = [pod("a", &[two, one]), pod("b", &[]), pod("c", &[two])];
        let both = [one, two].map(|url| url.expect("a url").to_owned()).to_vec();
        assert_eq!(urls(&pods), (both, false));
        assert_eq!(urls(&[pod("a", &[None])]), (vec![], true));
        let mut of_others = pod("a", &[one, None]);
        of_others.engines.iter_mut().for_each(|port| port.run = Some("r2".to_owned()));
        assert_eq!(urls(&[of_others]), (vec![], false));
    }

    #[test]
    fn engine_that_was_told_is_the_same_by_any_of_its_names() {
        let (found, _) = found_engines(&[pod("a", &[Some("http://10.0.0.1:8000")])], &run());
        for (url, is_same) in [
            ("http://10.0.0.1:8000", true),
            ("http://10.0.0.1:8000/", true),
            ("http://127.0.0.1:8000", true),
            ("http://127.0.0.1:8001", false),
            ("http://10.0.0.2:8000", false),
            ("nonsense", false),
        ] {
            assert_eq!(found[0].may_be(url), is_same, "{url}");
        }
    }
}
