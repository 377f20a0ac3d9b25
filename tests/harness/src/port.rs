//! Free ports of 127.0.0.1.
//!
//! They are taken from below the range that Linux uses for outgoing connections (32768 and up), so
//! that no connection of a test takes a service's port while the service is being restarted on it.

use std::{
    net::TcpListener,
    process,
    sync::atomic::{AtomicU32, Ordering},
};

use crate::Error;

const FIRST_PORT: u32 = 16_000;
// 16000 = 32000 - 16000: stays below 32768.
const PORT_COUNT: u32 = 16_000;
// A prime, so that test processes with neighbouring ids begin far from each other.
const PROCESS_STRIDE: u32 = 97;

static NEXT_OFFSET: AtomicU32 = AtomicU32::new(0);

/// A port that nothing listens on, and that this process never hands out twice.
pub(crate) fn free_port() -> Result<u16, Error> {
    let begin = process::id().wrapping_mul(PROCESS_STRIDE) % PORT_COUNT;
    for _ in 0..PORT_COUNT {
        let offset = NEXT_OFFSET.fetch_add(1, Ordering::Relaxed);
        let candidate = FIRST_PORT + begin.wrapping_add(offset) % PORT_COUNT;
        let port = u16::try_from(candidate).expect("candidates are below 32000");
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    Err(Error::Unexpected("no free port on 127.0.0.1 between 16000 and 32000".into()))
}
