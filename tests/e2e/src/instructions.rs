//! How many instructions each verb takes, in the release as users get it and with both ends, beside a committed
//! baseline. callgrind counts; instructions are nearly the same on a busy machine, where times are not.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::Bed;
use ferroce_harness::cc;
use ferroce_harness::job;
use ferroce_harness::report::Checks;
use ferroce_harness::tree;

/// The committed counts: a line `DATAPATH CASE INSTRUCTIONS` each, and its dearest functions below.
const BASELINE: &str = "tests/instructions.txt";
/// Rounds of a case that are counted.
const ROUNDS: &str = "320";
const LIMIT: Duration = Duration::from_secs(120);
/// Further counts of a datapath of which a case costs more than before.
const AGAIN: usize = 2;
const BLESS: &str = "`FERROCE_BLESS=1 cargo xtask test --only instructions` writes a new baseline";
/// Functions of a case in the baseline.
const FUNCTIONS: usize = 12;

/// A way of messages between two queue pairs of one process.
struct Datapath {
    name: &'static str,
    variables: [(&'static str, &'static str); 2],
    /// How much more than the baseline fails, and how much less asks for a new one.
    tolerance: f64,
    /// The median of these runs is taken: the background thread receives other packets in each.
    runs: u32,
}

const DATAPATHS: [Datapath; 2] = [
    Datapath {
        name: "shm",
        variables: [("FERROCE_DATAPATH", "shm"), ("FERROCE_DIRECT", "off")],
        tolerance: 0.05,
        runs: 3,
    },
    // Which of the two threads receives a packet is up to the kernel.
    Datapath {
        name: "udp",
        variables: [("FERROCE_DATAPATH", "udp"), ("FERROCE_DIRECT", "off")],
        tolerance: 0.2,
        runs: 5,
    },
];

/// Instructions of an operation.
#[derive(Clone, Debug, PartialEq)]
struct Count {
    all: f64,
    /// Instructions of each function itself, the dearest function first.
    functions: Vec<(String, f64)>,
}

/// Counts by datapath and case.
type Counts = BTreeMap<(String, String), Count>;

/// Counts, and compares; or writes the baseline.
pub fn check(bed: &Bed, checks: &mut Checks) -> Result<()> {
    if std::env::consts::ARCH != "x86_64" {
        checks.skip("instructions", &format!("{BASELINE} is of x86_64"));
        return Ok(());
    }
    if bed.programs.find("valgrind").is_none() {
        checks.skip("instructions", "valgrind is not installed");
        return Ok(());
    }
    let program = cc::ours("instructions", &bed.dist, &bed.programs)?;
    let path = tree::root().join(BASELINE);
    if std::env::var_os("FERROCE_BLESS").is_some() {
        let mut counts = Counts::new();
        for datapath in &DATAPATHS {
            counts.extend(medians(bed, datapath, &program)?);
        }
        std::fs::write(&path, written(&counts))?;
        checks.note(format!("{BASELINE} is written"));
        return Ok(());
    }
    let baseline = read(&std::fs::read_to_string(&path).context(BASELINE)?)?;
    let mut counts = Counts::new();
    for datapath in &DATAPATHS {
        let mut least = medians(bed, datapath, &program)?;
        // On a busy machine the background thread takes packets from the program at one time and not at
        // another, and so batches differ. What really costs more does so each time.
        for _ in 0..AGAIN {
            let is_more = |(name, count): (_, &Count)| {
                baseline.get(name).is_some_and(|before| count.all > before.all * (1.0 + datapath.tolerance))
            };
            if !least.iter().any(is_more) {
                break;
            }
            for (name, count) in medians(bed, datapath, &program)? {
                let known = least.entry(name).or_insert_with(|| count.clone());
                if count.all < known.all {
                    *known = count;
                }
            }
        }
        counts.extend(least);
    }
    judge(&counts, &baseline, checks);
    Ok(())
}

/// The median counts of some runs.
fn medians(bed: &Bed, datapath: &Datapath, program: &Path) -> Result<Counts> {
    let mut runs = BTreeMap::<_, Vec<_>>::new();
    for _ in 0..datapath.runs {
        for (case, count) in counted(bed, datapath, program)? {
            runs.entry((datapath.name.to_owned(), case)).or_default().push(count);
        }
    }
    Ok(runs.into_iter().map(|(case, counts)| (case, median(counts))).collect())
}

fn median(mut counts: Vec<Count>) -> Count {
    counts.sort_by(|a, b| a.all.total_cmp(&b.all));
    counts.swap_remove(counts.len() / 2)
}

fn judge(counts: &Counts, baseline: &Counts, checks: &mut Checks) {
    let mut fewer = 0;
    for ((datapath, case), count) in counts {
        let name = format!("instructions of {case} by {datapath}");
        let tolerance = DATAPATHS.iter().find(|known| known.name == datapath).map_or(0.0, |d| d.tolerance);
        match baseline.get(&(datapath.clone(), case.clone())) {
            None => checks.fail(&name, &format!("not in {BASELINE}: {BLESS}")),
            Some(before) if count.all > before.all * (1.0 + tolerance) => {
                let more = dearer(count, before);
                let text =
                    format!("{:.0}, {:.0} before. If that is meant, {BLESS}\n{more}", count.all, before.all);
                checks.fail(&name, &text);
            }
            Some(before) => {
                fewer += usize::from(count.all < before.all * (1.0 - tolerance));
                checks.pass();
            }
        }
    }
    for (datapath, case) in baseline.keys().filter(|name| !counts.contains_key(*name)) {
        checks.fail(&format!("instructions of {case} by {datapath}"), "not counted any more");
    }
    if fewer > 0 {
        checks.note(format!("{fewer} cases need fewer instructions than {BASELINE} says: {BLESS}"));
    }
}

/// The functions that cost more than before, a line each.
fn dearer(count: &Count, before: &Count) -> String {
    let cost = |name: &str| before.functions.iter().find(|(known, _)| known == name).map(|(_, cost)| *cost);
    // A function that the baseline does not name cost no more than the last one that it names.
    let rest = before.functions.last().map_or(0.0, |(_, cost)| *cost);
    let mut more: Vec<_> =
        count.functions.iter().map(|(name, now)| (now - cost(name).unwrap_or(rest), name, now)).collect();
    more.retain(|(more, ..)| *more >= 1.0);
    more.sort_by(|a, b| b.0.total_cmp(&a.0));
    more.iter().map(|(more, name, now)| format!("{more:+.0} {name}, now {now:.0}\n")).collect()
}

/// The cases of one run.
fn counted(bed: &Bed, datapath: &Datapath, program: &Path) -> Result<Vec<(String, Count)>> {
    let log = bed.logs.path(&format!("instructions {}", datapath.name));
    let folder = log.with_extension("counts");
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    std::fs::create_dir_all(&folder)?;
    let mut command = bed.ours("valgrind");
    command.args([
        "--tool=callgrind",
        "--compress-strings=no",
        "--compress-pos=no",
        "--separate-threads=yes",
    ]);
    command.arg(format!("--callgrind-out-file={}", folder.join("out").display()));
    command.arg(program).arg(ROUNDS).envs(datapath.variables);
    let ended = job::run(command, &log, LIMIT)?;
    ensure!(ended.ok(), "{}", ended.describe());
    let mut cases = Vec::new();
    for entry in std::fs::read_dir(&folder)? {
        cases.extend(parse(&std::fs::read_to_string(entry?.path())?)?);
    }
    ensure!(!cases.is_empty(), "callgrind wrote no counts: {}", ended.describe());
    Ok(cases)
}

/// The case that callgrind wrote to a file; `None` if the program ended there, or for another thread than the
/// program's: the background thread wakes by the clock, the more often the busier the machine is.
fn parse(text: &str) -> Result<Option<(String, Count)>> {
    if !text.lines().any(|line| line == "thread: 1") {
        return Ok(None);
    }
    const REQUEST: &str = "desc: Trigger: Client Request: ";
    let Some(request) = text.lines().find_map(|line| line.strip_prefix(REQUEST)) else { return Ok(None) };
    let (case, operations) = request.split_once(' ').context("a case without a number of operations")?;
    let operations: f64 = operations.parse()?;
    let mut functions = BTreeMap::<&str, f64>::new();
    let (mut function, mut is_call) = ("", false);
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("fn=") {
            function = name;
        } else if line.starts_with("calls=") {
            // The next line has the cost of the function that is called.
            is_call = true;
        } else if line.starts_with(|c: char| c.is_ascii_digit()) && !std::mem::take(&mut is_call) {
            let cost = line.split(' ').nth(1).and_then(|cost| cost.parse::<f64>().ok());
            *functions.entry(function).or_default() += cost.with_context(|| format!("no cost: {line}"))?;
        }
    }
    let all = functions.values().sum::<f64>() / operations;
    let mut functions: Vec<_> =
        functions.into_iter().map(|(name, cost)| (name.to_owned(), (cost / operations).round())).collect();
    functions.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    Ok(Some((case.to_owned(), Count { all: all.round(), functions })))
}

fn written(counts: &Counts) -> String {
    let mut text = "# Instructions of one operation, both ends together, without those of the kernel and of the background thread,\n\
                    # and the functions that need most of them. The case is VERB-OCTETS-REQUESTS: so many requests in one list.\n\
                    # tests/programs/instructions.c has the cases; `cargo xtask test --only instructions` compares.\n"
        .to_owned();
    for ((datapath, case), count) in counts {
        let _ = writeln!(text, "{datapath} {case} {:.0}", count.all);
        for (name, cost) in count.functions.iter().take(FUNCTIONS).filter(|(_, cost)| *cost >= 1.0) {
            let _ = writeln!(text, "  {cost:.0} {name}");
        }
    }
    text
}

fn read(text: &str) -> Result<Counts> {
    let mut counts = Counts::new();
    let mut last = None;
    for line in text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        if let Some((cost, name)) = line.strip_prefix("  ").and_then(|line| line.split_once(' ')) {
            let count: Option<&mut Count> = last.as_ref().and_then(|key| counts.get_mut(key));
            let count = count.with_context(|| format!("{BASELINE}: no case above {line}"))?;
            count.functions.push((name.to_owned(), cost.parse()?));
            continue;
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        let [datapath, case, all] = words[..] else { bail!("{BASELINE}: {line}") };
        let key = (datapath.to_owned(), case.to_owned());
        counts.insert(key.clone(), Count { all: all.parse()?, functions: Vec::new() });
        last = Some(key);
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(all: f64) -> Counts {
        let functions = vec![("f".to_owned(), all - 10.0), ("g".to_owned(), 10.0)];
        Counts::from([(("shm".to_owned(), "send-8-1".to_owned()), Count { all, functions })])
    }

    #[test]
    fn more_instructions_fail_and_fewer_do_not() {
        for (count, failed) in [(1000.0, 0), (1049.0, 0), (1051.0, 1), (100.0, 0)] {
            let mut checks = Checks::default();
            judge(&one(count), &one(1000.0), &mut checks);
            assert_eq!(checks.count().failed, failed, "{count}");
        }
        for (counts, baseline) in [(one(1.0), Counts::new()), (Counts::new(), one(1.0))] {
            let mut checks = Checks::default();
            judge(&counts, &baseline, &mut checks);
            assert_eq!(checks.count().failed, 1);
        }
    }

    #[test]
    fn a_dearer_function_is_named() {
        let (before, now) = (one(100.0), one(150.0));
        let (before, now) = (before.values().next().unwrap(), now.values().next().unwrap());
        assert_eq!(dearer(now, before), "+50 f, now 140\n");
        assert_eq!(dearer(before, now), "");
    }

    #[test]
    fn the_baseline_reads_back() {
        assert_eq!(read(&written(&one(1000.0))).unwrap(), one(1000.0));
        let committed = read(&std::fs::read_to_string(tree::root().join(BASELINE)).unwrap()).unwrap();
        for datapath in &DATAPATHS {
            assert!(committed.keys().any(|(known, _)| known == datapath.name), "{}", datapath.name);
        }
        assert!(read("  7 f\n").is_err() && read("shm 7\n").is_err());
    }

    #[test]
    fn costs_of_calls_are_those_of_the_function_that_is_called() {
        let text = "thread: 1\ndesc: Trigger: Client Request: send-8-1 2\n\
                    fn=caller\n12 30\ncfn=called\ncalls=2 0 \n13 1000\n14 10\nfi=x.rs\n15 2\n\
                    fn=called\n7 1000\ntotals: 1042\n";
        let (case, count) = parse(text).unwrap().unwrap();
        assert_eq!((case.as_str(), count.all), ("send-8-1", 521.0));
        assert_eq!(count.functions, [("called".to_owned(), 500.0), ("caller".to_owned(), 21.0)]);
        assert_eq!(parse("thread: 1\ndesc: Trigger: Program termination\n").unwrap(), None);
        assert_eq!(parse(&text.replace("thread: 1", "thread: 2")).unwrap(), None);
    }
}
