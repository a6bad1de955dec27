//! `cargo xtask bench --connections`: Debian's cmtime, both ends in the guest of `shared/peer`, on the kernel's rxe and on
//! ferroce in turn. Emulated, so only the ratios say something.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::{BenchArgs, machine, median, today};
use crate::dist::{self, Dist};
use crate::exchange::Logs;
use crate::peer::Guest;
use crate::{job, tree};

/// The guest's own address, on eth0: rxe0's as well.
const HOST: &str = "10.77.0.2";
/// Where ferroce lies in the guest.
const ROOT: &str = "/tmp/ferroce";
/// For one client of cmtime, in an emulated machine.
const LIMIT: Duration = Duration::from_secs(120);
/// What cmtime measures, as it names it.
const PHASES: [&str; 7] =
    ["create id", "resolve addr", "resolve route", "create qp", "connect", "disconnect", "destroy"];

/// Microseconds a connection, of each round: by stack, ferroce or not, and phase.
type Samples = BTreeMap<(bool, &'static str), Vec<f64>>;

/// Measures, prints, and with `--save` writes the section of docs/BENCHMARKS.md; true when every run ended well.
pub fn run(args: &BenchArgs) -> Result<bool> {
    let script = tree::shared("peer/peer.sh").context("there is no shared/peer beside this checkout")?;
    let dist = dist::build()?;
    let logs = Logs(tree::target().join("xtask").join("bench"));
    let count = if args.quick { 100 } else { 1000 };
    let guest = Guest::up(script, None)?;
    push(&guest, &dist)?;
    let mut samples = Samples::new();
    for round in 0..args.rounds {
        eprintln!("round {} of {}", round + 1, args.rounds);
        for ours in [false, true] {
            once(&guest, &logs, ours, count, &mut samples)?;
        }
    }
    let text = report(args, count, &mut samples)?;
    print!("{text}");
    if args.save {
        let path = tree::root().join("docs/BENCHMARKS.md");
        std::fs::write(&path, replaced(&std::fs::read_to_string(&path)?, &text))?;
    }
    Ok(true)
}

fn push(guest: &Guest, dist: &Dist) -> Result<()> {
    guest.inside(&format!("mkdir -p {ROOT}/lib {ROOT}/bin {ROOT}/run && chmod 700 {ROOT}/run"))?;
    guest.push(&dist.library(), &format!("{ROOT}/lib/libibverbs.so.1"))?;
    for name in ["ferroce", "ferroced"] {
        guest.push(&dist.bin(name), &format!("{ROOT}/bin/{name}"))?;
    }
    guest.inside(&format!("ln -s libibverbs.so.1 {ROOT}/lib/librdmacm.so.1")).map(drop)
}

/// One run of cmtime. Only one stack can have UDP port 4791, so the other is taken away before.
fn once(guest: &Guest, logs: &Logs, ours: bool, count: u32, samples: &mut Samples) -> Result<()> {
    let (before, front, after) = match ours {
        false => (
            "modprobe rdma_rxe; [ -e /sys/class/infiniband/rxe0 ] || rdma link add rxe0 type rxe netdev eth0",
            String::new(),
            "",
        ),
        true => (
            "rdma link del rxe0; rmmod rdma_rxe",
            format!(
                "env FERROCE_IDLE=1 FERROCE_RUNTIME_DIR={ROOT}/run {ROOT}/bin/ferroce run --netdev eth0 -- "
            ),
            // The broker leaves by itself, after a second in which nobody asks it anything.
            "while sleep 2; do /tmp/ferroce/bin/ferroce status >/dev/null 2>&1 || break; done;",
        ),
    };
    guest.inside(before)?;
    // The server serves until it is ended.
    let line = format!(
        "{front}cmtime -b {HOST} >/dev/null 2>&1 & server=$!; sleep 3; \
         {front}cmtime -s {HOST} -c {count}; status=$?; kill $server; wait $server 2>/dev/null; {after} exit $status"
    );
    let name = if ours { "cmtime ferroce" } else { "cmtime rxe" };
    let words = ["bash", "-c", line.as_str()].map(str::to_owned);
    let ended = job::run(guest.command(LIMIT, &words), &logs.path(name), LIMIT)?;
    ensure!(ended.ok(), "{}", ended.describe());
    for phase in PHASES {
        let row = ended.output.lines().find(|line| line.split(':').next().map(str::trim) == Some(phase));
        let last = row.and_then(|row| row.split_whitespace().last()).and_then(|word| word.parse().ok());
        let Some(value) = last else { bail!("no figure for '{phase}': {}", ended.describe()) };
        samples.entry((ours, phase)).or_default().push(value);
    }
    Ok(())
}

pub const TITLE: &str = "## Connections";

fn report(args: &BenchArgs, count: u32, samples: &mut Samples) -> Result<String> {
    let mut text = format!(
        "{TITLE}\n\n\
         Made by `cargo xtask bench --connections --rounds {}{} --save` on {}: {}, in a guest of it (QEMU without KVM, Debian's \
         kernel 6.1).\nDebian's `cmtime -c {count}`, both ends at the guest's own address, on rxe and on ferroce in turn. Microseconds \
         of each phase, divided by the connections: median (least to greatest) of {} rounds. Phases of many connections \
         overlap, so that a phase is no latency.\n\n\
         | phase | ferroce | rxe | ratio |\n|---|---|---|---|\n",
        args.rounds,
        if args.quick { " --quick" } else { "" },
        today()?,
        machine()?,
        args.rounds
    );
    let mut sums = [0.0, 0.0];
    for phase in PHASES {
        let mut cell = |ours: bool| {
            let values = samples.entry((ours, phase)).or_default();
            let middle = median(values);
            let (least, most) = (values.first().copied(), values.last().copied());
            let text =
                format!("{middle:.1} ({:.1}–{:.1})", least.unwrap_or(f64::NAN), most.unwrap_or(f64::NAN));
            sums[usize::from(ours)] += middle;
            (middle, text)
        };
        let ((ours, our_text), (rxe, rxe_text)) = (cell(true), cell(false));
        text.push_str(&format!("| {phase} | {our_text} | {rxe_text} | {:.2} |\n", ours / rxe));
    }
    let [rxe, ours] = sums;
    text.push_str(&format!("| all, of the medians | {ours:.1} | {rxe:.1} | {:.2} |\n", ours / rxe));
    text.push_str(&format!(
        "| connections a second | {:.0} | {:.0} | {:.2} |\n",
        1e6 / ours,
        1e6 / rxe,
        rxe / ours
    ));
    Ok(text)
}

/// The document with its section of that title replaced, or added.
fn replaced(document: &str, section: &str) -> String {
    let before = document.find(TITLE).map_or(document, |at| document.split_at(at).0);
    format!("{}\n\n{section}", before.trim_end())
}

/// What another benchmark that writes the document is to keep.
pub fn section(path: &Path) -> String {
    let document = std::fs::read_to_string(path).unwrap_or_default();
    let first = [TITLE, super::objects::TITLE].into_iter().filter_map(|title| document.find(title)).min();
    first.map(|at| format!("\n{}", document.split_at(at).1)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_section_is_replaced_and_nothing_else() {
        let section = format!("{TITLE}\n\nnew\n");
        let want = format!("# Benchmarks\n\ntext\n\n{section}");
        assert_eq!(replaced("# Benchmarks\n\ntext\n", &section), want);
        assert_eq!(replaced(&format!("# Benchmarks\n\ntext\n\n{TITLE}\n\nold\n"), &section), want);
    }

    #[test]
    fn ratios_are_of_medians() {
        let args = BenchArgs {
            rounds: 3,
            quick: true,
            save: false,
            connections: true,
            objects: false,
            inside: None,
        };
        let mut samples = Samples::new();
        for phase in PHASES {
            samples.insert((true, phase), vec![3.0, 1.0, 2.0]);
            samples.insert((false, phase), vec![4.0, 9.0, 1.0]);
        }
        let text = report(&args, 100, &mut samples).unwrap();
        assert!(text.contains("| connect | 2.0 (1.0–3.0) | 4.0 (1.0–9.0) | 0.50 |"), "{text}");
        assert!(text.contains("| connections a second | 71429 | 35714 | 2.00 |"), "{text}");
    }
}
