//! The unix socket: made anew at every start, for the agent's user and group, and for so many
//! connections at a time.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::unix::SocketAddr;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::workers::CONNECTIONS_MAX;

/// Who may connect: the agent's user, and its group.
const SOCKET_MODE: u32 = 0o660;

/// Pause after a failed accept (no file descriptors left), so that the loop does not spin.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// See the module.
pub(super) struct LimitedListener {
    listener: UnixListener,
    places: Arc<Semaphore>,
}

/// One connection; its place is free again when it is dropped.
pub(super) struct Connection {
    stream: UnixStream,
    _place: Option<OwnedSemaphorePermit>,
}

/// Makes the socket, in the place of one that an earlier process has left.
///
/// # Errors
/// What is in the way, and what to do.
pub(super) async fn bind(path: &Path) -> Result<LimitedListener, String> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
        let folder = folder.display();
        return Err(format!("there is no folder {folder}: create it, or name another path"));
    }
    make_way(path).await?;
    let listener = UnixListener::bind(path).map_err(|error| {
        format!(
            "{error}: the agent's user must own the folder, and the path have at most 107 bytes"
        )
    })?;
    fs::set_permissions(path, Permissions::from_mode(SOCKET_MODE))
        .map_err(|error| format!("its mode cannot be set: {error}"))?;
    tracing::info!(path = %path.display(), "custom workers are served");
    Ok(LimitedListener { listener, places: Arc::new(Semaphore::new(CONNECTIONS_MAX)) })
}

/// Removes a socket on which nobody listens any more.
async fn make_way(path: &Path) -> Result<(), String> {
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error.to_string()),
    };
    if !found.file_type().is_socket() {
        return Err("something else is there: remove it, or name another path".to_owned());
    }
    if UnixStream::connect(path).await.is_ok() {
        return Err("another process listens there: end it, or name another path".to_owned());
    }
    fs::remove_file(path).map_err(|error| format!("the old socket cannot be removed: {error}"))
}

impl axum::serve::Listener for LimitedListener {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        // The semaphore is never closed.
        let place = self.places.clone().acquire_owned().await.ok();
        loop {
            match self.listener.accept().await {
                Ok((stream, peer)) => return (Connection { stream, _place: place }, peer),
                Err(error) => {
                    tracing::warn!(%error, "a worker's connection is not accepted");
                    tokio::time::sleep(ACCEPT_AGAIN).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
