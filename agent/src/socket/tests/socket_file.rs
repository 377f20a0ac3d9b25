//! The socket's file: who may connect, and what may be in its way.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use crate::socket::listener::bind;

/// A folder of this test's own, removed with it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("ebbtide-{name}-{}", uuid::Uuid::new_v4()));
        std::fs::create_dir(&path).expect("a folder");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).expect("its own folder");
    }
}

#[tokio::test]
async fn stale_socket_is_replaced_and_a_live_one_is_not() {
    let folder = Folder::new("socket");
    let path = folder.0.join("agent.sock");
    let first = bind(&path).await.expect("free");
    let mode = std::fs::metadata(&path).expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o660);
    let refused = bind(&path).await.err().expect("somebody listens");
    assert!(refused.contains("another process listens"), "{refused}");
    drop(first);
    assert!(path.exists(), "left behind, as by a kill");
    bind(&path).await.expect("nobody listens");
}

#[tokio::test]
async fn what_is_in_the_way_is_named_with_what_to_do() {
    let folder = Folder::new("way");
    let missing = bind(&folder.0.join("no/agent.sock")).await.err().expect("no folder");
    assert!(missing.contains("there is no folder") && missing.contains("create it"), "{missing}");
    let file = folder.0.join("file");
    std::fs::write(&file, "precious").expect("written");
    let refused = bind(&file).await.err().expect("a file");
    assert!(refused.contains("remove it"), "{refused}");
    assert_eq!(std::fs::read(&file).expect("still there"), b"precious");
    let long = folder.0.join("x".repeat(120));
    let refused = bind(&long).await.err().expect("too long");
    assert!(refused.contains("107 bytes"), "{refused}");
}
