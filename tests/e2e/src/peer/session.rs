//! An administrator's session with our programs inside the guest, whose kernel has VLANs, macvlans and bonds.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::{Interop, seconds};
use ferroce_harness::job::Job;

const SCRIPT: &str = include_str!("session.sh");
/// Where the script expects the distribution.
const FOLDER: &str = "/tmp/ferroce";
/// The library that makes a program's output line-buffered; the guest has none of its own.
const STDBUF: &str = "/usr/libexec/coreutils/libstdbuf.so";

/// The output of each step.
const STEPS: &[(&str, &str)] = &[
    ("add", ""),
    ("link show", "link rxe0/1 state ACTIVE physical_state LINK_UP netdev a0\n"),
    ("watch", ""),
    (
        "gid show",
        "gid rxe0/1 index 1 gid ::ffff:10.85.0.1 type RoCE v2 netdev a0\n\
         gid rxe0/1 index 2 gid ::ffff:10.85.5.1 type RoCE v2 netdev a0.5\n\
         gid rxe0/1 index N gid ::ffff:10.85.6.1 type RoCE v2 netdev m0\n",
    ),
    (
        "show_gids",
        "DEV\tPORT\tINDEX\tGID\t\t\t\t\tIPv4  \t\tVER\tDEV\n\
         ---\t----\t-----\t---\t\t\t\t\t------------  \t---\t---\n\
         rxe0\t1\t1\t0000:0000:0000:0000:0000:ffff:0a55:0001\t10.85.0.1  \tv2\ta0\n\
         rxe0\t1\t2\t0000:0000:0000:0000:0000:ffff:0a55:0501\t10.85.5.1  \tv2\ta0.5\n\
         rxe0\t1\tN\t0000:0000:0000:0000:0000:ffff:0a55:0601\t10.85.6.1  \tv2\tm0\n",
    ),
    (
        "both",
        "gid rxe0/1 index 2 gid ::ffff:10.85.0.1 type RoCE v2 netdev a0\n\
         gid rxe0/1 index 3 gid ::ffff:10.85.0.1 type RoCE v1 netdev a0\n\
         gid rxe0/1 index 4 gid ::ffff:10.85.5.1 type RoCE v2 netdev a0.5\n\
         gid rxe0/1 index 5 gid ::ffff:10.85.5.1 type RoCE v1 netdev a0.5\n\
         gid rxe0/1 index N gid ::ffff:10.85.6.1 type RoCE v2 netdev m0\n\
         gid rxe0/1 index N gid ::ffff:10.85.6.1 type RoCE v1 netdev m0\n",
    ),
    (
        "remove",
        "gid rxe0/1 index 1 gid ::ffff:10.85.0.1 type RoCE v2 netdev a0\n\
         gid rxe0/1 index 2 gid ::ffff:10.85.5.1 type RoCE v2 netdev a0.5\n",
    ),
    ("down", "link rxe0/1 state DOWN physical_state POLLING netdev a0\n"),
    ("egress", " EGRESS priority mappings: 0:0 1:1 2:2 3:3 4:4 5:5 6:6 7:7 \n"),
    // Service level 3 of the pingpong, the class of a rule, the hop limit of the device.
    ("frames", "tos 0x60\nttl 7\nvlan 5, p 3\n"),
    ("frames packet", "tos 0x60\nttl 7\nvlan 5, p 3\n"),
    ("frames v1", "0x8915\nvlan 5, p 2\nvlan 5, p 3\n"),
    ("bond", "link fr1/1 state ACTIVE physical_state LINK_UP netdev bo0\n"),
    (
        "delete",
        "link fr1/1 state ACTIVE physical_state LINK_UP netdev bo0\n\
         link fr0/1 state ACTIVE physical_state LINK_UP netdev lo\n",
    ),
    ("done", ""),
];

impl Interop<'_> {
    /// Runs the script there, and compares what each step printed.
    pub(super) fn session(&self) -> Result<()> {
        self.guest.push_dist(self.dist, FOLDER)?;
        self.guest.push(Path::new(STDBUF), &format!("{FOLDER}/libstdbuf.so"))?;
        let script = self.logs.path("session").with_extension("sh");
        std::fs::create_dir_all(&self.logs.0)?;
        std::fs::write(&script, SCRIPT)?;
        self.guest.push(&script, &format!("{FOLDER}/session.sh"))?;
        self.guest.inside(&format!("ln -sf ferroce {FOLDER}/bin/show_gids"))?;
        let limit = seconds(240);
        let words = ["bash".to_owned(), format!("{FOLDER}/session.sh")];
        let ended =
            Job::start(self.guest.command(limit, &words), &self.logs.path("session"), limit)?.wait()?;
        ensure!(ended.ok(), "{}", ended.describe());
        let mut steps: BTreeMap<&str, String> = BTreeMap::new();
        let mut step = None;
        for line in ended.output.lines() {
            match line.strip_prefix("== ") {
                Some(name) => step = Some(steps.entry(name).or_default()),
                None => step.as_mut().context("output before the first step")?.push_str(&format!("{line}\n")),
            }
        }
        for (name, want) in STEPS {
            let said = steps.get(name).with_context(|| format!("no step {name}: {}", ended.describe()))?;
            ensure!(known(said) == *want, "{name} says\n{said}wanted\n{want}");
        }
        Ok(())
    }
}

/// Without what depends on when duplicate detection ended: the count of GIDs, and the index of what came later.
fn known(said: &str) -> String {
    let later = |line: &str| line.contains("10.85.6.1");
    let lines = said.lines().filter(|line| !line.starts_with("n_gids_found="));
    lines
        .map(|line| {
            let apart = if line.contains('\t') { '\t' } else { ' ' };
            let place = if apart == '\t' { 2 } else { 3 };
            let words = line.split(apart).enumerate();
            let words: Vec<&str> =
                words.map(|(n, word)| if later(line) && n == place { "N" } else { word }).collect();
            format!("{}\n", words.join(&apart.to_string()))
        })
        .collect()
}
