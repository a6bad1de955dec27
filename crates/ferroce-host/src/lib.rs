//! Services of the kernel for this process: fork epochs, threads without signals, interfaces and routes,
//! directories of files, environment variables.
#![deny(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub mod environment;
pub mod ethtool;
pub mod event;
pub mod event_signal;
pub mod fork;
pub mod idle;
pub mod latest;
pub mod limits;
pub mod netdev;
pub mod output;
mod per_process;
pub mod process;
pub mod routes;
pub mod rtnetlink;
pub mod runtime_dir;
pub mod sleepers;
pub mod speed;
pub mod starvation;
pub mod tcp;
pub mod thread;
pub mod trial;

pub use per_process::PerProcess;
