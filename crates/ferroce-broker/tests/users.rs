//! Programs of two users: needs root, to be somebody else.

mod common;

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use common::{brokers, chain, connect, eventually};
use ferroce_client::{BrokerClient, BrokerMode, ConnectOptions, embed_with};

const NAME: &str = "programs_of_another_user";
const UNMAPPED: &str = "users_that_a_user_namespace_does_not_map";
const PRIVILEGED: &str = "a_set_user_id_program_follows_no_variable_and_serves_nobody";
const NOBODY: &str = "65534";
/// Two users of the host that nobody is.
const USERS: [&str; 2] = ["51234", "55555"];
/// Makes a program of the second look as one of user 65534 to itself, and everybody else as well.
const AS_NOBODY: [&str; 4] = ["unshare", "--user", "--map-user=65534", "--map-group=65534"];

/// This test in another role, as user 65534 without privileges.
fn as_nobody(role: &str) -> Child {
    as_user(NAME, NOBODY, role, &[])
}

/// A test in another role, as some user without privileges, by way of another program perhaps.
fn as_user(name: &str, uid: &str, role: &str, by: &[&str]) -> Child {
    Command::new("setpriv")
        .args(["--reuid", uid, "--regid", uid, "--clear-groups", "--no-new-privs"])
        .args(by)
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env("FERROCE_TEST_ROLE", role)
        .env("FERROCE_RUNTIME_DIR", format!("/tmp/ferroce-{uid}-{name}"))
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
        Ok(lease) => println!("\nleased {:?} as uid {}", lease.members(), nix::unistd::geteuid()),
        Err(e) => println!("\nno lease: {}", chain(&e)),
    }
}

fn hold() {
    let client = connect();
    let lease = client.lease(1).unwrap();
    println!("\nholding");
    std::io::stdin().read_line(&mut String::new()).unwrap();
    drop((client, lease));
}

/// Reads what the holder of a slot says until it has it; the rest is to be kept open.
fn until_it_holds(holder: &mut Child) -> BufReader<ChildStdout> {
    let mut output = BufReader::new(holder.stdout.take().unwrap());
    let mut line = String::new();
    while !line.starts_with("holding") {
        line.clear();
        assert_ne!(output.read_line(&mut line).unwrap(), 0, "the holder ended");
    }
    output
}

/// The kernel shows a program of user 65534 in a user namespace each user that this does not map as 65534.
#[test]
fn users_that_a_user_namespace_does_not_map() {
    match std::env::var("FERROCE_TEST_ROLE").as_deref() {
        Ok("lease") => return try_lease(),
        Ok("hold") => return hold(),
        Ok("inside") => {}
        _ => return outside(UNMAPPED),
    }
    // Root's broker raises lo, and makes way.
    drop(connect());
    let mut stranger = as_user(UNMAPPED, USERS[0], "hold", &[]);
    let _output = until_it_holds(&mut stranger);
    let text = said(as_user(UNMAPPED, USERS[1], "lease", &AS_NOBODY));
    if text.contains("Operation not permitted") {
        println!("skipped the rest: users may not make user namespaces here");
        return;
    }
    assert!(text.contains("of a user whom this user namespace does not map: stop it"), "{text}");
    drop(stranger.stdin.take());
    stranger.wait().unwrap();
    // A broker of the same namespace is trusted, by the program that started it; root's would be, were it mapped.
    let text = said(as_user(UNMAPPED, USERS[1], "lease", &AS_NOBODY));
    assert!(text.contains("leased [1] as uid 65534"), "{text}");
    // A program of the same user in no namespace, or in another one, uses the same broker.
    let mut holder = as_user(UNMAPPED, USERS[1], "hold", &[]);
    let _output = until_it_holds(&mut holder);
    let before = brokers();
    let text = said(as_user(UNMAPPED, USERS[1], "lease", &AS_NOBODY));
    assert!(text.contains("leased [2] as uid 65534"), "{text}");
    assert_eq!(brokers(), before);
    drop(holder.stdin.take());
    holder.wait().unwrap();
}

#[test]
fn programs_of_another_user() {
    match std::env::var("FERROCE_TEST_ROLE").as_deref() {
        Ok("lease") => return try_lease(),
        Ok("hold") => return hold(),
        Ok("inside") => {}
        _ => return outside(NAME),
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
    let _output = until_it_holds(&mut holder);
    let error = BrokerClient::connect(BrokerMode::Auto).unwrap_err();
    let text = chain(&error);
    assert!(text.contains("of uid 65534: stop it, or run in a network namespace of your own"), "{text}");
    drop(holder.stdin.take());
    holder.wait().unwrap();
    // It idles now, and makes way as well.
    assert_eq!(connect().lease(1).unwrap().members(), [1]);
    eventually("one broker, root's", || brokers().len() == 1);
}

/// The variables are those of the user who starts the program and may stop it, so root's broker may not run in it, nor in a
/// `ferroced` of whose users one is that user.
#[test]
fn a_set_user_id_program_follows_no_variable_and_serves_nobody() {
    match std::env::var("FERROCE_TEST_ROLE").as_deref() {
        Ok("privileged") => return with_more_rights(),
        Ok("inside") => {}
        _ => return outside(PRIVILEGED),
    }
    let own = std::env::current_exe().unwrap();
    std::fs::set_permissions(&own, std::fs::Permissions::from_mode(0o4755)).unwrap();
    let run = || {
        let mut program = Command::new("setpriv");
        program.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"]).arg(&own);
        program.args(["--exact", PRIVILEGED, "--nocapture"]);
        program.envs([("FERROCE_TEST_ROLE", "privileged"), ("FERROCE_BROKER", "embedded")]);
        program.envs([("FERROCE_NETDEV", "lo"), ("FERROCE_LOOPBACK", "1"), ("FERROCE_IDLE", "0")]);
        String::from_utf8_lossy(&program.output().unwrap().stdout).into_owned()
    };
    let folders = ["/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin"];
    if let Some(folder) = folders.iter().find(|folder| Path::new(folder).join("ferroced").exists()) {
        println!("skipped {PRIVILEGED}: there is a ferroced in {folder}, which such a program starts");
        return;
    }
    let text = run();
    assert!(text.contains("as uid 0, mode Auto, netdev \"\", listing false false"), "{text}");
    let refused = "does not serve as the broker: start ferroced, or install it in /usr/bin";
    assert_eq!(text.matches(refused).count(), 2, "by its own choice, and without a ferroced: {text}");

    // With a ferroced, all users of that are root.
    let install = "mount -t tmpfs ferroce /tmp && mount -t tmpfs -o mode=755 ferroce /usr/local/sbin && cp $0 /usr/local/sbin";
    let daemon = own.with_file_name("ferroced");
    let installed = Command::new("sh").args(["-c", install]).arg(daemon).status().unwrap();
    if !installed.success() {
        println!("skipped the rest of {PRIVILEGED}: nothing can be mounted at /tmp and /usr/local/sbin");
        return;
    }
    let text = run();
    assert!(text.contains("Auto: connected"), "{text}");
    let brokers = brokers();
    let [broker] = &brokers[..] else { panic!("{brokers:?}") };
    let status = std::fs::read_to_string(format!("/proc/{broker}/status")).unwrap();
    assert!(status.contains("\nUid:\t0\t0\t0\t0\n"), "{status}");
}

fn with_more_rights() {
    embed_with(ferroce_broker::start_embedded);
    let ConnectOptions { mode, netdev, listing, .. } = ConnectOptions::new(BrokerMode::from_env());
    let uid = nix::unistd::geteuid();
    println!(
        "\nas uid {uid}, mode {mode:?}, netdev {netdev:?}, listing {} {}",
        listing.one, listing.loopback
    );
    for mode in [BrokerMode::Embedded, BrokerMode::Auto] {
        match BrokerClient::connect(mode) {
            Ok(_) => println!("{mode:?}: connected"),
            Err(e) => println!("{mode:?}: {}", chain(&e)),
        }
    }
}

/// A network namespace without a user namespace, in which there are two users, and a mount namespace with a folder whose parents only
/// root may write to: the build may lie below one that everybody may (`/tmp`), from which no user starts `ferroced`.
fn outside(name: &str) {
    let mut probe = Command::new("unshare");
    probe.args(["-n", "--mount", "setpriv", "--reuid", NOBODY, "--clear-groups", "true"]);
    probe.stdout(Stdio::null()).stderr(Stdio::null());
    let folder = ["/mnt", "/media", "/srv", "/opt"].into_iter().find(|folder| Path::new(folder).is_dir());
    let (Some(folder), true, true) =
        (folder, nix::unistd::geteuid().is_root(), probe.status().is_ok_and(|status| status.success()))
    else {
        println!("skipped {name}: it needs root, unshare, setpriv and a folder /mnt, /media, /srv or /opt");
        return;
    };
    let runtime = std::env::temp_dir().join(format!("ferroce-test-{}-{name}", std::process::id()));
    let copied = "mount -t tmpfs -o mode=755 ferroce $0 && cp $1 $0/users && cp $2 $0/ferroced && exec $0/users --exact $3 --nocapture";
    let status = Command::new("unshare")
        .args(["-n", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", copied, folder])
        .arg(std::env::current_exe().unwrap())
        .args([env!("CARGO_BIN_EXE_ferroced"), name])
        .env("FERROCE_TEST_ROLE", "inside")
        .env("FERROCE_RUNTIME_DIR", &runtime)
        .env("FERROCE_DAEMON", format!("{folder}/ferroced"))
        .env_remove("FERROCE_NETDEV")
        .env_remove("FERROCE_BROKER")
        .status()
        .unwrap();
    let _ = std::fs::remove_dir_all(&runtime);
    for uid in [NOBODY, USERS[0], USERS[1]] {
        let _ = std::fs::remove_dir_all(format!("/tmp/ferroce-{uid}-{name}"));
    }
    assert!(status.success(), "inside the namespace, see above");
}
