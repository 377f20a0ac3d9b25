//! An HTTP server that can be lost: like a machine, it may stop listening, cut every connection in
//! the middle of a byte stream, and come back under the same address.
//!
//! Invariants: after `cut` returns, no byte leaves any more, not even one already handed to the
//! kernel (connections are reset). The port stays reserved for as long as the server lives, so no
//! stranger, and no newer emulator, ever answers under the address of a lost one.

use std::collections::HashMap;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use axum::Router;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinHandle;

use super::lock;

/// Connections the kernel holds before they are accepted: more than one agent ever opens at once.
const BACKLOG: u32 = 1024;

/// Pause after a failed accept (no file descriptors left), so that the loop does not spin.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// A server bound to one address. Created refusing connections; see [`Server::listen`].
pub(super) struct Server {
    address: SocketAddr,
    door: Arc<Mutex<Door>>,
    accepting: Mutex<Option<JoinHandle<()>>>,
}

/// What is open. `reserved` holds the port without listening whenever `listener` is none.
#[derive(Default)]
struct Door {
    reserved: Option<TcpSocket>,
    listener: Option<TcpListener>,
    waiting: Option<Waker>,
    connections: HashMap<u64, Arc<Mutex<Wire>>>,
    last_connection: u64,
}

/// One TCP connection; `stream` is none once it was cut.
struct Wire {
    stream: Option<TcpStream>,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl Server {
    /// Reserves `address` (port 0: a free one). Connections are refused until [`Server::listen`].
    ///
    /// # Errors
    /// When the address cannot be bound.
    pub(super) fn bind(address: SocketAddr) -> io::Result<Self> {
        let socket = reserve(address)?;
        let address = socket.local_addr()?;
        let door = Door { reserved: Some(socket), ..Door::default() };
        Ok(Self { address, door: Arc::new(Mutex::new(door)), accepting: Mutex::new(None) })
    }

    /// Where the server is reached, listening or not: `http://address`, without a slash at the end.
    pub(super) fn base_url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Starts to accept and to answer with `router`; does nothing when it listens already.
    ///
    /// # Errors
    /// When the address cannot be bound again after an earlier [`Server::refuse`].
    pub(super) fn listen(&self, router: Router) -> io::Result<()> {
        let mut accepting = lock(&self.accepting);
        {
            let mut door = lock(&self.door);
            if door.listener.is_some() {
                return Ok(());
            }
            let socket = match door.reserved.take() {
                Some(socket) => socket,
                None => reserve(self.address)?,
            };
            door.listener = Some(socket.listen(BACKLOG)?);
        }
        let entrance = Entrance { address: self.address, door: self.door.clone() };
        let task = tokio::spawn(async move {
            if let Err(error) = axum::serve(entrance, router).await {
                tracing::debug!(%error, "emulator server ended");
            }
        });
        if let Some(earlier) = accepting.replace(task) {
            earlier.abort();
        }
        Ok(())
    }

    /// Stops listening; open connections live on. New ones are refused.
    pub(super) fn refuse(&self) {
        let waiting = {
            let mut door = lock(&self.door);
            if door.listener.take().is_some() {
                // Failing to reserve only means that the port could be taken meanwhile.
                door.reserved = reserve(self.address).ok();
            }
            door.waiting.take()
        };
        if let Some(waker) = waiting {
            waker.wake();
        }
        if let Some(task) = lock(&self.accepting).take() {
            task.abort();
        }
    }

    /// Stops listening and resets every open connection at once.
    pub(super) fn cut(&self) {
        self.refuse();
        let wires: Vec<_> = lock(&self.door).connections.drain().map(|(_, wire)| wire).collect();
        for wire in wires {
            let wakers = lock(&wire).cut();
            wakers.into_iter().flatten().for_each(Waker::wake);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.cut();
    }
}

/// A bound socket that does not listen: the kernel refuses connections to it.
fn reserve(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

impl Wire {
    /// Closes with a reset, which throws away what the kernel has not sent yet.
    fn cut(&mut self) -> [Option<Waker>; 2] {
        if let Some(stream) = self.stream.take() {
            // Without the option the close is an orderly one; the connection still ends.
            let _ = stream.set_zero_linger();
        }
        [self.reader.take(), self.writer.take()]
    }
}

/// The accepting side, as axum wants it.
struct Entrance {
    address: SocketAddr,
    door: Arc<Mutex<Door>>,
}

impl Entrance {
    /// The next connection; pending for ever once the listener is gone.
    fn poll_accept(&self, context: &mut Context<'_>) -> Poll<io::Result<(Connection, SocketAddr)>> {
        let mut door = lock(&self.door);
        let Some(listener) = &door.listener else {
            door.waiting = Some(context.waker().clone());
            return Poll::Pending;
        };
        let (stream, peer) = match listener.poll_accept(context) {
            Poll::Ready(accepted) => accepted?,
            Poll::Pending => {
                door.waiting = Some(context.waker().clone());
                return Poll::Pending;
            }
        };
        // Tokens leave as they come: without this, small chunks wait for acknowledgements. A
        // connection that refuses the option is slower, not wrong.
        let _ = stream.set_nodelay(true);
        let wire = Arc::new(Mutex::new(Wire { stream: Some(stream), reader: None, writer: None }));
        door.last_connection += 1;
        let id = door.last_connection;
        door.connections.insert(id, wire.clone());
        Poll::Ready(Ok((Connection { id, wire, door: self.door.clone() }, peer)))
    }
}

impl axum::serve::Listener for Entrance {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        loop {
            match poll_fn(|context| self.poll_accept(context)).await {
                Ok(accepted) => return accepted,
                Err(error) => {
                    tracing::debug!(%error, "emulator could not accept a connection");
                    tokio::time::sleep(ACCEPT_RETRY).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }
}

/// The reader's and writer's view of one [`Wire`].
pub(super) struct Connection {
    id: u64,
    wire: Arc<Mutex<Wire>>,
    door: Arc<Mutex<Door>>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        lock(&self.door).connections.remove(&self.id);
    }
}

fn was_cut<T>() -> Poll<io::Result<T>> {
    Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()))
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut wire = lock(&self.wire);
        wire.reader = Some(context.waker().clone());
        match &mut wire.stream {
            Some(stream) => Pin::new(stream).poll_read(context, buffer),
            None => was_cut(),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let mut wire = lock(&self.wire);
        wire.writer = Some(context.waker().clone());
        match &mut wire.stream {
            Some(stream) => Pin::new(stream).poll_write(context, bytes),
            None => was_cut(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut lock(&self.wire).stream {
            Some(stream) => Pin::new(stream).poll_flush(context),
            None => was_cut(),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut lock(&self.wire).stream {
            Some(stream) => Pin::new(stream).poll_shutdown(context),
            None => was_cut(),
        }
    }
}
