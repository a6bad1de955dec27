//! What does this process ask of its kernel? Fork epochs, threads without signals, interfaces and routes, the directories of files.
//!
//! Programs that use the engine and the broker need the same of the process they live in, and know each other by messages alone.
#![deny(unsafe_code)]

pub mod ethtool;
pub mod event;
pub mod fork;
pub mod netdev;
mod per_process;
pub mod process;
pub mod rtnetlink;
pub mod runtime_dir;
pub mod speed;
pub mod thread;

pub use per_process::PerProcess;
