//! Custom resource definitions: applied, and served before anybody uses them.

use std::path::Path;

use crate::{Error, Kubectl};

const SERVED_LIMIT: &str = "--timeout=60s";

/// Applies every definition in a folder and waits until the API server serves it.
pub(super) async fn apply(kubectl: &Kubectl, folder: &Path) -> Result<(), Error> {
    let folder = folder.display().to_string();
    // By the server: the client's way keeps a copy in an annotation, too small for these.
    let apply = ["apply", "--server-side", "--force-conflicts", "--output", "name"];
    let applied = kubectl.run(&[&apply[..], &["--filename", &folder]].concat()).await?;
    let names: Vec<&str> = applied.lines().collect();
    let wait = ["wait", "--for=condition=Established", SERVED_LIMIT];
    kubectl.run(&[&wait[..], &names].concat()).await.map(drop)
}
