//! Every flag of the agent and of the controller is set by the chart, or the README says why not.
//! And the role that the README gives to the controller is what its calls need.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use ebbtide_harness::{Helm, require};

use crate::programs::EBBTIDE;

use super::all_values;
use super::release::{chart, least_values, root, temporary_file};

/// Where the README lists the flags that the chart leaves alone.
const LEFT_ALONE: &str = "## Flags that the chart leaves alone";

#[tokio::test]
async fn every_flag_is_set_by_the_chart_or_the_readme_says_why_not() {
    let helm = require!(Helm::find());
    let least = temporary_file("chart-flags", "least.json", &least_values().to_string());
    let mut all = all_values();
    all["redis"] = least_values()["redis"].clone();
    let all = temporary_file("chart-flags", "all.json", &all.to_string());
    let values = ["template", "r", &chart(), "--values", &least, "--values", &all];
    let readme = readme();
    let (_, list) = readme.split_once(LEFT_ALONE).expect("the list is in the README");
    let list = list.split("\n## ").next().unwrap();
    for (part, template) in [("agent", "agent-daemonset"), ("controller", "controller-deployment")]
    {
        let show = format!("--show-only=templates/{template}.yaml");
        let rendered = helm.run(&[&values[..], &[&show]].concat()).await.unwrap();
        let flags = flags_of(part);
        assert!(flags.len() > 7, "{part}: {flags:?}");
        for (flag, variable) in flags {
            let is_variable = |line: &str| line.trim() == format!("- name: {variable}");
            let is_flag = |line: &str| line.trim().starts_with(&format!("- {flag}="));
            let is_set = rendered.lines().any(|line| is_variable(line) || is_flag(line));
            let is_left_alone = list.contains(&format!("`{flag}`"));
            assert_ne!(is_set, is_left_alone, "{part} {flag}: set, or named in the README");
        }
    }
}

#[test]
fn role_of_the_controller_has_no_action_that_is_never_called() {
    let sources = sources_below(&root().join("controller/src"));
    let readme = readme();
    let services = ["autoscaling", "ec2", "sqs"];
    let actions = readme.split('"').filter_map(|word| word.split_once(':'));
    let actions: Vec<_> = actions.filter(|(service, _)| services.contains(service)).collect();
    assert!(actions.len() > 8, "{actions:?}");
    for (service, action) in actions {
        let method: String = action
            .chars()
            .flat_map(|letter| [letter.is_uppercase().then_some('_'), Some(letter)])
            .flatten()
            .collect();
        let call = format!(".{}()", method.trim_start_matches('_').to_lowercase());
        assert!(sources.contains(&call), "nothing calls {service}:{action}");
    }
}

/// The flags of a subcommand with the variables beside them, as its help tells; a flag without one
/// has an empty one.
fn flags_of(part: &str) -> BTreeMap<String, String> {
    let help = Command::new(EBBTIDE).args([part, "--help"]).output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let (_, options) = help.split_once("Options:").expect("the help has options");
    let (options, _) = options.split_once("\nExample:").expect("and an example after them");
    let mut flags = BTreeMap::new();
    let mut last = String::new();
    for line in options.lines().map(str::trim) {
        if let Some(flag) = line.strip_prefix("--") {
            let name = flag.split([' ', '=']).next().unwrap();
            last = format!("--{name}");
            flags.insert(last.clone(), String::new());
        }
        if let Some((_, variable)) = line.split_once("[env: ") {
            let name = variable.split(['=', ']']).next().unwrap();
            flags.insert(last.clone(), name.to_owned());
        }
    }
    flags
}

fn readme() -> String {
    fs::read_to_string(format!("{}/README.md", chart())).unwrap()
}

fn sources_below(folder: &Path) -> String {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let read = |path: std::path::PathBuf| {
        if path.is_dir() { sources_below(&path) } else { fs::read_to_string(&path).unwrap() }
    };
    entries.map(read).collect()
}
