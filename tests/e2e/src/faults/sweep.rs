//! `ferroce sweep`: each way in which a program can take a fault gets its verdict, and nothing is left.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;

use super::Stage;
use ferroce_harness::job::{self, Ended, Job};
use ferroce_harness::report::Checks;

const LIMIT: Duration = Duration::from_secs(300);

/// A program with an error for each verdict: `$0` is ibv_devinfo.
const ERRORS: &str = r#"
said=$("$0" -d fr0 2>&1) && { echo result; exit 0; }
case $FERROCE_FAULT in
*verb=get_device_list,*) kill -SEGV $$ ;;
*verb=open_device,*) exec sleep 1000 ;;
*verb=query_device,*) echo another result; exit 0 ;;
*verb=query_port,*) sleep 1000 & echo result; exit 0 ;;
*verb=close_device,*) exit 3 ;;
*) echo "$said" >&2; exit 1 ;;
esac
"#;

/// Both ends of a pingpong: `$0` is ibv_rc_pingpong, whose server listens at port 18515. A process that does
/// not end on a signal would hold up each run.
const BOTH_ENDS: &str = r#"
{ sleep 600 & kill $!; wait $!; } 2> /dev/null
"$0" -d fr0 -g 0 -n 100 -c > /dev/null & server=$!
while ! grep -q ':4853 ' /proc/net/tcp /proc/net/tcp6; do
    kill -0 $server 2> /dev/null || { wait $server; exit; }
    sleep 0.05
done
"$0" -d fr0 -g 0 -n 100 -c 127.0.0.1; status=$?
[ $status = 0 ] || kill $server 2> /dev/null
wait $server && exit $status
"#;

impl Stage<'_> {
    pub(super) fn sweeps(&self, checks: &mut Checks) {
        checks.check("sweep: each verdict", self.verdicts());
        checks.check("sweep of both ends of a pingpong", self.both_ends());
        checks.check("sweep: a program without a result", self.no_result());
        checks.check("sweep: a signal ends all runs", self.interrupted());
    }

    /// A sweep of a script, and the folder of its files.
    fn sweep(&self, name: &str, words: &str, script: &str, program: &str) -> Result<(Command, PathBuf)> {
        let folder = self.bed.logs.path(name).with_extension("runs");
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder)?;
        let mut command = Command::new(self.bed.dist.bin("ferroce"));
        command.args(words.split(' ')).args(["--", "sh", "-c", script]);
        command.arg(self.bed.programs.find(program).unwrap_or_else(|| program.into()));
        command.env("TMPDIR", &folder).env_remove("FERROCE_FAULT");
        if let Some(dirs) = self.bed.programs.libraries() {
            command.env("LD_LIBRARY_PATH", dirs);
        }
        Ok((command, folder))
    }

    fn verdicts(&self) -> Result<()> {
        let (command, folder) =
            self.sweep("sweep verdicts", "-j sweep --jobs 4 --timeout 15", ERRORS, "ibv_devinfo")?;
        let ended = job::run(command, &self.bed.logs.path("sweep verdicts"), LIMIT)?;
        ensure!(ended.status.and_then(|status| status.code()) == Some(1), "{}", ended.describe());
        let rows = rows(&ended)?;
        for (verb, verdict) in [
            ("get_device_list", "crash"),
            ("open_device", "hang"),
            ("query_device", "wrong"),
            ("query_port", "leak"),
            ("close_device", "silent"),
        ] {
            let rule = format!("fail=ENOMEM if verb={verb},nth=1");
            let row = rows.get(&rule).with_context(|| format!("no {rule}: {}", ended.output))?;
            ensure!(row["verdict"] == verdict && row["hits"].as_u64() > Some(0), "not {verdict}: {row}");
        }
        ensure!(!rows.contains_key("fail=ENOMEM if verb=post_send,nth=1"), "{}", ended.output);
        ensure!(fs::read_dir(&folder)?.next().is_none(), "files are left in {}", folder.display());
        // The command of a row does it again.
        let again =
            rows["fail=ENOMEM if verb=get_device_list,nth=1"]["command"].as_str().context("no command")?;
        let ferroce = self.bed.dist.bin("ferroce");
        let mut repeat = Command::new("sh");
        repeat.args(["-c", &again.replacen("ferroce", "\"$0\"", 1)]).arg(&ferroce);
        if let Some(dirs) = self.bed.programs.libraries() {
            repeat.env("LD_LIBRARY_PATH", dirs);
        }
        let repeated = job::run(repeat, &self.bed.logs.path("sweep repeated"), LIMIT)?;
        ensure!(repeated.how() == "exit 139" || repeated.how() == "signal 11", "{}", repeated.describe());
        fs::remove_dir(&folder)?;
        Ok(())
    }

    /// Lost packets come again, and a call that fails is told.
    fn both_ends(&self) -> Result<()> {
        let words = "-j sweep --timeout 20";
        let (command, folder) = self.sweep("sweep pingpong", words, BOTH_ENDS, "ibv_rc_pingpong")?;
        let ended = job::run(command, &self.bed.logs.path("sweep pingpong"), LIMIT)?;
        let rows = rows(&ended)?;
        for act in ["drop", "dup", "corrupt"] {
            for op in ["send", "ack"] {
                let rule = format!("{act} if op={op},dir=tx,count=1");
                ensure!(
                    rows.get(&rule).is_some_and(|row| row["verdict"] == "same"),
                    "{rule}: {}",
                    ended.output
                );
            }
        }
        let refused = rows.get("fail=ENOMEM if verb=reg_mr,nth=1").context("no reg_mr")?;
        ensure!(refused["verdict"] == "refused", "{refused}");
        ensure!(refused["detail"].as_str().is_some_and(|detail| detail.contains("register MR")), "{refused}");
        fs::remove_dir(&folder)?;
        Ok(())
    }

    fn no_result(&self) -> Result<()> {
        for (script, rest, says) in [
            ("echo no such file >&2; exit 3", "", "with exit status 3:\nno such file"),
            ("true", "", "no rule acts on the program"),
            ("sleep 1000", " --budget 0.5", "does not end without a fault"),
        ] {
            let (command, folder) = self.sweep("sweep of nothing", &format!("sweep{rest}"), script, "")?;
            let ended = job::run(command, &self.bed.logs.path("sweep of nothing"), LIMIT)?;
            ensure!(ended.how() == "exit 1" && ended.output.contains(says), "{}", ended.describe());
            fs::remove_dir(&folder)?;
        }
        Ok(())
    }

    fn interrupted(&self) -> Result<()> {
        let (mut command, folder) =
            self.sweep("sweep ended", "sweep", "echo $$ > \"$PID_FILE\"; sleep 1000", "")?;
        let file = self.bed.logs.path("sweep ended").with_extension("pid");
        let _ = fs::remove_file(&file);
        command.env("PID_FILE", &file);
        let sweep = Job::start(command, &self.bed.logs.path("sweep ended"), LIMIT)?;
        let pid = || fs::read_to_string(&file).ok().and_then(|pid| pid.trim().parse::<u32>().ok());
        wait("the first run", || pid().is_some())?;
        sweep.signal(Signal::SIGINT);
        let ended = sweep.wait()?;
        ensure!(ended.how() == "exit 130", "{}", ended.describe());
        let state = || fs::read_to_string(format!("/proc/{}/stat", pid().unwrap_or(0))).unwrap_or_default();
        wait("the end of the run", || state().is_empty() || state().contains(") Z "))?;
        fs::remove_file(&file)?;
        fs::remove_dir(&folder)?;
        Ok(())
    }
}

/// The rows of a sweep by their rules.
fn rows(ended: &Ended) -> Result<BTreeMap<String, Value>> {
    let rows: Vec<Value> = ended
        .output
        .lines()
        .find_map(|line| serde_json::from_str(line).ok())
        .with_context(|| ended.describe())?;
    Ok(rows.into_iter().map(|row| (row["rule"].as_str().unwrap_or_default().to_owned(), row)).collect())
}

fn wait(what: &str, is: impl Fn() -> bool) -> Result<()> {
    let start = Instant::now();
    while !is() {
        ensure!(start.elapsed() < LIMIT, "{what}: not within {LIMIT:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
