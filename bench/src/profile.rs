//! `cargo xtask bench --profile ROW`: where a row's processor time goes at both ends, by perf: a table of shares by class, and
//! a flame graph.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::args::BenchArgs;
use super::flame::{self, Stacks};
use super::rows::{Row, filtered};
use super::runner::Runner;
use ferroce_harness::figures::{machine, today};
use ferroce_harness::tree;

/// The rows of the book's page, for `--profile book`.
const BOOK: [&str; 4] = [
    "wire: WRITE 64 KiB",
    "wire: WRITE 8 B",
    "wire: SEND 8 B, half round trip, polling",
    "same host: WRITE 1 MiB",
];
/// Where `--save` writes: the text, and the folder of the graphs.
const DOCUMENT: &str = "docs/PROFILES.md";
const GRAPHS: &str = "docs/book/src";
/// Samples a second. Not a divisor of the kernel's tick.
const FREQUENCY: &str = "997";
/// Seconds of the exchange.
const SECONDS: f64 = 2.0;
/// The samples that count lie between these parts of those in which ferroce was at work: nothing starts or ends any more.
const COUNTED: (f64, f64) = (0.1, 0.95);

/// The samples of one end.
#[derive(Default)]
struct Profile {
    classes: BTreeMap<String, u64>,
    stacks: Stacks,
    samples: u64,
}

/// Profiles each row that was named; prints the tables, and writes graphs.
pub fn run(args: &BenchArgs, runner: &mut Runner, all: Vec<Row>) -> Result<bool> {
    let names = args.profile.iter().flat_map(|name| match name.as_str() {
        "book" => BOOK.map(str::to_owned).to_vec(),
        name => vec![name.to_owned()],
    });
    let mut text = format!(
        "Made by `cargo xtask bench{}{}`{} on {}: {}.\nShares of each end's processor time by class, in percent, during an exchange \
         of about {SECONDS} s under `perf record`. *Initiator* is the end that posts, *target* the other one.\n",
        args.profile.iter().map(|name| format!(" --profile {name:?}")).collect::<String>(),
        if args.save { " --save" } else { "" },
        args.other_build(),
        today()?,
        machine()?
    );
    runner.seconds = SECONDS;
    for name in names {
        let row = chosen(&all, &name)?;
        match one(runner, &row)? {
            Ok([initiator, target]) => {
                let slug = slug(&row.name());
                let file = format!("flame-{slug}.svg");
                let graphs =
                    [("initiator".to_owned(), initiator.stacks), ("target".to_owned(), target.stacks)];
                let folder =
                    if args.save { tree::root().join(GRAPHS) } else { tree::target().join("xtask/bench") };
                let path = folder.join(&file);
                std::fs::write(&path, flame::page(&row.name(), &graphs))
                    .with_context(|| path.display().to_string())?;
                eprintln!("{}", path.display());
                text += &table(
                    &row.name(),
                    &file,
                    &[(&initiator.classes, initiator.samples), (&target.classes, target.samples)],
                );
            }
            Err(why) => {
                eprintln!("{}: {why}", row.name());
                text += &format!("\n## {}\n\nNot available here.\n", row.name());
            }
        }
    }
    print!("{text}");
    if args.save {
        std::fs::write(tree::root().join(DOCUMENT), text)?;
    }
    Ok(true)
}

/// The row of that name, or the only one whose name contains it.
fn chosen(all: &[Row], name: &str) -> Result<Row> {
    if let Some(row) = all.iter().find(|row| row.name() == name) {
        return Ok(row.clone());
    }
    let mut rows = filtered(all.to_vec(), &[name.to_owned()]);
    let names: Vec<String> = rows.iter().map(Row::name).collect();
    ensure!(rows.len() == 1, "'{name}' names {} rows, not one: {}", rows.len(), names.join("; "));
    Ok(rows.remove(0))
}

/// Both ends of a row; or the reason for which it cannot run.
fn one(runner: &mut Runner, row: &Row) -> Result<std::result::Result<[Profile; 2], String>> {
    let perf = runner.tools.programs.find("perf").context("perf is not here: apt install linux-perf")?;
    eprintln!("{}", row.name());
    let files = [true, false].map(|server| {
        tree::target().join("xtask").join("bench").join(if server { "target.perf" } else { "initiator.perf" })
    });
    let [target, initiator] = &files;
    let recorded =
        |server: bool, command: Command| recorded(&perf, if server { target } else { initiator }, command);
    if let Err(why) = runner.under(&row.ours, recorded)? {
        return Ok(Err(why));
    }
    let profile = |file: &Path| -> Result<Profile> {
        let output = Command::new(&perf)
            .args(["script", "--no-inline", "-F", "comm,time,ip,sym,dso", "-i"])
            .arg(file)
            .output()?;
        ensure!(output.status.success(), "perf script: {}", String::from_utf8_lossy(&output.stderr));
        let samples = samples(&String::from_utf8_lossy(&output.stdout));
        std::fs::remove_file(file)?;
        Ok(counted(&samples))
    };
    Ok(Ok([profile(initiator)?, profile(target)?]))
}

/// A command under `perf record`, with its variables.
fn recorded(perf: &Path, file: &Path, command: Command) -> Command {
    let mut front = Command::new(perf);
    front.args(["record", "-q", "-F", FREQUENCY, "--call-graph", "dwarf,8192", "-o"]).arg(file).arg("--");
    front.arg(command.get_program()).args(command.get_args());
    for (key, value) in command.get_envs() {
        front.env(key, value.unwrap_or_default());
    }
    front
}

/// A sample: its time in seconds, and its stack as symbol and file, innermost first.
struct Sample {
    time: f64,
    stack: Vec<(String, String)>,
}

/// Reads what `perf script` prints: a line with the time, a line for each frame, an empty line.
fn samples(text: &str) -> Vec<Sample> {
    let mut all = Vec::new();
    for block in text.split("\n\n") {
        let mut lines = block.lines().filter(|line| !line.trim().is_empty());
        let Some(head) = lines.next() else { continue };
        let time = head.split_whitespace().find_map(|word| word.strip_suffix(':')?.parse().ok());
        let stack: Vec<_> = lines.filter_map(frame).collect();
        if let (Some(time), false) = (time, stack.is_empty()) {
            all.push(Sample { time, stack });
        }
    }
    all
}

/// `  7f0123 symbol+0x1 (file)`: symbol without offset and hash, and file.
fn frame(line: &str) -> Option<(String, String)> {
    let (_, rest) = line.trim().split_once(' ')?;
    let (symbol, file) = rest.rsplit_once(" (")?;
    let symbol = symbol.split("+0x").next().unwrap_or(symbol);
    let symbol =
        symbol.rsplit_once("::h").filter(|(_, hash)| hash.len() == 16).map_or(symbol, |(name, _)| name);
    Some((symbol.to_owned(), file.trim_end_matches(')').to_owned()))
}

/// The samples of the exchange itself, by class and by stack.
fn counted(samples: &[Sample]) -> Profile {
    let ours = samples.iter().filter(|sample| is_in(&sample.stack, "ibverbs"));
    let mut times: Vec<f64> = ours.map(|sample| sample.time).collect();
    times.sort_by(f64::total_cmp);
    let at = |part: f64| times.get((times.len() as f64 * part) as usize).copied().unwrap_or(f64::INFINITY);
    let (from, to) = (at(COUNTED.0), at(COUNTED.1));
    let mut profile = Profile::default();
    let counts = |sample: &&Sample| (from..=to).contains(&sample.time) && !is_calibration(&sample.stack);
    for sample in samples.iter().filter(counts) {
        profile.samples += 1;
        *profile.classes.entry(class(&sample.stack)).or_default() += 1;
        let names = sample.stack.iter().rev().map(|(symbol, file)| {
            let kernel = if is_kernel(file) { "_[k]" } else { "" };
            format!("{symbol}{kernel}")
        });
        *profile.stacks.entry(names.collect()).or_default() += 1;
    }
    profile
}

fn is_kernel(file: &str) -> bool {
    file.starts_with("[kernel") || file.ends_with(".ko") || file == "[unknown]"
}

/// perftest reads the clock for a fifth of a second when it is done, to find the processor's frequency.
fn is_calibration(stack: &[(String, String)]) -> bool {
    is_in(stack, "[vdso]") && !is_in(stack, "ibverbs")
}

/// Whether a frame is of a file whose name contains `part`.
fn is_in(stack: &[(String, String)], part: &str) -> bool {
    stack.iter().any(|(_, file)| file.contains(part))
}

/// The class of a sample, by its innermost frame.
fn class(stack: &[(String, String)]) -> String {
    let Some((symbol, file)) = stack.first() else { return "other".to_owned() };
    let is = |parts: &[&str]| parts.iter().any(|part| symbol.contains(part));
    if is_kernel(file) {
        let copies = [
            "copy_user",
            "rep_movs",
            "_copy_to_iter",
            "_copy_from_iter",
            "memcpy",
            "copyin",
            "copyout",
            "csum_and_copy",
        ];
        let within =
            |parts: &[&str]| stack.iter().any(|(symbol, _)| parts.iter().any(|part| symbol.contains(part)));
        return match () {
            () if within(&["process_vm_"]) => "kernel: direct copies",
            () if is(&copies) => "kernel: copies",
            () if within(&["sys_send"]) => "kernel: sending, and what lo does at once",
            () if within(&["sys_recv"]) => "kernel: receiving, and finding nothing",
            () if within(&["sched_yield"]) => "kernel: yielding the core",
            () => "kernel: the rest",
        }
        .to_owned();
    }
    if is(&["icrc", "crc32"]) {
        return "ICRC".to_owned();
    }
    if is(&["guard_copy", "guard::copy"]) {
        return "copies of payload".to_owned();
    }
    // A generic of the standard library belongs to the crate that it was made for.
    let own = symbol.split("ferroce_").nth(1).or_else(|| symbol.split("ferroce::").nth(1).map(|_| "ferroce"));
    if let Some(rest) = own {
        let name: String = rest.chars().take_while(|c| c.is_ascii_lowercase()).collect();
        return format!("ferroce-{name}").replace("ferroce-ferroce", "ferroce");
    }
    match file.rsplit('/').next().unwrap_or(file) {
        file if file.contains("ibverbs") || file.contains("rdmacm") => "ferroce, generic code".to_owned(),
        file if file.starts_with("libc.") => if is(&["mem"]) { "libc: copies" } else { "libc" }.to_owned(),
        "[vdso]" => "clock (vDSO)".to_owned(),
        _ => "the program".to_owned(),
    }
}

/// The shares of both ends, the largest first.
fn table(name: &str, file: &str, ends: &[(&BTreeMap<String, u64>, u64); 2]) -> String {
    let share = |(classes, samples): &(&BTreeMap<String, u64>, u64), class: &str| {
        classes.get(class).copied().unwrap_or(0) as f64 / (*samples).max(1) as f64 * 100.0
    };
    let mut classes: Vec<&String> = ends.iter().flat_map(|(classes, _)| classes.keys()).collect();
    classes.sort_unstable();
    classes.dedup();
    let sum = |class: &str| ends.iter().map(|end| share(end, class)).sum::<f64>();
    classes.sort_by(|a, b| sum(b).total_cmp(&sum(a)));
    let mut text = format!("\n## {name}\n\n| class | initiator | target |\n|---|---|---|\n");
    for class in classes.into_iter().filter(|class| sum(class) >= 0.5) {
        text += &format!("| {class} | {:.1} | {:.1} |\n", share(&ends[0], class), share(&ends[1], class));
    }
    text + &format!("\n[Flame graph]({file}) of {} and {} samples.\n", ends[0].1, ends[1].1)
}

/// A name for a file.
fn slug(name: &str) -> String {
    let words = name.to_lowercase();
    let words: Vec<&str> =
        words.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty()).collect();
    words.join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "ib_write_bw  10.500000: \n\
        \tffffffff8100 rep_movs_alternative+0x4 ([kernel.kallsyms])\n\
        \tffffffff8200 udp_sendmsg+0x10 ([kernel.kallsyms])\n\
        \t7f00 <ferroce_engine::lane::Lane>::poll::h0123456789abcdef+0x1 (/x/libibverbs.so.1)\n\n\
        ib_write_bw  12.500000: \n\
        \t7f01 <ferroce_engine::lane::Lane>::poll::h0123456789abcdef+0x1 (/x/libibverbs.so.1)\n\
        \t7f02 main+0x1 (/usr/bin/ib_write_bw)\n\n";

    #[test]
    fn samples_are_read_and_classed() {
        let all = samples(TEXT);
        assert_eq!(all.len(), 2);
        assert_eq!(
            all[1].stack[0],
            ("<ferroce_engine::lane::Lane>::poll".to_owned(), "/x/libibverbs.so.1".to_owned())
        );
        assert_eq!(
            (class(&all[0].stack), class(&all[1].stack)),
            ("kernel: copies".into(), "ferroce-engine".into())
        );
        let profile = counted(&all[1..]);
        assert_eq!((profile.samples, profile.stacks.len()), (1, 1));
        let many: Vec<Sample> =
            (0..100).map(|n| Sample { time: f64::from(n), stack: all[1].stack.clone() }).collect();
        assert_eq!(counted(&many).samples, 86);
        let icrc = [("ferroce_wire::icrc::fold".to_owned(), "libibverbs.so.1".to_owned())];
        assert_eq!(class(&icrc), "ICRC");
        let text = table("row", "f.svg", &[(&profile.classes, 1), (&profile.classes, 1)]);
        assert!(text.contains("| ferroce-engine | 100.0 | 100.0 |"), "{text}");
        let clock =
            |file: &str| [("clock".to_owned(), "[vdso]".to_owned()), ("main".to_owned(), file.to_owned())];
        assert!(is_calibration(&clock("ib_write_bw")) && !is_calibration(&clock("libibverbs.so.1")));
        assert_eq!(slug("wire: WRITE 64 KiB"), "wire-write-64-kib");
    }

    #[test]
    fn the_rows_of_the_book_exist() {
        let rows = crate::rows::usual();
        for name in BOOK {
            assert_eq!(chosen(&rows, name).unwrap().name(), name);
        }
        assert!(chosen(&rows, "8 B").is_err());
    }
}
