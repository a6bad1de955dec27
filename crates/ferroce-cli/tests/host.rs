//! The sentences of the commands about a host, in a network namespace of the test's own: a port that others hold, routes with a small MTU, rules
//! of the packet filter.

use std::net::UdpSocket;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const INSIDE: &str = "FERROCE_TEST_INSIDE";
const FERROCE: &str = env!("CARGO_BIN_EXE_ferroce");

/// Runs `body` with a broker in fresh namespaces of users, networks and processes: this program again, with `name`, the test's own name.
/// The test passes, and says that it was skipped, if there can be no such namespaces.
fn isolated(name: &str, body: impl FnOnce(&Broker)) {
    let ferroced = PathBuf::from(FERROCE).with_file_name("ferroced");
    if std::env::var_os(INSIDE).is_some() {
        run("ip", "link set lo up");
        return body(&Broker { program: ferroced });
    }
    let works = |command: &mut Command| {
        command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    };
    if !works(Command::new("unshare").args(["-Urn", "ip", "link"])) {
        return println!(
            "skipped {name}: no user and network namespace here (unshare -Urn), or no program ip"
        );
    }
    if !ferroced.exists() {
        return println!("skipped {name}: ferroced is not built, which tests of the whole workspace do");
    }
    let runtime = std::env::temp_dir().join(format!("ferroce-test-{}-{name}", std::process::id()));
    let status = Command::new("unshare")
        // With a pid namespace nothing outlives the test.
        .args(["-Urn", "--pid", "--fork", "--kill-child", "--mount-proc"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(INSIDE, "1")
        .env("FERROCE_RUNTIME_DIR", &runtime)
        .env_remove("FERROCE_NETDEV")
        .env_remove("FERROCE_BROKER")
        .status()
        .unwrap();
    let _ = std::fs::remove_dir_all(&runtime);
    assert!(status.success(), "inside the namespace, see above");
}

struct Broker {
    program: PathBuf,
}

impl Broker {
    /// Starts it, and waits until it answers.
    fn start(&self) -> Child {
        let mut child = Command::new(&self.program).stderr(Stdio::null()).spawn().unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        while !ferroce("status").status.success() {
            assert_eq!(child.try_wait().unwrap(), None, "ferroced ended");
            assert!(Instant::now() < deadline, "ferroced does not serve");
            std::thread::sleep(Duration::from_millis(10));
        }
        child
    }
}

fn ferroce(words: &str) -> Output {
    Command::new(FERROCE).args(words.split(' ')).stdin(Stdio::null()).output().unwrap()
}

/// What the command prints on standard output.
fn said(words: &str) -> String {
    String::from_utf8(ferroce(words).stdout).unwrap()
}

fn run(program: &str, words: &str) {
    let output = Command::new(program).args(words.split(' ')).output().unwrap();
    assert!(output.status.success(), "{program} {words}: {}", String::from_utf8_lossy(&output.stderr));
}

/// The lines of a check of `ferroce doctor`.
fn doctor(check: &str) -> Vec<String> {
    let said = said("doctor");
    said.lines()
        .filter(|line| line.get(9..).is_some_and(|line| line.starts_with(check)))
        .map(str::to_owned)
        .collect()
}

#[test]
fn a_link_whose_port_is_taken_is_down() {
    isolated("a_link_whose_port_is_taken_is_down", |broker| {
        let holder = UdpSocket::bind("[::]:4791").unwrap();
        let mut daemon = broker.start();
        let held = format!("UDP port 4791 is held by process {} (", std::process::id());
        let line = said("link show");
        let head = "link fr0/1 state DOWN physical_state LINK_UP netdev lo reason ";
        assert!(line.strip_prefix(head).is_some_and(|reason| reason.starts_with(&held)), "{line}");
        let json = said("link show -j");
        assert!(
            json.contains("\"state\":\"DOWN\"") && json.contains("\"reason\":\"UDP port 4791 is held"),
            "{json}"
        );
        let errors = String::from_utf8(ferroce("gid show").stderr).unwrap();
        assert!(errors.contains(&held), "{errors}");
        drop(holder);
        // IPv6 goes on.
        let _holder = UdpSocket::bind("0.0.0.0:4791").unwrap();
        let line = said("link show");
        assert!(line.contains(" state ACTIVE ") && line.contains(&format!(" reason {held}")), "{line}");
        drop(_holder);
        assert_eq!(said("link show"), "link fr0/1 state ACTIVE physical_state LINK_UP netdev lo\n");
        daemon.kill().unwrap();
        daemon.wait().unwrap();
    });
}

/// An earlier change may keep the broker in the kernel for seconds. A question is given up sooner than a
/// change.
#[test]
fn a_change_waits_for_a_broker_that_is_busy() {
    isolated("a_change_waits_for_a_broker_that_is_busy", |broker| {
        let mut daemon = broker.start();
        run("kill", &format!("-STOP {}", daemon.id()));
        let change = Command::new(FERROCE).args(["link", "set", "fr0", "ttl", "9"]).spawn().unwrap();
        assert!(!ferroce("status").status.success(), "ferroced does not answer");
        run("kill", &format!("-CONT {}", daemon.id()));
        assert!(change.wait_with_output().unwrap().status.success());
        assert!(said("link show -d").contains(" ttl 9"), "{}", said("link show -d"));
        daemon.kill().unwrap();
        daemon.wait().unwrap();
    });
}

#[test]
fn a_route_that_carries_less_is_a_warning() {
    isolated("a_route_that_carries_less_is_a_warning", |broker| {
        run("ip", "link add d0 type veth peer name d1");
        run("ip", "addr add 10.81.0.1/24 dev d0");
        run("ip", "link set d0 up");
        run("ip", "link set d1 up");
        let mut daemon = broker.start();
        assert!(ferroce("link add fr1 type roce netdev d0").status.success());
        run("ip", "route add 10.98.0.0/24 dev d0 mtu 1400");
        assert_eq!(doctor("path mtu"), [""; 0], "1024 octets and headers fit");
        run("ip", "route add 10.99.0.0/24 dev d0 mtu 1000");
        let found = doctor("path mtu");
        let want =
            "fr1 sends 1024 octets in a packet, and the route to 10.99.0.0/24 carries packets of 1000 ";
        assert!(matches!(&*found, [line] if line.starts_with("warning") && line.contains(want)), "{found:?}");
        assert!(said("doctor").contains("-> ferroce link set fr1 mtu 512"));
        assert!(ferroce("link set fr1 mtu 512").status.success());
        assert_eq!(doctor("path mtu"), [""; 0]);
        daemon.kill().unwrap();
        daemon.wait().unwrap();
    });
}

#[test]
fn rules_that_drop_the_port_are_a_warning() {
    const NAME: &str = "rules_that_drop_the_port_are_a_warning";
    isolated(NAME, |_| {
        let nft = ["/usr/sbin/nft", "/sbin/nft"].into_iter().find(|file| std::path::Path::new(file).exists());
        let table = nft.is_some_and(|nft| {
            Command::new(nft)
                .args(["add", "table", "inet", "t"])
                .status()
                .is_ok_and(|status| status.success())
        });
        let Some(nft) = nft.filter(|_| table) else {
            return println!("skipped {NAME}: there is no program nft, or the kernel has no nftables");
        };
        run(nft, "add chain inet t i { type filter hook input priority 0 ; policy accept ; }");
        let firewall = || doctor("firewall");
        assert!(firewall()[0].starts_with("ok"), "{:?}", firewall());
        run(nft, "add rule inet t i udp dport { 53, 4000-5000 } counter drop");
        let found = firewall();
        assert!(found.len() == 1 && found[0].starts_with("warning"), "{found:?}");
        assert!(found[0].ends_with("nftables, inet t i"), "{found:?}");
        // One that drops what nobody accepts.
        run(nft, "flush chain inet t i");
        run(nft, "chain inet t i { policy drop ; }");
        assert!(firewall()[0].starts_with("note"), "without a link nobody else sends: {:?}", firewall());
        run(nft, "add rule inet t i udp dport 4791 accept");
        assert!(firewall()[0].starts_with("ok"), "{:?}", firewall());
    });
}

#[test]
fn a_quiet_run_prints_no_notes() {
    const NAME: &str = "a_quiet_run_prints_no_notes";
    isolated(NAME, |broker| {
        // No process of this user namespace makes another one, and one without capabilities mounts nothing.
        std::fs::write("/proc/sys/user/max_user_namespaces", "0").unwrap();
        let dist = PathBuf::from(std::env::var_os("FERROCE_RUNTIME_DIR").unwrap()).with_extension("dist");
        for folder in ["bin", "lib"] {
            std::fs::create_dir_all(dist.join(folder)).unwrap();
        }
        std::fs::copy(FERROCE, dist.join("bin/ferroce")).unwrap();
        std::fs::write(dist.join("lib/libibverbs.so.1"), "").unwrap();
        // An auditor that answers nothing.
        let auditor = dist.join("lib/libferroce-audit.so");
        std::fs::write(dist.join("a.c"), "unsigned la_version(unsigned version) { return version; }")
            .unwrap();
        let built =
            Command::new("gcc").args(["-shared", "-fPIC", "-o"]).arg(auditor).arg(dist.join("a.c")).status();
        if !built.is_ok_and(|status| status.success()) {
            return println!("skipped {NAME}: gcc builds no library here");
        }
        let mut daemon = broker.start();
        let said = |options: &[&str]| {
            let mut command = Command::new("setpriv");
            command.args(["--inh-caps=-all", "--bounding-set=-all"]).arg(dist.join("bin/ferroce"));
            let output = command.arg("run").args(options).args(["--", "sh", "-c", "exit 7"]).output();
            output.map(|output| (output.status.code(), String::from_utf8(output.stderr).unwrap()))
        };
        match said(&["--quiet"]) {
            Err(error) => println!("skipped {NAME}: setpriv cannot be run: {error}"),
            Ok(quiet) => {
                assert_eq!(quiet, (Some(7), String::new()));
                let (status, text) = said(&[]).unwrap();
                assert!(status == Some(7) && text.contains("no files in /sys/class/infiniband"), "{text}");
                assert_eq!(said(&[]).unwrap().1, "", "said once");
            }
        }
        daemon.kill().unwrap();
        daemon.wait().unwrap();
        std::fs::remove_dir_all(dist).unwrap();
    });
}
