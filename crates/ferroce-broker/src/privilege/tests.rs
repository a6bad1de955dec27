use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use super::*;

const FULL: &str = "000001ffffffffff";

fn status(users: &str, capabilities: &str, seccomp: &str) -> String {
    format!(
        "Name:\tprogram\nUid:\t{users}\nCapPrm:\t{FULL}\nCapEff:\t{capabilities}\nNoNewPrivs:\t0\nSeccomp:\t{seccomp}\n"
    )
}

#[test]
fn a_status_is_judged_by_its_effective_set_its_users_and_its_filter() {
    use Right::{Frames, LowPorts};
    use Unprivileged::{NoCapability, Seccomp, SetUser, Unknown};
    let one = "1000\t1000\t1000\t1000";
    for (uid, users, capabilities, seccomp, frames, low) in [
        (0, "0\t0\t0\t0", FULL, "0", Ok(()), Ok(())),
        (1000, one, "0000000000002000", "0", Ok(()), Err(NoCapability)),
        (1000, one, "0000000000000400", "0", Err(NoCapability), Ok(())),
        (1000, one, "0000000000000000", "0", Err(NoCapability), Err(NoCapability)),
        // All but CAP_NET_RAW, or but the other one, as root may have in a container.
        (0, "0\t0\t0\t0", "000001ffffffdfff", "0", Err(NoCapability), Ok(())),
        (0, "0\t0\t0\t0", "000001fffffffbff", "0", Ok(()), Err(NoCapability)),
        // A filter may deny packet sockets; ports are no system call.
        (1000, one, FULL, "2", Err(Seccomp), Ok(())),
        (1000, one, FULL, "1", Err(Seccomp), Ok(())),
        (1000, "1000\t0\t0\t0", FULL, "0", Err(SetUser), Err(SetUser)),
        (0, "1000\t0\t0\t0", FULL, "0", Err(SetUser), Err(SetUser)),
        (0, "0\t0\t1000\t0", FULL, "0", Err(SetUser), Err(SetUser)),
        (0, "0\t0\t0\t1000", FULL, "0", Err(SetUser), Ok(())),
        // It became root altogether, and another user connected.
        (1000, "0\t0\t0\t0", FULL, "0", Err(SetUser), Err(SetUser)),
        (1000, one, "x", "0", Err(Unknown), Err(Unknown)),
        (1000, "", FULL, "0", Err(Unknown), Err(Unknown)),
    ] {
        let status = status(users, capabilities, seccomp);
        let judged = [Frames, LowPorts].map(|right| judge_status(&status, uid, right));
        assert_eq!(judged, [frames, low], "{uid}: {users} {capabilities} {seccomp}");
    }
    assert_eq!(judge_status("", 0, Frames), Err(Unknown));
    let without = status(one, FULL, "0").replace("Seccomp", "Other");
    assert_eq!(judge_status(&without, 1000, Frames), Ok(()), "a kernel without seccomp");
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
        let folder = format!("/proc/{}", self.0.id());
        let uid = std::fs::metadata(folder).map_or(0, |folder| folder.uid());
        judge_process(pidfd_open(pid, PidfdFlags::empty()).unwrap().as_fd(), uid, Right::Frames)
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
    let uid = nix::unistd::geteuid().as_raw();
    assert_eq!(child.settled(), judge_status(&own, uid, Right::Frames));
    let mut ended = Sleeper::new(&["sleep", "60"]);
    let pid = Pid::from_raw(ended.0.id() as i32).unwrap();
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).unwrap();
    ended.0.kill().unwrap();
    ended.0.wait().unwrap();
    assert_eq!(judge_process(pidfd.as_fd(), uid, Right::Frames), Err(Unprivileged::Unknown));
}

#[test]
fn rights_that_were_dropped_and_rights_of_another_namespace_do_not_count() {
    let own = std::fs::read_to_string("/proc/self/status").unwrap();
    let root = nix::unistd::geteuid().is_root() && judge_status(&own, 0, Right::Frames) == Ok(());
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
fn the_sender_of_a_request_is_judged() {
    let (one, other) = ferroce_ipc::packet::pair().unwrap();
    ferroce_ipc::packet::pass_sender(&one).unwrap();
    ferroce_ipc::packet::send(other.as_fd(), b"x", &[]).unwrap();
    let sender = ferroce_ipc::packet::recv(one.as_fd(), &mut Vec::new()).unwrap().unwrap().sender;
    let uid = nix::unistd::geteuid().as_raw();
    assert_eq!(sender, Some(Sender { pid: std::process::id(), uid: nix::unistd::getuid().as_raw() }));
    let own = std::fs::read_to_string("/proc/self/status").unwrap();
    for right in [Right::Frames, Right::LowPorts] {
        match judge(one.as_fd(), sender, right) {
            // Linux before 6.5.
            Err(Unprivileged::Unknown) => eprintln!("skipped: the kernel has no SO_PEERPIDFD"),
            judged => assert_eq!(judged, judge_status(&own, uid, right)),
        }
        assert_eq!(judge(one.as_fd(), None, right), Err(Unprivileged::Unknown));
        let child = sender.map(|sender| Sender { pid: 1, ..sender });
        assert_eq!(judge(one.as_fd(), child, right), Err(Unprivileged::OtherProcess));
    }
}
