//! The demo's status page, on 127.0.0.1 only.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, PoisonError, RwLock};

use axum::Router;
use axum::response::Html;
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::picture::Picture;

/// The page; it goes away when this is dropped.
pub struct Page {
    address: SocketAddr,
    html: Arc<RwLock<String>>,
    server: JoinHandle<()>,
}

/// Serves the page on a free port.
///
/// # Errors
/// No port is free.
pub async fn serve() -> std::io::Result<Page> {
    let html = Arc::new(RwLock::new(Picture::default().to_html()));
    let shown = html.clone();
    let show =
        move || async move { Html(shown.read().unwrap_or_else(PoisonError::into_inner).clone()) };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address = listener.local_addr()?;
    let server = tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, Router::new().route("/", get(show))).await {
            tracing::warn!(%error, "status page ended");
        }
    });
    Ok(Page { address, html, server })
}

impl Page {
    /// Where it is.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Shows another moment.
    pub fn show(&self, picture: &Picture) {
        *self.html.write().unwrap_or_else(PoisonError::into_inner) = picture.to_html();
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        self.server.abort();
    }
}
