//! `ferroce fault`: rules for programs that run already.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;

use super::Stage;
use ferroce_harness::job::Ended;
use ferroce_harness::report::Checks;

/// A rule that both ends of a stream of WRITEs hit, and one that none hits.
const RULES: &str = "lost: drop 1% if dir=rx; dup if op=cnp,peer=9";
/// How long rules may take to hit.
const LIMIT: Duration = Duration::from_secs(5);

impl Stage<'_> {
    /// Both ends of a stream get rules, hit them, and end well without them.
    pub(super) fn while_running(&self) -> Result<()> {
        let exchange = self.exchange("ib_write_bw", "-F -s 65536 -D 6", "", "");
        let running = exchange.start(&self.bed.logs)?;
        let client = running.client.as_ref().context("the server was never ready")?;
        let pid = client.id().to_string();
        self.until("both are listed", |ends| ends.iter().all(|end| end["state"] == "none"))?;
        let applied = self.fault(&["apply", "--seed", "7", RULES], 0)?;
        let both = applied.output.matches(" comm ib_write_bw faults applied seed 7\n").count();
        ensure!(both == 2, "{}", applied.describe());
        self.until("both ends hit the rule", |ends| {
            ends.iter().all(|end| end["rules"][0]["hits"].as_u64().is_some_and(|hits| hits > 0))
        })?;
        let shown = self.fault(&["show", "--pid", &pid], 0)?;
        let head = format!("pid {pid} comm ib_write_bw faults active seed 7\n");
        let is_shown = shown.output.starts_with(&head)
            && shown.output.contains(" matched: lost: drop 1% if dir=rx\n")
            && shown.output.ends_with("  never hit, 0 matched: dup if op=cnp,peer=9\n");
        ensure!(is_shown, "{}", shown.describe());
        let wrong = self.fault(&["apply", "seed=7; dorp 1%"], 2)?;
        ensure!(wrong.output.contains("character 9, at \"dorp\""), "{}", wrong.describe());
        let unknown = self.fault(&["show", "--pid", "1"], 1)?;
        ensure!(unknown.output.contains("process 1 is no program"), "{}", unknown.describe());
        client.signal(Signal::SIGSTOP);
        let silent = self.fault(&["show", "--pid", &pid], 1);
        client.signal(Signal::SIGCONT);
        let silent = silent?;
        ensure!(silent.output.contains("does not answer"), "{}", silent.describe());
        let cleared = self.fault(&["clear"], 0)?;
        let both = cleared.output.matches(" comm ib_write_bw faults cleared seed 7\n").count();
        ensure!(both == 2, "{}", cleared.describe());
        let shown = self.fault(&["show"], 0)?;
        ensure!(shown.output.matches("faults none\n").count() == 2, "{}", shown.describe());
        let mut checks = Checks::default();
        let (client, server) = running.finish(&mut checks)?.context("an end failed (above)")?;
        ensure!(checks.good(), "an end failed (above)");
        for end in [client, server] {
            ensure!(!end.output.contains("faults of process"), "{}", end.describe());
        }
        Ok(())
    }

    /// `ferroce fault` with its exit status.
    pub(super) fn fault(&self, args: &[&str], status: i32) -> Result<Ended> {
        let mut command = Command::new(self.bed.dist.bin("ferroce"));
        command.arg("fault").args(args);
        let ended = self.run("fault", command)?;
        ensure!(ended.status.is_some_and(|ended| ended.code() == Some(status)), "{}", ended.describe());
        Ok(ended)
    }

    /// Waits until the state of both programs is as wanted.
    fn until(&self, what: &str, wanted: impl Fn(&[Value]) -> bool) -> Result<()> {
        let deadline = Instant::now() + LIMIT;
        loop {
            let shown = self.fault(&["show", "--json"], 0)?;
            let ends: Vec<Value> = serde_json::from_str(&shown.output)?;
            if ends.len() == 2 && wanted(&ends) {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "never: {what}: {}", shown.output);
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}
