//! Programs and files that several checks of the stage `observe` use.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::Value;

use crate::Bed;
use ferroce_harness::job::{self, Ended, Job};

/// How long a condition may take to come true, on a machine that is busy with other things.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub fn ferroce(bed: &Bed, words: &str) -> Result<Ended> {
    let mut command = Command::new(bed.dist.bin("ferroce"));
    command.args(words.split(' '));
    job::run(command, &bed.logs.path(&format!("ferroce {words}")), PATIENCE)
}

pub fn wait(what: &str, mut is: impl FnMut() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while !is()? {
        ensure!(Instant::now() < deadline, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Two ends of rping that go on until they are ended.
pub fn rping(bed: &Bed) -> Result<(Job, Job)> {
    let port = bed.port().to_string();
    let start = |role: &str| {
        let mut command = bed.ours("rping");
        command.args([role, "-a", "127.0.0.1", "-p", &port, "-C", "2000000000"]);
        Job::start(command, &bed.logs.path(&format!("rping {role}")), Duration::from_secs(600))
    };
    let server = start("-s")?;
    // A client that comes before the server listens is refused.
    wait("a listener", || {
        let status: Value = serde_json::from_str(&ferroce(bed, "-j status")?.output).unwrap_or_default();
        Ok(status.pointer("/cm/listeners").and_then(Value::as_u64).is_some_and(|count| count > 0))
    })?;
    Ok((server, start("-c")?))
}
