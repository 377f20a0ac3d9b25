//! Real services for tests: each on free ports of 127.0.0.1, with its own folder and log, ended by
//! its own process id.
//!
//! | want | take |
//! |---|---|
//! | a real Redis or Valkey | [`Redis::start`], [`Redis::options`] |
//! | a Redis Cluster, a master with Sentinels | [`RedisCluster::start`], [`RedisSentinels`] |
//! | certificates for TLS | [`RedisAuthority::create`] |
//! | EC2, Auto Scaling, SQS | [`Moto::start`] |
//! | instance metadata as AWS mocks it | [`Aemm::start`] |
//! | a real Kubernetes control plane with `kwok` nodes | [`ControlPlane::shared`] or `start` |
//! | groups of pods by the real LeaderWorkerSet controller | [`LwsController::start`] |
//! | pods that take their grace to end | [`PATIENT_POD_ANNOTATION`] |
//! | nodes that the real Karpenter makes and takes away | [`Karpenter::start`], [`InstanceType`] |
//! | `kubectl`, `helm` | [`ControlPlane::kubectl`], [`ControlPlane::helm`] |
//! | a program under test, as a process | [`Program::options`] |
//! | figures of a benchmark, costs of a process | [`Figures`], [`cpu_time`], [`resident_mib`] |
//! | the real vLLM, where it is asked for | [`Vllm::start`], [`TinyModels::make`] |
//! | to wait for an event, with a bound | [`until`], [`EVENT_LIMIT`] |
//! | chance that can be repeated; thousands of sockets | [`seed`], [`allow_open_files`] |
//!
//! Every start returns a `Result`; wrap it in [`require!`], which decides what a missing part
//! means (a listed skip, or a failure with `CI=true`). What must not happen here: a sleep without
//! an event, a process ended by name, a service that listens outside 127.0.0.1 (but for Karpenter,
//! which cannot be told).
#![allow(
    clippy::disallowed_methods,
    reason = "the harness is an adapter: it reads the clock and the environment for the tests"
)]

mod aemm;
mod cluster;
mod error;
mod figures;
mod folder;
mod http;
mod limits;
mod locate;
mod moto;
mod parts;
mod place;
mod poll;
mod port;
mod process;
mod program;
mod redis;
mod report;
mod tools;
mod vllm;

pub mod closing;
pub mod install;
pub mod playground;

pub use aemm::Aemm;
pub use cluster::{
    ControlPlane, InstanceType, Karpenter, LwsController, NARROW_USERS, NodeSpec,
    PATIENT_POD_ANNOTATION, SharedControlPlane,
};
pub use error::{Error, Missing};
pub use figures::{FigureRow, Figures, cpu_time, percentile_ms, resident_mib};
pub use folder::sweep_ended_runs;
pub use limits::allow_open_files;
pub use locate::Located;
pub use moto::Moto;
pub use parts::{PARTS, Part};
pub use poll::{EVENT_LIMIT, until};
pub use program::{Program, ProgramOptions};
pub use redis::{Redis, RedisAuthority, RedisCluster, RedisOptions, RedisSentinels};
pub use report::{Skipped, is_ci, is_long, is_with_vllm, seed, take_or_skip};
pub use tools::{Helm, Kubectl};
pub use vllm::{TinyModels, Vllm};
