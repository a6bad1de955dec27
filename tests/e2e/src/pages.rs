//! The commands of the book's pages: each page's `console run` blocks in a shell, by nobody, in this network namespace.
//!
//! A page finds `lo`, and an interface `eth0` with the address 10.81.0.1. Its commands start with no broker and an empty home.

use std::fmt::Write as _;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::Bed;
use super::cli::ip;
use super::pyverbs::{NOBODY, has_nobody};
use crate::book::{self, Block, Kind, Page};
use ferroce_harness::dist::Dist;
use ferroce_harness::job;
use ferroce_harness::netns;
use ferroce_harness::report::Checks;

/// Stands before the output of each command.
const MARK: &str = "@@@ command";
/// A header that the C programs of pages include.
const RDMA_HEADER: &str = "/usr/include/rdma/rdma_cma.h";
/// For all commands of a page.
const LIMIT: Duration = Duration::from_secs(60);

/// Runs every page that has commands, beside the files that its blocks hold (a C program: "c NAME.c"); blocks that are skipped are named with their reason.
pub fn check(bed: &Bed, checks: &mut Checks) -> Result<()> {
    let interface = ip(bed, "link add eth0 type veth peer name eth0peer")
        .and_then(|()| ip(bed, "addr add 10.81.0.1/24 dev eth0"))
        .and_then(|()| ip(bed, "link set eth0 up"))
        .and_then(|()| ip(bed, "link set eth0peer up"));
    let copy = bed.dist.public_copy("ferroce-pages")?;
    for page in book::pages()? {
        let blocks = Block::all(&page.text);
        for block in &blocks {
            if let Kind::Skip(reason) = &block.kind {
                checks.skip(&format!("{} line {}", page.path, block.line), reason);
            }
        }
        let run: Vec<&Block> = blocks.iter().filter(|block| block.kind == Kind::Run).collect();
        match &interface {
            _ if run.is_empty() => {}
            Err(why) if page.text.contains("eth0") => {
                checks.skip(&page.path, &format!("no veth here: {why:#}"))
            }
            _ if blocks.iter().any(|block| matches!(block.kind, Kind::File(_)))
                && !Path::new(RDMA_HEADER).exists() =>
            {
                checks.skip(&page.path, "the headers are not installed (Debian: librdmacm-dev)")
            }
            _ => checks.check(&page.path, try_page(bed, &copy, &page, &run)),
        }
    }
    std::fs::remove_dir_all(&copy.root)?;
    if interface.is_ok() {
        ip(bed, "link del eth0")?;
    }
    Ok(())
}

fn try_page(bed: &Bed, dist: &Dist, page: &Page, blocks: &[&Block]) -> Result<()> {
    netns::end_broker();
    netns::until("the broker has ended", || netns::brokers().is_empty())?;
    let home = dist.root.join("home");
    if home.exists() {
        std::fs::remove_dir_all(&home)?;
    }
    std::fs::create_dir(&home)?;
    std::fs::set_permissions(&home, std::fs::Permissions::from_mode(0o700))?;
    if has_nobody() {
        chown(&home, Some(NOBODY), Some(NOBODY))?;
    }
    for block in Block::all(&page.text) {
        if let Kind::File(name) = &block.kind {
            std::fs::write(home.join(name), block.text.join("\n") + "\n")?;
        }
    }
    let mut script = String::new();
    let mut wanted = Vec::new();
    for block in blocks {
        for (index, line) in block.commands().into_iter().enumerate() {
            // Writing to a String cannot fail.
            let _ = writeln!(
                script,
                "echo '{MARK}'\n{}\ns=$?; [ $s = 0 ] || echo \"exit status $s\"",
                line.command
            );
            wanted.push((block.line + index, line));
        }
    }
    let ended = job::run(shell(bed, dist, &home, &script)?, &bed.logs.path(&page.path), LIMIT)?;
    netns::end_broker();
    ensure!(ended.ok(), "{}", ended.describe());
    let parts: Vec<&str> = ended.output.split(&format!("{MARK}\n")).skip(1).collect();
    ensure!(
        parts.len() == wanted.len(),
        "{} of {} commands ended\n{}",
        parts.len(),
        wanted.len(),
        ended.output
    );
    for ((near, line), said) in wanted.iter().zip(parts) {
        let said: Vec<String> = said.lines().map(str::to_owned).collect();
        let shown: Vec<String> = line.output.iter().map(|text| text.trim_end().to_owned()).collect();
        ensure!(
            book::agree(&shown, &said),
            "{} below line {near}: $ {}\nthe page shows:\n{}\nit says:\n{}",
            page.path,
            line.command,
            shown.join("\n"),
            said.join("\n")
        );
    }
    Ok(())
}

/// A shell of nobody's, in whose `PATH` our programs come first.
fn shell(bed: &Bed, dist: &Dist, home: &Path, script: &str) -> Result<Command> {
    let mut command = Command::new(bed.programs.find("setpriv").context("setpriv is missing")?);
    command.arg("--no-new-privs");
    if has_nobody() {
        command.args([format!("--reuid={NOBODY}"), format!("--regid={NOBODY}")]).arg("--clear-groups");
    }
    let mut path = vec![dist.root.join("bin")];
    for name in ["ibv_devices", "rping", "setpriv", "ls"] {
        path.extend(bed.programs.find(name).and_then(|program| Some(program.parent()?.to_owned())));
    }
    command.arg("--").args(["bash", "-c", script]).current_dir(home);
    command.env("PATH", std::env::join_paths(path)?).env("HOME", home).env_remove("FERROCE_RUNTIME_DIR");
    command.env_remove("XDG_RUNTIME_DIR").env_remove("XDG_STATE_HOME").env("LC_ALL", "C.UTF-8");
    if let Some(dirs) = bed.programs.libraries() {
        command.env("LD_LIBRARY_PATH", dirs);
    }
    Ok(command)
}
