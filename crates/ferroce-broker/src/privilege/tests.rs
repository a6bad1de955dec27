use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::*;

const FULL: &str = "000001ffffffffff";

fn status(users: &str, capabilities: &str, seccomp: &str) -> String {
    format!(
        "Name:\tprogram\nUid:\t{users}\nCapPrm:\t{FULL}\nCapEff:\t{capabilities}\nNoNewPrivs:\t0\nSeccomp:\t{seccomp}\n"
    )
}

#[test]
fn a_status_is_judged_by_its_effective_set_its_users_and_its_filter() {
    use Unprivileged::{NoCapability, Seccomp, SetUser, Unknown};
    let one = "1000\t1000\t1000\t1000";
    for (users, capabilities, seccomp, want) in [
        ("0\t0\t0\t0", FULL, "0", Ok(())),
        (one, "0000000000002000", "0", Ok(())),
        (one, "0000000000000000", "0", Err(NoCapability)),
        // All but CAP_NET_RAW, as root may have in a container.
        ("0\t0\t0\t0", "000001ffffffdfff", "0", Err(NoCapability)),
        (one, FULL, "2", Err(Seccomp)),
        (one, FULL, "1", Err(Seccomp)),
        ("1000\t0\t0\t0", FULL, "0", Err(SetUser)),
        ("0\t0\t1000\t0", FULL, "0", Err(SetUser)),
        ("0\t0\t0\t1000", FULL, "0", Err(SetUser)),
        (one, "x", "0", Err(Unknown)),
        ("", FULL, "0", Err(Unknown)),
    ] {
        assert_eq!(
            judge_status(&status(users, capabilities, seccomp)),
            want,
            "{users} {capabilities} {seccomp}"
        );
    }
    assert_eq!(judge_status(""), Err(Unknown));
    let without = status(one, FULL, "0").replace("Seccomp", "Other");
    assert_eq!(judge_status(&without), Ok(()), "a kernel without seccomp");
}

/// A process that sleeps, killed when dropped.
struct Sleeper(Child);

impl Sleeper {
    fn new(words: &[&str]) -> Self {
        let (program, rest) = words.split_first().unwrap();
        let mut command = Command::new(program);
        command.args(rest).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Self(command.arg0(program).spawn().unwrap())
    }

    fn judge(&self) -> Result<(), Unprivileged> {
        let pid = Pid::from_raw(self.0.id() as i32).unwrap();
        judge_process(pidfd_open(pid, PidfdFlags::empty()).unwrap().as_fd())
    }

    /// The judgement once the process has executed its last program.
    fn settled(&self) -> Result<(), Unprivileged> {
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        loop {
            let name = std::fs::read_to_string(format!("/proc/{}/comm", self.0.id())).unwrap_or_default();
            if name.trim() == "sleep" {
                return self.judge();
            }
            assert!(std::time::Instant::now() < deadline, "the process is {name:?}");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_process_has_the_rights_that_the_kernel_shows() {
    let own = std::fs::read_to_string("/proc/self/status").unwrap();
    let child = Sleeper::new(&["sleep", "60"]);
    // The child has the rights of this process, in its namespaces.
    assert_eq!(child.settled(), judge_status(&own));
    let mut ended = Sleeper::new(&["sleep", "60"]);
    let pid = Pid::from_raw(ended.0.id() as i32).unwrap();
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).unwrap();
    ended.0.kill().unwrap();
    ended.0.wait().unwrap();
    assert_eq!(judge_process(pidfd.as_fd()), Err(Unprivileged::Unknown));
}

#[test]
fn rights_that_were_dropped_and_rights_of_another_namespace_do_not_count() {
    let own = std::fs::read_to_string("/proc/self/status").unwrap();
    let root = nix::unistd::geteuid().is_root() && judge_status(&own) == Ok(());
    if !root || Command::new("setpriv").arg("--version").output().is_err() {
        eprintln!("skipped: it needs root with CAP_NET_RAW, and the program setpriv");
        return;
    }
    let all_but = ["setpriv", "--bounding-set=-net_raw", "--inh-caps=-all", "--", "sleep", "60"];
    assert_eq!(
        Sleeper::new(&all_but).settled(),
        Err(Unprivileged::NoCapability),
        "root without the capability"
    );
    let nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--", "sleep", "60"];
    assert_eq!(Sleeper::new(&nobody).settled(), Err(Unprivileged::NoCapability));
    let mut with = nobody[..4].to_vec();
    with.extend(["--inh-caps=+net_raw", "--ambient-caps=+net_raw", "--", "sleep", "60"]);
    assert_eq!(Sleeper::new(&with).settled(), Ok(()), "nobody with the capability");
    if Command::new("unshare").arg("--version").output().is_err() {
        eprintln!("skipped in part: there is no program unshare");
        return;
    }
    let user = Sleeper::new(&["unshare", "--user", "--map-root-user", "sleep", "60"]).settled();
    assert_eq!(user, Err(Unprivileged::UserNamespace), "it has all capabilities there");
    let net = Sleeper::new(&["unshare", "--net", "sleep", "60"]).settled();
    assert_eq!(net, Err(Unprivileged::NetworkNamespace));
}

#[test]
fn the_other_end_of_a_connection_is_judged() {
    let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    let own = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    match judge(one.as_fd()) {
        // Linux before 6.5.
        Err(Unprivileged::Unknown) => eprintln!("skipped: the kernel has no SO_PEERPIDFD"),
        judged => assert_eq!(judged, judge_status(&own)),
    }
}
