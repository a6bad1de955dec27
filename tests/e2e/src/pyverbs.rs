//! rdma-core's Python tests, unmodified: each passes, or stands in `tests/interop/pyverbs.txt` with the reason why it is
//! skipped. They run as nobody and as root, who may do more (raw packets).

use std::collections::BTreeMap;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::Bed;
use super::copy::PublicCopy;
use ferroce_harness::dist::Dist;
use ferroce_harness::job;
use ferroce_harness::netns;
use ferroce_harness::report::Checks;
use ferroce_harness::tree;

/// Where Debian's python3-pyverbs has them; the larger files are compressed.
const TESTS: &str = "/usr/share/doc/rdma-core/tests";
pub(super) const MODULE: &str = "/usr/lib/python3/dist-packages/pyverbs/__init__.py";
const LIST: &str = include_str!("../../interop/pyverbs.txt");
/// Debian's user nobody.
pub(super) const NOBODY: u32 = 65_534;
const LIMIT: Duration = Duration::from_secs(240);
/// Debian 12's version has 273; fewer mean that something kept them from being loaded.
const LEAST: usize = 200;
/// On `lo` 143 of them pass by nobody.
const LEAST_PASSED: usize = 120;

/// The user that runs the tests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum User {
    Nobody,
    Root,
}

/// The whole suite, for each user from one of the two GIDs of the loopback device; with `--all`, from both.
pub fn check(bed: &Bed, checks: &mut Checks) -> Result<()> {
    let (Some(tests), Some(module)) = (bed.programs.find(TESTS), bed.programs.find(MODULE)) else {
        checks.skip("pyverbs", &format!("{TESTS} and {MODULE} (Debian's python3-pyverbs) are not both here"));
        return Ok(());
    };
    let listed = entries(LIST)?;
    // A broker of our own user would refuse nobody, and the tests' files must be readable by anybody.
    netns::end_broker();
    let copy = bed.dist.public_copy("ferroce-pyverbs")?;
    let folder = copy.root.join("tests");
    let runs: Result<()> = unpack(&tests, &folder).and_then(|()| {
        for user in [User::Nobody, User::Root] {
            if user == User::Nobody && !has_nobody() {
                checks.skip("pyverbs as nobody", "this user namespace has no other user");
                continue;
            }
            let run = copy.root.join(format!("{user:?}"));
            std::fs::create_dir(&run)?;
            std::fs::set_permissions(&run, std::fs::Permissions::from_mode(0o700))?;
            if user == User::Nobody {
                chown(&run, Some(NOBODY), Some(NOBODY))?;
            }
            let usual = if user == User::Nobody { "0" } else { "1" };
            for gid in ["0", "1"].into_iter().filter(|gid| bed.all || *gid == usual) {
                one(&Run { bed, copy: &copy, module: &module, dir: &run, user, gid }, &listed, checks)?;
            }
            netns::end_broker();
        }
        Ok(())
    });
    netns::end_broker();
    std::fs::remove_dir_all(&copy.root).ok();
    runs
}

/// Whether there is somebody else to be: `unshare -U -r` maps one user only.
pub(super) fn has_nobody() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    map.lines().any(|line| maps(line, NOBODY))
}

/// A line of /proc/self/uid_map: first id inside, first id outside, how many.
fn maps(line: &str, id: u32) -> bool {
    let mut numbers = line.split_whitespace().map(|n| n.parse::<u64>().unwrap_or(0));
    let (Some(first), Some(_), Some(count)) = (numbers.next(), numbers.next(), numbers.next()) else {
        return false;
    };
    (first..first + count).contains(&id.into())
}

/// One run of the suite.
struct Run<'a> {
    bed: &'a Bed,
    copy: &'a Dist,
    module: &'a Path,
    /// The user's own folder.
    dir: &'a Path,
    user: User,
    gid: &'a str,
}

/// Runs the suite and compares it with the list.
fn one(run: &Run<'_>, listed: &[Entry<'_>], checks: &mut Checks) -> Result<()> {
    let title = format!("{:?} --gid {}", run.user, run.gid);
    let report = run.dir.join(run.gid);
    let log = run.bed.logs.path(&format!("pyverbs {title}"));
    let ended = job::run(run.command(&report)?, &log, LIMIT)?;
    let text = std::fs::read_to_string(&report).unwrap_or_default();
    let results = outcomes(&text);
    ensure!(results.len() >= LEAST, "{title}: only {} tests ran: {}", results.len(), ended.describe());
    checks.check(&title, ended.ok().then_some(()).ok_or_else(|| ended.describe()));
    let mut passed = 0;
    let mut skipped: BTreeMap<&str, usize> = BTreeMap::new();
    for (name, outcome) in &results {
        let entry = listed.iter().find(|e| e.covers(name));
        passed += usize::from(*outcome == Outcome::Ok);
        match judge(*outcome, entry, run.user) {
            Ok(None) => checks.pass(),
            Ok(Some(reason)) => *skipped.entry(reason).or_default() += 1,
            Err(why) => checks.fail(&format!("{title} {name}"), &why),
        }
    }
    for entry in listed.iter().filter(|e| !results.keys().any(|name| e.covers(name))) {
        checks.fail(entry.name, "stands in tests/interop/pyverbs.txt, but no such test was run");
    }
    let count: usize = skipped.values().sum();
    checks.note(format!("{title}: {passed} of {} passed, {count} skipped as listed", results.len()));
    let waiting: Vec<_> = skipped.iter().filter(|(reason, _)| reason.starts_with("waits for")).collect();
    if !waiting.is_empty() {
        let waiting: Vec<_> = waiting.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
        checks.note(format!("  {}", waiting.join(", ")));
    }
    Ok(())
}

impl Run<'_> {
    /// `ferroce run -- python3 …`, with no_new_privs.
    fn command(&self, report: &Path) -> Result<Command> {
        let setpriv = self.bed.programs.find("setpriv").context("setpriv is missing")?;
        let mut command = Command::new(setpriv);
        command.arg("--no-new-privs");
        if self.user == User::Nobody {
            let user = [format!("--reuid={NOBODY}"), format!("--regid={NOBODY}")];
            command.args(user).arg("--clear-groups");
        }
        let folder = self.copy.root.join("tests");
        // Debian's python: the module was built for no other.
        command.arg("--").arg(self.copy.bin("ferroce")).args(["run", "--", "/usr/bin/python3", "-B"]);
        command.arg(folder.join("ferroce_run.py")).arg(&folder).arg(report);
        command.args(["--dev", "fr0", "--gid", self.gid]);
        command.current_dir(&folder).env("FERROCE_RUNTIME_DIR", self.dir);
        command.env("INTERFACE", "lo");
        command.env("PYTHONPATH", self.module.ancestors().nth(2).unwrap_or(self.module));
        if let Some(dirs) = self.bed.programs.libraries() {
            command.env("LD_LIBRARY_PATH", dirs);
        }
        Ok(command)
    }
}

/// A device of another stage.
pub(super) struct Elsewhere<'a> {
    /// The title of its checks.
    pub title: &'a str,
    pub device: &'a str,
    /// The index of the GID.
    pub gid: u32,
    /// The network device with the addresses.
    pub netdev: &'a str,
    /// A folder that nobody may write to.
    pub folder: &'a Path,
}

/// The suite by nobody on a device of another stage. `front` is the front of a command, such as `ip netns exec NAME`, with the variables of
/// the stage. A test may be skipped for any reason, because devices differ; none may fail.
pub(super) fn elsewhere(
    bed: &Bed,
    copy: &PublicCopy<'_>,
    front: Command,
    at: &Elsewhere<'_>,
    checks: &mut Checks,
) -> Result<()> {
    let (Some(tests), Some(module)) = (bed.programs.find(TESTS), bed.programs.find(MODULE)) else {
        checks.skip(at.title, &format!("{TESTS} and {MODULE} (Debian's python3-pyverbs) are not both here"));
        return Ok(());
    };
    let folder = copy.root.join("tests");
    if !folder.exists() {
        unpack(&tests, &folder)?;
    }
    let report = at.folder.join("pyverbs");
    let mut command = copy.as_user(front, NOBODY, &[], "/usr/bin/python3")?;
    command.arg("-B").arg(folder.join("ferroce_run.py")).arg(&folder).arg(&report);
    command.args(["--dev", at.device, "--gid", &at.gid.to_string()]);
    command.current_dir(&folder).env("INTERFACE", at.netdev);
    command.env("PYTHONPATH", module.ancestors().nth(2).unwrap_or(&module));
    let ended = job::run(command, &bed.logs.path(at.title), LIMIT)?;
    let text = std::fs::read_to_string(&report).unwrap_or_default();
    let results = outcomes(&text);
    ensure!(results.len() >= LEAST, "{}: only {} tests ran: {}", at.title, results.len(), ended.describe());
    let mut passed = 0;
    for (name, outcome) in &results {
        match outcome {
            Outcome::Ok => passed += 1,
            Outcome::Skip(_) => {}
            Outcome::Bad(why) => checks.fail(&format!("{} {name}", at.title), why),
        }
    }
    let enough = if passed >= LEAST_PASSED { Ok(()) } else { Err(format!("only {passed} passed")) };
    checks.check(at.title, enough);
    checks.note(format!("{}: {passed} of {} passed, the others were skipped", at.title, results.len()));
    Ok(())
}

/// Copies the tests and our runner to `folder`, unpacked and readable by anybody.
fn unpack(tests: &Path, folder: &Path) -> Result<()> {
    std::fs::create_dir(folder)?;
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755))?;
    for file in std::fs::read_dir(tests)? {
        let path = file?.path();
        let (Some(name), Some(stem)) = (path.file_name(), path.file_stem()) else { continue };
        if path.extension().is_some_and(|e| e == "gz") {
            let output = Command::new("gzip").arg("-dc").arg(&path).output().context("gzip")?;
            ensure!(output.status.success(), "gzip -dc {}: {}", path.display(), output.status);
            std::fs::write(folder.join(stem), output.stdout)?;
        } else if path.is_file() {
            std::fs::copy(&path, folder.join(name))?;
        }
    }
    std::fs::copy(tree::root().join("tests/interop/pyverbs.py"), folder.join("ferroce_run.py"))?;
    for file in std::fs::read_dir(folder)? {
        std::fs::set_permissions(file?.path(), std::fs::Permissions::from_mode(0o644))?;
    }
    Ok(())
}

/// How a test ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Outcome<'a> {
    Ok,
    Skip(&'a str),
    /// A failure or an error, by its last line.
    Bad(&'a str),
}

/// The runner's report: the outcome of each test. A test without an outcome ended the process.
fn outcomes(report: &str) -> BTreeMap<&str, Outcome<'_>> {
    let mut all = BTreeMap::new();
    for line in report.lines() {
        let mut columns = line.splitn(3, '\t');
        let (Some(name), Some(word)) = (columns.next(), columns.next()) else { continue };
        let detail = columns.next().unwrap_or_default();
        let outcome = match word {
            "start" => Outcome::Bad("did not end"),
            "ok" => Outcome::Ok,
            "skip" => Outcome::Skip(detail),
            _ => Outcome::Bad(detail),
        };
        // A failure in a test's clean-up is printed after its success.
        let worse = matches!(all.get(name), Some(Outcome::Bad(why)) if *why != "did not end");
        if !worse {
            all.insert(name, outcome);
        }
    }
    all
}

/// When a listed test is skipped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum When {
    Always,
    /// When user nobody runs it.
    Nobody,
    /// When the machine lacks something.
    Either,
    /// When user nobody runs it; for root it ends in an error, which it would do on a card without the feature too.
    Broken,
}

/// A line of the list.
#[derive(Debug)]
struct Entry<'a> {
    when: When,
    /// The test's id; the ids that begin with it, if it ends in `*`.
    name: &'a str,
    reason: &'a str,
}

impl Entry<'_> {
    fn covers(&self, test: &str) -> bool {
        match self.name.strip_suffix('*') {
            Some(front) => test.starts_with(front),
            None => test == self.name,
        }
    }
}

fn entries(list: &str) -> Result<Vec<Entry<'_>>> {
    let lines = list.lines().filter(|l| !l.starts_with('#') && !l.trim().is_empty());
    lines
        .map(|line| {
            let (front, reason) = line.split_once(" : ").with_context(|| format!("no reason: {line}"))?;
            let (word, name) = front.trim().split_once(' ').with_context(|| format!("no name: {line}"))?;
            let when = match word {
                "skip" => When::Always,
                "nobody" => When::Nobody,
                "either" => When::Either,
                "broken" => When::Broken,
                _ => bail!("neither skip nor nobody nor either nor broken: {line}"),
            };
            Ok(Entry { when, name: name.trim(), reason: reason.trim() })
        })
        .collect()
}

/// Passed (`None`), skipped for a listed reason, or why it is neither.
fn judge<'a>(outcome: Outcome<'_>, entry: Option<&Entry<'a>>, user: User) -> Result<Option<&'a str>, String> {
    const LIST: &str = "tests/interop/pyverbs.txt";
    let entry = entry.filter(|e| e.when != When::Nobody || user == User::Nobody);
    match (outcome, entry) {
        (Outcome::Ok, None | Some(Entry { when: When::Either, .. })) => Ok(None),
        (Outcome::Ok, Some(_)) => Err(format!("passes, so its line in {LIST} must go")),
        (Outcome::Skip(_), Some(entry)) => Ok(Some(entry.reason)),
        (Outcome::Skip(why), None) => Err(format!("skipped ({why}), which {LIST} does not say")),
        (Outcome::Bad(_), Some(Entry { when: When::Broken, reason, .. })) if user == User::Root => {
            Ok(Some(reason))
        }
        (Outcome::Bad(why), _) => Err(why.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_reads() {
        let all = entries(LIST).unwrap();
        assert!(all.iter().all(|e| e.name.starts_with("tests.") && e.reason.len() > 10), "{all:?}");
        for bad in ["skip tests.a.B.c", "fail tests.a.B.c : because", "tests : because"] {
            assert!(entries(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_outcome_must_be_the_listed_one() {
        let text = "# x\nskip tests.a.* : no such thing\neither tests.b.C.d : luck\nnobody tests.r : for root\nbroken tests.w : no WQ\n";
        let list = entries(text).unwrap();
        let find = |name: &str| list.iter().find(|e| e.covers(name));
        let good = |outcome, name| judge(outcome, find(name), User::Nobody);
        let root = |outcome, name| judge(outcome, find(name), User::Root);
        assert_eq!(good(Outcome::Ok, "tests.c"), Ok(None));
        assert_eq!(good(Outcome::Skip("s"), "tests.a.B.c"), Ok(Some("no such thing")));
        assert_eq!(good(Outcome::Skip("s"), "tests.b.C.d"), Ok(Some("luck")));
        assert_eq!(good(Outcome::Ok, "tests.b.C.d"), Ok(None));
        assert_eq!(good(Outcome::Skip("s"), "tests.r"), Ok(Some("for root")));
        assert_eq!(root(Outcome::Ok, "tests.r"), Ok(None));
        assert!(root(Outcome::Skip("s"), "tests.r").is_err(), "root must do it");
        assert_eq!(good(Outcome::Skip("s"), "tests.w"), Ok(Some("no WQ")));
        assert_eq!(root(Outcome::Bad("b"), "tests.w"), Ok(Some("no WQ")));
        assert!(good(Outcome::Bad("b"), "tests.w").is_err() && root(Outcome::Ok, "tests.w").is_err());
        assert!(good(Outcome::Ok, "tests.r").is_err(), "nobody must not");
        assert!(good(Outcome::Ok, "tests.a.B.c").is_err(), "listed and passes");
        assert!(good(Outcome::Skip("s"), "tests.b.C.de").is_err(), "skipped and not listed");
        for name in ["tests.a.B.c", "tests.b.C.d", "tests.c"] {
            assert!(good(Outcome::Bad("x"), name).is_err(), "failures are never expected");
        }
    }

    #[test]
    fn users_of_a_namespace() {
        assert!(maps("         0          0 4294967295", NOBODY));
        assert!(!maps("         0       1000          1", NOBODY));
        assert!(!maps("", NOBODY));
    }

    #[test]
    fn a_test_without_an_end_is_bad() {
        let report = "a\tstart\t\na\tok\t\nb\tstart\t\nb\tskip\twhy not\nc\tstart\t\nc\tok\t\nc\terror\tx\nd\tstart\t\n";
        let all = outcomes(report);
        let want = [
            ("a", Outcome::Ok),
            ("b", Outcome::Skip("why not")),
            ("c", Outcome::Bad("x")),
            ("d", Outcome::Bad("did not end")),
        ];
        assert_eq!(all.into_iter().collect::<Vec<_>>(), want);
    }
}
