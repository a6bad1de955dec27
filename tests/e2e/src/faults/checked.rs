//! `ferroce run --check` and `--explore`: Debian's programs have no findings, and survive twenty seeds.

use anyhow::{Context, Result, ensure};

use super::{LIMIT, PINGPONG, Stage};
use ferroce_harness::dialogues::{Amount, Dialogue, dialogues, rsockets};
use ferroce_harness::exchange::Meeting;
use ferroce_harness::job::Ended;
use ferroce_harness::report::Checks;

/// Without `-b`, the client of ib_send_bw leaves a completion queue at exit, which is told rightly.
const PROGRAMS: [(&str, &str); 10] = [
    ("ibv_rc_pingpong", PINGPONG),
    ("ibv_rc_pingpong", "-g 0 -e -n 200"),
    ("ibv_uc_pingpong", "-g 0 -n 200"),
    ("ibv_ud_pingpong", "-g 0 -n 200"),
    ("ibv_srq_pingpong", "-g 0 -n 200"),
    ("ib_send_bw", "-F -b -n 1000"),
    ("ib_send_lat", "-F -e -n 500"),
    ("ib_write_lat", "-F -n 500"),
    ("ib_read_bw", "-F -n 500"),
    ("ib_atomic_bw", "-F -n 500"),
];

/// Programs that lose no message if a packet is late.
const EXPLORED: [(&str, &str); 3] =
    [("ibv_rc_pingpong", PINGPONG), ("ib_write_lat", "-F -n 200"), ("ib_send_bw", "-F -b -n 200")];

impl Stage<'_> {
    pub(super) fn checked(&self, checks: &mut Checks) -> Result<()> {
        for (program, args) in PROGRAMS {
            checks.check(&format!("--check {program} {args}"), self.has_no_finding(program, args));
        }
        let amount = Amount { all: false, messages: 10, connections: 10 };
        for dialogue in dialogues(amount) {
            self.dialogue_has_no_finding(checks, &dialogue, true)?;
        }
        // Programs of rsockets make no verbs calls, so the checks see none.
        for dialogue in rsockets(amount) {
            self.dialogue_has_no_finding(checks, &dialogue, false)?;
        }
        for seed in 0..20 {
            let rules = ferroce_fault::exploration(seed);
            let (program, args) = EXPLORED[seed as usize % EXPLORED.len()];
            let mut explored = Checks::default();
            let exchange = self.exchange(program, args, &rules, &rules);
            let ended = exchange.run(&self.bed.logs, &mut explored)?;
            let survives =
                if explored.good() && ended.is_some() { Ok(()) } else { Err(anyhow::anyhow!("above")) };
            checks.check(&format!("--explore={seed} {program}"), survives);
        }
        Ok(())
    }

    fn has_no_finding(&self, program: &str, args: &str) -> Result<()> {
        let mut exchange = self.exchange(program, args, "", "");
        for end in [&mut exchange.server, &mut exchange.client] {
            end.env("FERROCE_CHECK", "on");
        }
        let mut checks = Checks::default();
        let ended = exchange.run(&self.bed.logs, &mut checks)?;
        let (client, server) = ended.context("an end failed (above)")?;
        ensure!(checks.good(), "an end failed (above)");
        for end in [&client, &server] {
            ensure!(end.output.contains("ferroce: check: findings in "), "not checked: {}", end.describe());
            is_clean(end)?;
        }
        Ok(())
    }

    fn dialogue_has_no_finding(&self, checks: &mut Checks, dialogue: &Dialogue, is_told: bool) -> Result<()> {
        let port = self.bed.port();
        let command = |end: &(&'static str, String)| {
            let words = Dialogue::words(end, "127.0.0.1", port);
            let mut command = self.bed.ours(&words[0]);
            command.args(&words[1..]).env("FERROCE_CHECK", "on");
            command
        };
        let judge = |client: &Ended, server: &Ended| {
            dialogue.judge(client, server)?;
            let told = client.output.contains("ferroce: check: findings in ");
            ensure!(told == is_told, "checked {told}: {}", client.describe());
            is_clean(client).and_then(|()| is_clean(server))
        };
        let meeting = Meeting {
            name: format!("--check {}", dialogue.name()),
            server: command(&dialogue.server),
            client: command(&dialogue.client),
            patience: dialogue.patience(),
            judge: &judge,
            endless: dialogue.is_endless(),
            limit: LIMIT,
        };
        meeting.run(&self.bed.logs, checks).map(drop)
    }
}

/// The last line of an end tells no finding.
fn is_clean(end: &Ended) -> Result<()> {
    let told = end.output.lines().filter_map(|line| line.split_once("ferroce: check: "));
    let finding = told.into_iter().find(|(_, text)| !text.ends_with("): 0"));
    ensure!(finding.is_none(), "{}", end.describe());
    Ok(())
}
