//! EP groups that the real LeaderWorkerSet controller makes of the chart's manifests: they come up,
//! a lost pod makes the whole group anew, a new image goes from one group to the next, and agents
//! read which nodes belong together. `kwok` plays the pods, the test their containers.

use std::collections::BTreeSet;
use std::sync::Arc;

use ebbtide_controller::image_rollout::{GroupPods, KubeGroups, SPEED_GATE};
use ebbtide_harness::{
    ControlPlane, Error, LwsController, PARTS, PATIENT_POD_ANNOTATION, Redis, require, until,
};
use ebbtide_queue::client::{MemoryPort, WorkQueue, wall_clock_now};
use ebbtide_queue::control::NodeState;
use ebbtide_queue::memory::ShardSettings;
use serde_json::{Value, json};

use super::EVENT_LIMIT;
use super::kubelet::{end, start};
use super::release::{CONTROLLER, NODES_OF, Release};
use super::workers::group;
use crate::lane::world::{Running, client};
use crate::programs::group as prompt_group;

const SET_LABEL: &str = "leaderworkerset.sigs.k8s.io/name";
const ZONES: [&str; 2] = ["us-east-2a", "us-east-2b"];

/// A release with two groups of two nodes, and the nodes for them.
struct Hosting {
    release: Release,
    nodes: Vec<String>,
    values: String,
}

impl Hosting {
    /// As many nodes in each zone as all groups need: which one a group takes is the scheduler's.
    async fn install(release: Result<Release, Error>, nodes_per_zone: usize) -> Self {
        let hosting = Self::begin(release, nodes_per_zone, json!({ "compareSpeed": false })).await;
        hosting.ready_groups(2).await;
        hosting
    }

    /// The same with other values in `workers`, without waiting for the groups.
    async fn begin(
        release: Result<Release, Error>,
        nodes_per_zone: usize,
        mut workers: Value,
    ) -> Self {
        let mut release = release.unwrap();
        let mut nodes = Vec::new();
        for zone in ZONES {
            let names: Vec<String> = (0..nodes_per_zone)
                .map(|number| format!("{}-{zone}-{number}", release.name()))
                .collect();
            let labels = [
                ("topology.kubernetes.io/zone", zone),
                ("node.kubernetes.io/instance-type", "p5en.48xlarge"),
            ];
            release.add_nodes_with(&names, &labels).await;
            nodes.extend(names);
        }
        let more = json!({ "replicas": 2, "nodeSelector": { NODES_OF: release.name() } });
        workers["groups"] = json!({ "ep": group("vllm", &more) });
        // The containers of a deleted pod end when the test says so.
        workers["podAnnotations"] = json!({ PATIENT_POD_ANNOTATION: "" });
        let text = json!({ "workers": workers }).to_string();
        let values = release.file("groups.json", &text);
        release.install(&["--values", &values]).await;
        Self { release, nodes, values }
    }

    /// The name of the LeaderWorkerSet.
    fn set(&self) -> String {
        self.release.object("ep")
    }

    async fn pods(&self) -> Vec<Value> {
        let selector = format!("--selector={SET_LABEL}={}", self.set());
        let get = [&["pods", &selector], &self.release.in_space()[..]].concat();
        let mut list = self.release.admin().get(&get).await.unwrap();
        list["items"].as_array_mut().map(std::mem::take).unwrap()
    }

    /// A pod of the set, such as `0` for the leader of the first group and `0-1` for its worker.
    async fn pod(&self, number: &str) -> Option<Value> {
        let name = format!("{}-{number}", self.set());
        self.pods().await.into_iter().find(|pod| pod["metadata"]["name"] == name.as_str())
    }

    /// Waits until a pod is as wanted.
    async fn pod_becomes(&self, number: &str, is_wanted: impl Fn(&Value) -> bool) -> Value {
        until(&format!("pod {number}"), EVENT_LIMIT, || async {
            self.pod(number).await.filter(|pod| is_wanted(pod))
        })
        .await
        .unwrap()
    }

    /// Waits until a pod as wanted stands in the place of one that was ended. LeaderWorkerSet takes
    /// a leader that comes while its old worker is still there for one of a broken group, and makes
    /// it once more: then its containers end, too.
    async fn pod_comes(&self, number: &str, is_wanted: impl Fn(&Value) -> bool) -> Value {
        until(&format!("a new pod {number}"), EVENT_LIMIT, || async {
            let pod = self.pod(number).await?;
            if is_going(&pod) {
                self.end_pod(number).await;
                return None;
            }
            is_wanted(&pod).then_some(pod)
        })
        .await
        .unwrap()
    }

    async fn ready_groups(&self, count: u64) {
        until("groups to be ready", EVENT_LIMIT, || async {
            let set = self.release.get("leaderworkerset", "ep").await;
            (set["status"]["readyReplicas"] == count).then_some(())
        })
        .await
        .unwrap();
    }

    /// The containers of a pod that is on its way out have ended.
    async fn end_pod(&self, number: &str) {
        let name = format!("{}-{number}", self.set());
        let delete = ["delete", "pod", &name, "--grace-period=0", "--force", "--ignore-not-found"];
        let delete = [&delete[..], &self.release.in_space()].concat();
        self.release.admin().run(&delete).await.unwrap();
    }

    async fn close(self) {
        let delete = ["delete", "leaderworkerset", "--all", "--cascade=foreground", "--wait=false"];
        self.release.kubectl(&[&delete[..], &self.release.in_space()].concat()).await;
        self.release.close().await;
    }
}

fn is_going(pod: &Value) -> bool {
    pod["metadata"]["deletionTimestamp"].is_string()
}

fn uid(pod: &Value) -> &str {
    pod["metadata"]["uid"].as_str().unwrap()
}

fn image(pod: &Value) -> &str {
    pod["spec"]["containers"][0]["image"].as_str().unwrap()
}

fn label<'a>(pod: &'a Value, name: &str) -> &'a str {
    let labels = &pod["metadata"]["labels"];
    labels[format!("leaderworkerset.sigs.k8s.io/{name}")].as_str().unwrap()
}

fn variable<'a>(pod: &'a Value, name: &str) -> &'a str {
    let variables = pod["spec"]["containers"][0]["env"].as_array().unwrap();
    let found = variables.iter().find(|variable| variable["name"] == name);
    found.and_then(|variable| variable["value"].as_str()).unwrap_or_else(|| panic!("{name}: {pod}"))
}

#[tokio::test]
async fn groups_come_up_each_in_one_zone_and_know_their_leader() {
    let cluster = require!(ControlPlane::shared().await);
    require!(LwsController::start(&cluster).await);
    let hosting = Hosting::install(Release::new(cluster, "groups-up").await, 4).await;
    let pods = hosting.pods().await;
    assert_eq!(pods.len(), 4);
    let hosts: BTreeSet<&str> = pods.iter().map(host).collect();
    assert_eq!(hosts.len(), 4, "each has a node of its own");
    for index in ["0", "1"] {
        let members: Vec<&Value> =
            pods.iter().filter(|pod| label(pod, "group-index") == index).collect();
        let zone = |pod: &&Value| ZONES.into_iter().find(|zone| host(pod).contains(zone));
        let zones: BTreeSet<_> = members.iter().map(zone).collect();
        assert_eq!(zones.len(), 1, "EFA does not cross zones");
        let workers: BTreeSet<&str> =
            members.iter().map(|pod| label(pod, "worker-index")).collect();
        assert_eq!(workers, BTreeSet::from(["0", "1"]));
        let (set, space) = (hosting.set(), hosting.release.name());
        for pod in members {
            let leader = format!("{set}-{index}.{set}.{space}");
            assert_eq!(variable(pod, "LWS_LEADER_ADDRESS"), leader);
            assert_eq!(variable(pod, "LWS_GROUP_SIZE"), "2");
            assert_eq!(variable(pod, "LWS_WORKER_INDEX"), label(pod, "worker-index"));
            assert_eq!(pod["metadata"]["labels"]["ebbtide.dev/engine"], "vllm");
            let own = &pod["metadata"]["labels"]["ebbtide.dev/component"];
            assert!(own.is_null(), "agents evict it, at the end");
        }
    }
    let rendered = hosting.release.render(&["--values", &hosting.values]).await;
    let file = hosting.release.file("rendered.yaml", &rendered);
    let apply = ["apply", "--dry-run=server", "--validate=strict", "--filename", &file];
    let answer = hosting.release.admin().run(&apply).await.unwrap();
    assert!(answer.contains("leaderworkerset.leaderworkerset.x-k8s.io/"), "{answer}");
    hosting.close().await;
}

#[tokio::test]
async fn lost_pod_makes_its_whole_group_anew_and_no_other() {
    let cluster = require!(ControlPlane::shared().await);
    require!(LwsController::start(&cluster).await);
    let hosting = Hosting::install(Release::new(cluster, "groups-lost").await, 4).await;
    let before = hosting.pods().await;
    let name = format!("{}-0-1", hosting.set());
    let delete = ["delete", "pod", &name, "--wait=false"];
    let delete = [&delete[..], &hosting.release.in_space()].concat();
    hosting.release.kubectl(&delete).await;
    for number in ["0", "0-1"] {
        hosting.pod_becomes(number, is_going).await;
    }
    for number in ["0-1", "0"] {
        hosting.end_pod(number).await;
    }
    let is_new = |pod: &Value| !is_going(pod) && before.iter().all(|old| uid(old) != uid(pod));
    for number in ["0", "0-1"] {
        hosting.pod_comes(number, is_new).await;
    }
    hosting.ready_groups(2).await;
    for number in ["1", "1-1"] {
        let pod = hosting.pod(number).await.expect("it stays");
        assert!(before.iter().any(|old| uid(old) == uid(&pod)), "group 1 is another one");
    }
    hosting.close().await;
}

#[tokio::test]
async fn new_image_goes_from_group_to_group_and_each_drains_through_the_queue() {
    let cluster = require!(ControlPlane::shared().await);
    require!(LwsController::start(&cluster).await);
    let python = require!(part("python-client"));
    let hosting = Hosting::install(Release::new(cluster, "groups-image").await, 4).await;
    let port = MemoryPort::new(2, ShardSettings::default(), wall_clock_now);
    let queue = WorkQueue::new(Arc::new(port));
    let mut agents = Vec::new();
    for node in &hosting.nodes {
        let client = client(hosting.release.cluster()).await;
        agents.push((node, Running::join(node, client, queue.clone(), |_| {}).await));
    }
    for index in [0, 1] {
        ready_replica(&queue, &format!("{}-{index}", hosting.set())).await;
    }
    let agent_of = |pod: &Value| {
        let found = agents.iter().find(|(node, _)| node.as_str() == host(pod));
        &found.expect("an agent on every node").1
    };
    let leaders = [hosting.pod("0").await.unwrap(), hosting.pod("1").await.unwrap()];
    queue.enqueue(prompt_group(0, 64, 4_000)).await.unwrap();
    for leader in &leaders {
        agent_of(leader).wait_until("busy", |agent| agent.held() == 4).await;
    }

    let image_set = "workers.groups.ep.image=images/engine:2";
    hosting.release.upgrade(&["--values", &hosting.values, "--set", image_set]).await;
    for (number, other) in [("1", "0"), ("0", "1")] {
        let leader = hosting.pod_becomes(number, is_going).await;
        let worker = hosting.pod(&format!("{number}-1")).await.expect("it serves the leader");
        assert!(!is_going(&worker), "the engine runs on until its work is handed back");
        let untouched = hosting.pod(other).await.expect("one group at a time");
        assert!(!is_going(&untouched), "one group at a time");
        pre_stop(&python, &hosting, agent_of(&leader)).await;
        assert_eq!(agent_of(&leader).agent.held(), 0);
        hosting.end_pod(number).await;
        let going = hosting.pod_becomes(&format!("{number}-1"), is_going).await;
        pre_stop(&python, &hosting, agent_of(&going)).await;
        hosting.end_pod(&format!("{number}-1")).await;
        for number in [number.to_owned(), format!("{number}-1")] {
            hosting.pod_comes(&number, |pod| image(pod) == "images/engine:2").await;
        }
        // Work is taken again where the group is now.
        let leader = hosting.pod(number).await.unwrap();
        agent_of(&leader).wait_until("busy again", |agent| agent.held() == 4).await;
    }
    hosting.ready_groups(2).await;
    let units = queue.scan().await.unwrap();
    let attempts: u16 = units.iter().map(|unit| unit.attempts + unit.infra_attempts).sum();
    assert_eq!((units.len(), attempts), (64, 0), "nothing is lost, nothing was an attempt");
    hosting.close().await;
}

fn part(name: &str) -> Result<ebbtide_harness::Located, Error> {
    PARTS.iter().find(|part| part.name == name).expect("a part of that name").take_part()
}

fn host(pod: &Value) -> &str {
    pod["spec"]["nodeName"].as_str().unwrap_or_else(|| panic!("not bound: {pod}"))
}

/// What a kubelet does before it ends the engine's container.
async fn pre_stop(python: &ebbtide_harness::Located, hosting: &Hosting, agent: &Running) {
    let hook = hosting.release.get("configmap", "workers").await;
    let script = hook["data"]["wait-until-drained.py"].as_str().unwrap();
    let script = hosting.release.file("wait-until-drained.py", script);
    let status = tokio::process::Command::new(&python.path)
        .arg(script)
        .env("NODE_IP", "127.0.0.1")
        .env("EBBTIDE_AGENT_PORT", agent.port().to_string())
        .status();
    assert!(status.await.unwrap().success());
}

/// Waits until the replica consists of two ready nodes.
async fn ready_replica(queue: &WorkQueue, replica: &str) {
    until(&format!("replica {replica} of two ready nodes"), EVENT_LIMIT, || async {
        let nodes = queue.view().await.unwrap().nodes;
        let members = nodes.iter().filter(|node| node.replica.as_str() == replica);
        let ready = members.filter(|node| node.state == NodeState::Ready).count();
        (ready == 2).then_some(())
    })
    .await
    .unwrap();
}

/// The real controller, with the rights of its account, beside the real LeaderWorkerSet controller.
#[tokio::test]
async fn new_image_waits_until_its_group_has_shown_its_speed() {
    let redis = require!(Redis::start().await);
    let cluster = require!(ControlPlane::shared().await);
    require!(LwsController::start(&cluster).await);
    let release = Release::new(cluster, "groups-speed").await;
    let hosting = Hosting::begin(release, 4, json!({ "compareSpeed": true })).await;
    let options = ["--values", &hosting.values, "--set", &format!("redis.url={}", redis.url())];
    hosting.release.upgrade(&options).await;
    let template = hosting.release.get("deployment", CONTROLLER).await;
    let names = [("POD_NAME", "controller-0"), ("POD_NAMESPACE", hosting.release.name())];
    let mut controller = start(&hosting.release, CONTROLLER, &template, &names).await;
    // A first start has nothing to prove.
    hosting.ready_groups(2).await;

    let image_set = "workers.groups.ep.image=images/engine:2";
    hosting.release.upgrade(&[&options[..], &["--set", image_set]].concat()).await;
    let replace = async |number: &str| {
        hosting.pod_becomes(number, is_going).await;
        hosting.end_pod(number).await;
        hosting.pod_becomes(&format!("{number}-1"), is_going).await;
        hosting.end_pod(&format!("{number}-1")).await;
    };
    replace("1").await;
    let gated = |pod: &Value| image(pod) == "images/engine:2" && gate(pod).is_some();
    let leader = hosting.pod_comes("1", gated).await;
    assert_eq!(gate(&leader), Some(("False", "Measuring")), "{leader}");
    // It runs, and LeaderWorkerSet sees that it is not ready.
    hosting.ready_groups(1).await;
    let old = hosting.pod("0").await.unwrap();
    assert!(!is_going(&old) && image(&old) == "images/engine:1", "the next one waits");

    // Two minutes are long: what the controller does once they have shown it, done here.
    let groups = KubeGroups::new(
        client(hosting.release.cluster()).await,
        hosting.release.name(),
        wall_clock_now,
    );
    let leaders = groups.leaders().await.unwrap();
    let new = leaders.iter().find(|pod| pod.name == leader["metadata"]["name"]).unwrap();
    groups.tell(new, true, "AsFast", "as fast").await.unwrap();
    replace("0").await;
    hosting.pod_comes("0", |pod| image(pod) == "images/engine:2").await;
    hosting.ready_groups(2).await;
    let last = hosting.pod("0").await.unwrap();
    assert_eq!(gate(&last), Some(("True", "NothingToCompare")), "{last}");
    end(&mut controller).await;
    hosting.close().await;
}

/// Status and reason of the gate's condition, if somebody told one.
fn gate(pod: &Value) -> Option<(&str, &str)> {
    let conditions = pod["status"]["conditions"].as_array()?;
    let gate = conditions.iter().find(|condition| condition["type"] == SPEED_GATE)?;
    Some((gate["status"].as_str()?, gate["reason"].as_str()?))
}
