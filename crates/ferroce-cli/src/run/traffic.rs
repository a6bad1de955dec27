//! `ferroce run --expect-traffic`: fails if ferroce carried nothing for the program.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode};

use anyhow::{Result, bail};
use ferroce_host::environment;
use ferroce_ipc::Listing;

use crate::broker::Observer;

/// Runs the program, waits for it, and compares the counters of all devices. The open connection keeps the
/// broker, and so the counters.
pub fn expect(command: Command) -> ExitCode {
    match watched(command) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("ferroce: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn watched(mut command: Command) -> Result<u8> {
    if matches!(environment::text("FERROCE_BROKER").as_deref(), Some("embedded" | "none")) {
        bail!("--expect-traffic needs the counters of ferroced, and FERROCE_BROKER says that there is none");
    }
    let mut observer = Observer::new()?;
    let before = carried(&mut observer)?;
    let name = command.get_program().to_string_lossy().into_owned();
    let status = match command.status() {
        Ok(status) => status,
        Err(error) => {
            eprintln!("ferroce: {name}: {error}");
            return Ok(if error.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 });
        }
    };
    if !status.success() {
        // As shells have it.
        return Ok(status.code().unwrap_or(128 + status.signal().unwrap_or(0)) as u8);
    }
    if carried(&mut observer)? == before {
        bail!(
            "{name} succeeded, and ferroce carried nothing for it: it took another transport, such as TCP or shared memory, or ended \
             before it sent. `ferroce doctor {name}` shows which libraries it loads; the page \"MPI and UCX\" how to choose"
        );
    }
    Ok(0)
}

/// Packets and direct copies of all devices that a program sees, over all programs.
fn carried(observer: &mut Observer) -> Result<u64> {
    let mut sum = 0_u64;
    for device in Listing::from_environment().of(&observer.devices()?) {
        let counters = observer.statistics(&device.name)?;
        let counted = |name: &str| name == "sent_pkts" || name == "direct_ops";
        sum += counters.iter().filter(|(name, _)| counted(name)).map(|(_, value)| value).sum::<u64>();
    }
    Ok(sum)
}
