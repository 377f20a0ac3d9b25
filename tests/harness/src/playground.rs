//! A whole local world for a person to play with, until Ctrl-C.

use tokio::signal::unix::{SignalKind, signal};

use crate::{Aemm, ControlPlane, Error, Moto, NodeSpec, Redis};

const NODE_COUNT: usize = 4;

/// Starts everything that is there, prints how to reach it, and ends it on Ctrl-C or SIGTERM.
///
/// # Errors
///
/// When a part is there and does not get ready. A missing part is named and left out.
pub async fn run() -> Result<(), Error> {
    println!("starting; Ctrl-C ends everything");
    let cluster = present(ControlPlane::start().await)?;
    if let Some(cluster) = &cluster {
        let labels = [("ebbtide.dev/role", "rollout"), ("topology.kubernetes.io/zone", "local-a")];
        cluster.add_nodes(&NodeSpec::gpu_nodes("rollout", NODE_COUNT, &labels)).await?;
        println!("export KUBECONFIG={}", cluster.kubeconfig().display());
        println!("# kubectl: {}", cluster.kubectl().program().display());
        println!("# helm: {}", cluster.helm()?.program().display());
    }
    let redis = present(Redis::options().appendonly().start().await)?;
    if let Some(redis) = &redis {
        println!("export REDIS_URL={}", redis.url());
    }
    let moto = present(Moto::start().await)?;
    if let Some(moto) = &moto {
        println!("export AWS_ENDPOINT_URL={} AWS_REGION=us-east-1", moto.url());
        println!("export AWS_ACCESS_KEY_ID=test AWS_SECRET_ACCESS_KEY=test");
    }
    let aemm = present(Aemm::start(&["spot", "--action", "terminate", "--imdsv2"]).await)?;
    if let Some(aemm) = &aemm {
        println!("# instance metadata with a Spot notice that is always two minutes away:");
        println!("export AWS_EC2_METADATA_SERVICE_ENDPOINT={}", aemm.base_url());
    }
    println!("ready");
    stop_is_asked_for().await?;
    println!("ending");
    Ok(())
}

fn present<T>(part: Result<T, Error>) -> Result<Option<T>, Error> {
    match part {
        Ok(part) => Ok(Some(part)),
        Err(Error::Missing(missing)) => {
            println!("left out: {missing}");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

async fn stop_is_asked_for() -> Result<(), Error> {
    let listen = |kind| signal(kind).map_err(Error::io("listen for", "a signal"));
    let mut terminate = listen(SignalKind::terminate())?;
    let mut interrupt = listen(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}
