//! Containers: programs that have the libraries and nothing else. And `ferroce doctor`, which says what is wrong with one.

use std::net::{Ipv4Addr, UdpSocket};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::Bed;
use ferroce_harness::job;
use ferroce_harness::netns;
use ferroce_harness::report::Checks;

const LIMIT: Duration = Duration::from_secs(60);

/// Programs find each other by the name of a file that the one that listens makes; `rping` says nothing when it does, so a
/// client that is refused asks again.
const FUNCTIONS: &str = r#"
# One that loses its connection says nothing of it by its status.
pings() { "$@" -C 10 -v -V >"$LOG" 2>&1 && [ "$(grep -c '^ping data' "$LOG")" = 10 ]; }
again() { n=0; until "$@"; do n=$((n + 1)); [ $n -lt 100 ] || return 1; sleep 0.1; done; }
"#;

/// User and network are its own; the broker raises lo.
const USER: &str = r#"
rping -s -a 127.0.0.1 -C 10 & server=$!
again pings rping -c -a 127.0.0.1
wait $server
"#;

/// A root of its own, with one program and what it is linked to: no ferroced, no /sys, no /dev. `$1` becomes that root.
const ROOT: &str = r#"
mount -t tmpfs none "$1"
mkdir -p "$1/tmp" "$1/proc"
mount -t proc proc "$1/proc" 2>/dev/null || true
put() { mkdir -p "$1$(dirname "$2")"; cp -L "$2" "$1$2"; }
program=$(command -v rping)
put "$1" "$program"
# Our libraries are links to one file, in a folder of the loader's.
libraries=$(ldd "$program" | sed -n 's/.*[ \t]\(\/[^ ]*\) (0x.*/\1/p')
for library in $libraries; do
    case $(basename "$library") in
        libibverbs.so.1|librdmacm.so.1) ;;
        *) put "$1" "$library" ;;
    esac
done
for needed in $(ldd "$LD_LIBRARY_PATH/libibverbs.so.1" | sed -n 's/.*[ \t]\(\/[^ ]*\) (0x.*/\1/p'); do put "$1" "$needed"; done
mkdir -p "$1/usr/lib"
cp -P "$LD_LIBRARY_PATH"/lib*.so* "$1/usr/lib/"
export LD_LIBRARY_PATH=/usr/lib
unset FERROCE_RUNTIME_DIR
chroot "$1" "$program" -s -a 127.0.0.1 -C 10 & server=$!
again pings chroot "$1" "$program" -c -a 127.0.0.1
wait $server
"#;

/// Two pods, each with an eth0, on one wire. In the first two containers, apart but for the network, have one broker:
/// whose first program is killed, the other goes on.
const PODS: &str = r#"
unshare -n sleep 300 & one=$!
unshare -n sleep 300 & two=$!
trap 'kill $one $two $killed 2>/dev/null || true' EXIT
killed=
mine=$(readlink /proc/self/ns/net)
for pod in $one $two; do
    again sh -c "[ \"\$(readlink /proc/$pod/ns/net)\" != '$mine' ]"
done
ip link add eth0 netns $one type veth peer name eth0 netns $two
inside() { nsenter -t "$1" -n -- sh -ec "$2"; }
for pod in $one $two; do
    [ $pod = $one ] && last=1 || last=2
    inside $pod "ip link set lo up; ip addr add 10.83.0.$last/24 dev eth0; ip link set eth0 up"
done
# A container of a pod: files and processes are its own.
container() { pod=$1; shift; nsenter -t "$pod" -n -- unshare -m -p -f --kill-child -- env FERROCE_NETDEV=eth0 "$@"; }
nsenter -t $one -n -- unshare -m -p -f --kill-child -- env FERROCE_NETDEV=eth0 rping -s -P -a 10.83.0.1 -p 7001 & killed=$!
container $one rping -s -P -a 10.83.0.1 -p 7002 & server=$!
again pings container $two rping -c -a 10.83.0.1 -p 7001
again pings container $two rping -c -a 10.83.0.1 -p 7002
# Within the pod.
pings container $one rping -c -a 10.83.0.1 -p 7001
kill -9 $killed
again pings container $two rping -c -a 10.83.0.1 -p 7002
kill $server; wait $server 2>/dev/null || true
"#;

/// All of it.
pub fn check(bed: &Bed, checks: &mut Checks) -> Result<()> {
    checks.check("doctor", doctor(bed));
    for (name, flags, script) in [
        ("a user namespace", &["-U", "-r", "-n"][..], USER),
        ("a root of its own", &["-U", "-r", "-n", "-m", "-p", "-f", "--kill-child"], ROOT),
        ("a pod of two containers", &["-U", "-r", "-n", "-m"], PODS),
    ] {
        let unshare = bed.programs.find("unshare").context("unshare (util-linux) is missing")?;
        let mut trial = Command::new(&unshare);
        // The last needs a veth as well.
        let possible = "ip link add v0 type veth peer name v1 && mount -t tmpfs none /mnt";
        let tried = trial.args(flags).args(["--", "sh", "-c", possible]).output()?;
        // Only mounts need their own namespace.
        let mounts = flags.contains(&"-m");
        if mounts && !tried.status.success() {
            checks.skip(name, &format!("not here: {}", String::from_utf8_lossy(&tried.stderr).trim()));
            continue;
        }
        let mut bare = Command::new(&unshare);
        if !bare.args(flags).arg("true").output()?.status.success() {
            checks.skip(name, "no user namespace can be made here");
            continue;
        }
        checks.check(name, within(bed, &unshare, name, flags, script));
    }
    Ok(())
}

/// Runs a script in namespaces of its own, with the libraries and Debian's programs in its search paths.
fn within(bed: &Bed, unshare: &PathBuf, name: &str, flags: &[&str], script: &str) -> Result<()> {
    let rping = bed.programs.find("rping").context("rping is missing")?;
    let folder = bed.logs.path(name).with_extension("root");
    std::fs::create_dir_all(&folder)?;
    let runtime = folder.join("run");
    std::fs::create_dir_all(&runtime)?;
    let lib = bed.dist.library();
    let mut paths = vec![lib.parent().context("a library without a folder")?.to_owned()];
    paths.extend(bed.programs.libraries().iter().flat_map(std::env::split_paths));
    let programs = rping.parent().into_iter().map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut command = Command::new(unshare);
    command.args(flags).args(["--", "sh", "-euc", &format!("{FUNCTIONS}{script}"), "sh"]).arg(&folder);
    command.env("LD_LIBRARY_PATH", std::env::join_paths(&paths)?);
    command.env("PATH", std::env::join_paths(programs.chain(std::env::split_paths(&path)))?);
    command.env("FERROCE_RUNTIME_DIR", &runtime).env("FERROCE_IDLE", "1").env("LOG", folder.join("log"));
    let ended = job::run(command, &bed.logs.path(name), LIMIT)?;
    ensure!(ended.ok(), "{}", ended.describe());
    Ok(())
}

/// A fault, and what is said of it: as text and as JSON, with the exit status.
fn doctor(bed: &Bed) -> Result<()> {
    netns::end_broker();
    let ask = || -> Result<(Option<i32>, Vec<Value>)> {
        let mut command = Command::new(bed.dist.bin("ferroce"));
        command.args(["-j", "doctor"]);
        let ended = job::run(command, &bed.logs.path("doctor"), LIMIT)?;
        let found: Vec<Value> = serde_json::from_str(&ended.output).with_context(|| ended.describe())?;
        Ok((ended.status.and_then(|status| status.code()), found))
    };
    let of = |found: &[Value], check: &str| -> Option<String> {
        let finding = found.iter().find(|finding| finding.get("check").is_some_and(|name| name == check))?;
        Some(finding.get("state")?.as_str()?.to_owned())
    };
    netns::until("the broker is gone", || netns::brokers().is_empty())?;
    let (_, found) = ask()?;
    for check in ["libraries", "loopback", "broker", "port"] {
        ensure!(of(&found, check).as_deref() == Some("ok"), "{check}: {found:?}");
    }
    ensure!(netns::brokers().is_empty(), "it started a broker");
    let taken = UdpSocket::bind((Ipv4Addr::LOCALHOST, 4791))?;
    let (code, found) = ask()?;
    ensure!(code == Some(1) && of(&found, "port").as_deref() == Some("error"), "{code:?} {found:?}");
    let me = format!("process {}", std::process::id());
    ensure!(found.iter().any(|finding| finding.to_string().contains(&me)), "no '{me}' in {found:?}");
    drop(taken);
    let (_, found) = ask()?;
    ensure!(of(&found, "port").as_deref() == Some("ok"), "{found:?}");
    Ok(())
}
