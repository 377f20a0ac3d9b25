//! The simulator: virtual time, recorded capacity, the same decisions as in production.
//!
//! Empty so far. Its floor stands: it may use `ebbtide-core` and the in-memory queue, and never an
//! asynchronous runtime, Redis, Kubernetes or AWS.
