//! What the end-to-end tests, the benchmarks and the workspace's commands share: Debian's programs, a network namespace, exchanges
//! between two programs, a guest with the kernel's rxe, and the report.
#![forbid(unsafe_code)]

pub mod cc;
pub mod debian;
pub mod dialogues;
pub mod dist;
pub mod exchange;
pub mod expected;
pub mod figures;
pub mod guest;
pub mod iwarp;
pub mod job;
pub mod netns;
pub mod place;
pub mod report;
pub mod tree;
