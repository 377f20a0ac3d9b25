//! `ebbtide crd`: the custom resource definition of fleet policies.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Args;
use ebbtide_core::policy::resource_definition;

use crate::place::Output;
use crate::yaml;

const EXAMPLES: &str = "\
Examples:
  ebbtide crd | kubectl apply -f -
  kubectl apply -f policies/grpo-async.yaml
  kubectl get fleetpolicies

The cluster then checks fleet policies as `ebbtide policy check` does, and a controller that is
started with --policy-resource NAMESPACE/NAME follows one and answers in its status. Without the
definition the same document is a file (--policy). The chart brings the definition with it.";

/// `ebbtide crd`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct CrdArgs {
    /// `text` is YAML
    #[arg(long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

/// Prints the definition.
pub fn run(args: &CrdArgs) -> ExitCode {
    let definition = resource_definition();
    let text = match args.output {
        Output::Text => yaml::write(&definition),
        Output::Json => format!("{definition:#}\n"),
    };
    // A reader that has gone away, as in `| head`, changes nothing.
    let _ = io::stdout().write_all(text.as_bytes());
    ExitCode::SUCCESS
}
