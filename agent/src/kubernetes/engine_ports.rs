//! Where the engines of a pod answer: on its ports of one name.

use std::net::{IpAddr, Ipv6Addr};

use serde::Deserialize;

use super::objects::ApiPod;
use super::pod::EnginePort;
use super::{ENGINE_PORT, RUN_LABEL};

#[derive(Debug, Clone, Deserialize)]
pub(super) struct Container {
    #[serde(default)]
    ports: Vec<ContainerPort>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ContainerPort {
    name: Option<String>,
    container_port: u16,
    host_port: Option<u16>,
}

/// One for each port. An engine with a port of the node is called by the node's address, which
/// stays when its pod is replaced; any other by the pod's.
pub(super) fn engine_ports(pod: &ApiPod) -> Vec<EnginePort> {
    let containers = pod.spec.containers.iter().chain(&pod.spec.init_containers);
    let ports = containers.flat_map(|container| &container.ports);
    let engines = ports.filter(|port| port.name.as_deref() == Some(ENGINE_PORT));
    engines.map(|port| engine_port(pod, port)).collect()
}

fn engine_port(pod: &ApiPod, port: &ContainerPort) -> EnginePort {
    let labels = pod.metadata.labels.as_ref();
    let run = labels.and_then(|labels| labels.get(RUN_LABEL)).cloned();
    let status = pod.status.as_ref();
    let runs = status.is_some_and(|status| status.phase.as_deref() == Some("Running"));
    let ip = |ip: Option<&String>| ip.and_then(|ip| ip.parse::<IpAddr>().ok());
    let pod_ip = ip(status.and_then(|status| status.pod_ip.as_ref()));
    let host_ip = ip(status.and_then(|status| status.host_ip.as_ref()));
    let by_pod = pod_ip.map(|ip| url(ip, port.container_port));
    let Some(host_port) = port.host_port else {
        return EnginePort { url: by_pod.filter(|_| runs), also: Vec::new(), run };
    };
    let loopback = [IpAddr::from([127, 0, 0, 1]), Ipv6Addr::LOCALHOST.into()];
    let by_name = ["localhost"].into_iter().chain(pod.spec.node_name.as_deref());
    let also = by_pod
        .into_iter()
        .chain(loopback.map(|ip| url(ip, host_port)))
        .chain(by_name.map(|name| format!("http://{name}:{host_port}")));
    let by_host = host_ip.map(|ip| url(ip, host_port));
    EnginePort { url: by_host.filter(|_| runs), also: also.collect(), run }
}

fn url(ip: IpAddr, port: u16) -> String {
    format!("http://{}", std::net::SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn ports(spec: Value, phase: &str, pod_ip: &str) -> Vec<EnginePort> {
        let pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": { "name": "p", "uid": "u", "labels": { "ebbtide.dev/run": "r1" } },
            "spec": spec,
            "status": { "phase": phase, "hostIP": "10.0.0.7", "podIP": pod_ip },
        });
        engine_ports(&serde_json::from_value(pod).expect("a pod"))
    }

    fn container(ports: Value) -> Value {
        json!({ "nodeName": "n1", "containers": [{ "name": "c", "ports": ports }] })
    }

    #[test]
    fn ports_are_known_by_name_in_every_container() {
        let one = |port: u16| json!([{ "name": "engine", "containerPort": port }]);
        let spec = json!({
            "initContainers": [{ "name": "s", "restartPolicy": "Always", "ports": one(8002) }],
            "containers": [
                { "name": "a", "ports": one(8000) },
                { "name": "b", "ports": [{ "name": "metrics", "containerPort": 9000 }] },
                { "name": "c", "ports": one(8001) },
                { "name": "d" },
            ],
        });
        let urls = |phase| -> Vec<Option<String>> {
            ports(spec.clone(), phase, "10.2.0.3").into_iter().map(|port| port.url).collect()
        };
        let at = |port: u16| Some(format!("http://10.2.0.3:{port}"));
        assert_eq!(urls("Running"), [at(8000), at(8001), at(8002)]);
        assert_eq!(urls("Pending"), [None, None, None]);
    }

    #[test]
    fn engine_with_a_port_of_the_node_is_called_by_the_node_and_has_other_names() {
        let engine = json!([{ "name": "engine", "containerPort": 8000, "hostPort": 18000 }]);
        let found = ports(container(engine), "Running", "10.2.0.3").remove(0);
        assert_eq!(found.url.as_deref(), Some("http://10.0.0.7:18000"));
        assert_eq!(found.run.as_deref(), Some("r1"));
        for other in ["10.2.0.3:8000", "127.0.0.1:18000", "[::1]:18000", "n1:18000"] {
            assert!(found.also.contains(&format!("http://{other}")), "{other}: {found:?}");
        }
    }

    #[test]
    fn pod_without_an_address_does_not_answer_and_ipv6_is_written_as_urls_have_it() {
        let engine = || container(json!([{ "name": "engine", "containerPort": 8000 }]));
        assert_eq!(ports(engine(), "Running", "")[0].url, None);
        let found = ports(engine(), "Running", "fd00::3").remove(0);
        assert_eq!(found.url.as_deref(), Some("http://[fd00::3]:8000"));
    }
}
