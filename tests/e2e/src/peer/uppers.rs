//! Bonds and VLANs, which the host's kernel may not have: ferroce in a network namespace of the guest, against its rxe.

use anyhow::Result;

use super::{Interop, seconds};
use ferroce_harness::job;
use ferroce_harness::report::Checks;

/// Where ferroce lies in the guest.
const ROOT: &str = "/tmp/ferroce-bond";
const SCRIPT: &str = include_str!("uppers.sh");
/// The steps of the script, in order; all but the first and the last are checks.
const STEPS: [(&str, &str); 8] = [
    ("set_up", "a bond in the guest"),
    ("failover", "a bond's links are pulled in turn under ib_write_bw and a verifying rping"),
    ("events", "both links are pulled: the port is down, and comes back"),
    ("members", "a bond's GIDs are those of its active member's device, and follow it"),
    ("vlan", "rping with rxe on a VLAN, both roles, IPv4 and IPv6"),
    ("addresses", "IPv6 addresses come and go under traffic"),
    ("spread", "32 queue pairs go by both links of a bond that spreads flows"),
    ("tear_down", "the bond in the guest goes"),
];

impl Interop<'_> {
    /// All of them, with the distribution inside the guest.
    pub(super) fn uppers(&self, checks: &mut Checks) -> Result<()> {
        self.guest.push_dist(self.dist, ROOT)?;
        self.guest.inside(&format!("mkdir -p {ROOT}/run && chmod 700 {ROOT}/run"))?;
        std::fs::create_dir_all(&self.logs.0)?;
        let script = self.logs.0.join("uppers.sh");
        std::fs::write(&script, SCRIPT)?;
        self.guest.push(&script, &format!("{ROOT}/uppers.sh"))?;
        for (step, name) in STEPS {
            checks.check(name, self.step(step, name));
        }
        Ok(())
    }

    fn step(&self, step: &str, name: &str) -> Result<()> {
        let limit = seconds(120);
        let words = ["bash", &format!("{ROOT}/uppers.sh"), step, ROOT].map(str::to_owned);
        let ended = job::run(self.guest.command(limit, &words), &self.logs.path(name), limit)?;
        anyhow::ensure!(ended.ok(), "{}", ended.describe());
        Ok(())
    }
}
