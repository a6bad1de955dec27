//! Programs of two users: needs root, to be somebody else.

mod common;

use std::process::{Child, Command, Output, Stdio};

use common::{brokers, chain, connect, eventually};
use ferroce_engine::broker::{BrokerClient, BrokerMode};

const NAME: &str = "programs_of_another_user";
const NOBODY: &str = "65534";

/// This test in another role, as user 65534 without privileges.
fn as_nobody(role: &str) -> Child {
    Command::new("setpriv")
        .args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", "--no-new-privs"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", NAME, "--nocapture"])
        .env("FERROCE_TEST_ROLE", role)
        .env("FERROCE_RUNTIME_DIR", "/tmp/ferroce-65534-test")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn said(child: Child) -> String {
    let Output { stdout, stderr, .. } = child.wait_with_output().unwrap();
    String::from_utf8_lossy(&[stdout, stderr].concat()).into_owned()
}

fn try_lease() {
    match BrokerClient::connect(BrokerMode::Auto).and_then(|client| client.lease(1)) {
        Ok(lease) => println!("\nleased {:?} as uid {}", lease.slots, nix::unistd::geteuid()),
        Err(e) => println!("\nno lease: {}", chain(&e)),
    }
}

#[test]
fn programs_of_another_user() {
    match std::env::var("FERROCE_TEST_ROLE").as_deref() {
        Ok("lease") => return try_lease(),
        Ok("hold") => {
            let client = connect();
            let lease = client.lease(1).unwrap();
            println!("\nholding");
            std::io::stdin().read_line(&mut String::new()).unwrap();
            drop((client, lease));
            return;
        }
        Ok("inside") => {}
        _ => return outside(),
    }
    // Root's programs hold the namespace: somebody else's get a sentence.
    let root = connect();
    let lease = root.lease(1).unwrap();
    let text = said(as_nobody("lease"));
    assert!(text.contains("served by ferroced of uid 0, which cannot lend sockets to uid 65534"), "{text}");
    assert!(text.contains("ferroce run --private-net -- CMD"), "{text}");
    assert_eq!(brokers().len(), 1);
    // Root's are gone: the broker that idles makes way.
    drop((root, lease));
    let text = said(as_nobody("lease"));
    assert!(text.contains("leased [1] as uid 65534"), "{text}");
    // And the other way: root does not trust somebody else's broker.
    let mut holder = as_nobody("hold");
    let mut output = std::io::BufReader::new(holder.stdout.take().unwrap());
    let mut line = String::new();
    while !line.starts_with("holding") {
        line.clear();
        assert_ne!(std::io::BufRead::read_line(&mut output, &mut line).unwrap(), 0, "{}", said(holder));
    }
    let error = BrokerClient::connect(BrokerMode::Auto).unwrap_err();
    let text = chain(&error);
    assert!(text.contains("of uid 65534: stop it, or run in a network namespace of your own"), "{text}");
    drop(holder.stdin.take());
    holder.wait().unwrap();
    // It idles now, and makes way as well.
    assert_eq!(connect().lease(1).unwrap().slots, [1]);
    eventually("one broker, root's", || brokers().len() == 1);
}

/// A network namespace without a user namespace, in which there are two users.
fn outside() {
    let mut probe = Command::new("unshare");
    probe.args(["-n", "setpriv", "--reuid", NOBODY, "--clear-groups"]);
    probe.arg(std::env::current_exe().unwrap()).arg("--list").stdout(Stdio::null()).stderr(Stdio::null());
    if !nix::unistd::geteuid().is_root() || !probe.status().is_ok_and(|status| status.success()) {
        println!("skipped {NAME}: needs root, unshare, setpriv, and a build that user {NOBODY} can read");
        return;
    }
    let runtime = std::env::temp_dir().join(format!("ferroce-test-{}-users", std::process::id()));
    let status = Command::new("unshare")
        .args(["-n", "--pid", "--fork", "--kill-child", "--mount-proc"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", NAME, "--nocapture"])
        .env("FERROCE_TEST_ROLE", "inside")
        .env("FERROCE_RUNTIME_DIR", &runtime)
        .env("FERROCE_DAEMON", env!("CARGO_BIN_EXE_ferroced"))
        .env_remove("FERROCE_NETDEV")
        .env_remove("FERROCE_BROKER")
        .status()
        .unwrap();
    let _ = std::fs::remove_dir_all(&runtime);
    let _ = std::fs::remove_dir_all("/tmp/ferroce-65534-test");
    assert!(status.success(), "inside the namespace, see above");
}
