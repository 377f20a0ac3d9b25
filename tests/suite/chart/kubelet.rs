//! What a kubelet does with the container of a pod: its volumes laid out, its variables filled in,
//! its command run. Here with the real program, and with the token of the account.

use std::fs;
use std::path::Path;
use std::time::Duration;

use ebbtide_harness::Program;
use serde_json::Value;

use super::release::Release;

/// A folder of the container, and where it lies here.
type Mount = (String, String);

/// Starts what the first container of a pod template says, as the account of `part`. `fields` are
/// the values that a kubelet would take from the pod.
pub(super) async fn start(
    release: &Release,
    part: &'static str,
    template: &Value,
    fields: &[(&str, &str)],
) -> Program {
    let here = [("EBBTIDE_LISTEN", "127.0.0.1:0"), ("NODE_IP", "127.0.0.1")];
    let spec = &template["spec"]["template"]["spec"];
    let container = &spec["containers"][0];
    let mounts = lay_out(release, spec).await;
    let command: Vec<String> =
        items(&container["command"]).map(|word| place(word.as_str().unwrap(), &mounts)).collect();
    assert_eq!(command[0], "ebbtide");
    let arguments = command.iter().skip(1).map(String::as_str);
    let mut options = Program::options(part, env!("CARGO_BIN_EXE_ebbtide")).arguments(arguments);
    for variable in items(&container["env"]) {
        let name = variable["name"].as_str().unwrap();
        let given = here.iter().chain(fields).find(|(known, _)| *known == name);
        let value = match given {
            Some((_, value)) => (*value).to_owned(),
            None => value_of(release, variable, &mounts).await,
        };
        options = options.variable(name, &value);
    }
    let account = release.account(part).await.display().to_string();
    options.variable("KUBECONFIG", &account).start().unwrap()
}

/// Ends it as a kubelet does. Nothing was forbidden to it.
pub(super) async fn end(program: &mut Program) {
    let status = program.terminate(Duration::from_secs(12)).await.unwrap();
    assert!(status.success(), "{status}: {}", program.log());
    assert!(!program.log().to_lowercase().contains("forbidden"), "{}", program.log());
}

/// Writes the volumes of the pod into folders of the test.
async fn lay_out(release: &Release, spec: &Value) -> Vec<Mount> {
    let mut mounts = Vec::new();
    for mount in items(&spec["containers"][0]["volumeMounts"]) {
        let volume = items(&spec["volumes"]).find(|volume| volume["name"] == mount["name"]);
        let volume = volume.unwrap_or_else(|| panic!("no volume for {mount}"));
        let name = volume["name"].as_str().unwrap();
        let folder = format!("{}/{name}", release.folder());
        fs::create_dir_all(&folder).unwrap();
        if let Some(config_map) = volume["configMap"]["name"].as_str() {
            let object = find(release, "configmap", config_map).await;
            for (key, text) in object["data"].as_object().unwrap() {
                fs::write(Path::new(&folder).join(key), text.as_str().unwrap()).unwrap();
            }
        } else if let Some(secret) = volume["secret"]["secretName"].as_str() {
            for item in items(&volume["secret"]["items"]) {
                let value = read_secret(release, secret, item["key"].as_str().unwrap()).await;
                let file = Path::new(&folder).join(item["path"].as_str().unwrap());
                fs::write(file, value).unwrap();
            }
        }
        mounts.push((mount["mountPath"].as_str().unwrap().to_owned(), folder));
    }
    mounts
}

async fn value_of(release: &Release, variable: &Value, mounts: &[Mount]) -> String {
    let secret = &variable["valueFrom"]["secretKeyRef"];
    if let (Some(name), Some(key)) = (secret["name"].as_str(), secret["key"].as_str()) {
        return read_secret(release, name, key).await;
    }
    let value = variable["value"].as_str();
    place(value.unwrap_or_else(|| panic!("{variable} has no value")), mounts)
}

/// A text whose paths are those of the container, with where they lie here.
fn place(text: &str, mounts: &[Mount]) -> String {
    mounts.iter().fold(text.to_owned(), |text, (path, folder)| {
        text.replace(&format!("{path}/"), &format!("{folder}/"))
    })
}

async fn read_secret(release: &Release, name: &str, key: &str) -> String {
    let template = format!("go-template={{{{ index .data \"{key}\" | base64decode }}}}");
    let get = [&["get", "secret", name, "-o", &template], &release.in_space()[..]].concat();
    release.admin().run(&get).await.unwrap()
}

async fn find(release: &Release, kind: &str, name: &str) -> Value {
    release.admin().get(&[&[kind, name], &release.in_space()[..]].concat()).await.unwrap()
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}
