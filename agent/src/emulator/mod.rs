//! Emulators of the two outside parts of a node that no laptop has: the instance metadata service
//! and a GPU engine. They speak real HTTP on 127.0.0.1, are scripted through handles, and can fail
//! in every way the real ones were seen to fail.
//!
//! They ship with the product: `ebbtide demo` is built from them, `ebbtide engine-emulator` serves
//! one to whoever wants to try a fleet policy, and the tests use both. Nothing here knows the queue
//! or Kubernetes.
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test ends at the first surprise"))]

pub mod engine;
pub mod imds;
mod server;

pub use engine::{EngineConfig, EngineEmulator, EngineHandle};
pub use imds::{ImdsEmulator, ImdsHandle, InstanceIdentity};

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The state behind `mutex`; a panic elsewhere leaves emulator state usable, so poison is ignored.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Wall clock of the emulators: both stand for machines that have one.
#[allow(clippy::disallowed_methods, reason = "an emulator is an adapter; its one wall-clock read")]
fn wall_clock() -> jiff::Timestamp {
    jiff::Timestamp::now()
}
