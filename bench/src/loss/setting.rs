//! The distribution, the programs and the files of a run.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use anyhow::Result;

use ferroce_harness::debian::Programs;
use ferroce_harness::dist::Dist;
use ferroce_harness::exchange::Logs;

/// The parts that the beds share.
pub struct Setting {
    pub dist: Dist,
    pub programs: Programs,
    pub me: PathBuf,
    pub logs: Logs,
}

impl Setting {
    /// The folder of ferroce's brokers.
    pub fn runtime(&self) -> Result<PathBuf> {
        let runtime = self.logs.0.join("run");
        std::fs::create_dir_all(&runtime)?;
        std::fs::set_permissions(&runtime, std::fs::Permissions::from_mode(0o700))?;
        Ok(runtime)
    }
}
