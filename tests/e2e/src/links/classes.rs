//! Traffic classes and hop limits as packets have them: rules by addresses, and what is set for a whole device.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use nix::sys::signal::Signal;

use super::until;
use crate::cli::{ip, says};
use crate::wire::{capture, tshark_with};
use crate::{Bed, cli};
use ferroce_harness::exchange::Meeting;
use ferroce_harness::report::Checks;

const SOURCE: &str = "10.82.0.1";
const SOURCE_V6: &str = "fd82::1";

/// Commands of `ferroce link`, and the destinations that are reached afterwards with class and hop limit.
type Phase = (&'static [&'static str], &'static [(&'static str, u8, u8)]);

const PHASES: &[Phase] = &[
    // The device's type of service, which no rule matches.
    (&["set rxe0 cm-tos 32"], &[("10.82.0.2", 32, 64), ("fd82::2", 32, 64)]),
    (
        &[
            "tc rxe0 add tclass=16 dst=10.82.0.0/24",
            "tc rxe0 add tclass=24 src=10.82.0.0/24 dst=10.82.0.4",
            "tc rxe0 add tclass=40,src_ip=10.82.0.1,dst_ip=10.82.0.4",
            "tc rxe0 add tclass=48 src=10.82.0.9 dst=10.82.0.3",
            "tc rxe0 add tclass=56 src=fd82::/64 dst=fd82::3",
            "tc rxe0 add tclass=57 dst=fd82::/64",
        ],
        &[
            ("10.82.0.3", 16, 64), // a longer destination, but of another source
            ("10.82.0.4", 40, 64), // the longer source
            ("fd82::3", 56, 64),   // the longer destination
            ("fd82::4", 57, 64),
        ],
    ),
    // One for the whole device, and a hop limit.
    (&["tc rxe0 add 68", "set rxe0 ttl 9"], &[("10.82.0.5", 68, 9), ("fd82::5", 68, 9)]),
    (
        &["tc rxe0 add -1", "set rxe0 ttl -1", "tc rxe0 add tclass=-1 dst=10.82.0.0/24"],
        &[("10.82.0.6", 32, 64), ("fd82::6", 57, 64)],
    ),
];

/// On the link `rxe0`, whose netdev `s0` has `SOURCE`.
pub fn check(bed: &Bed, checks: &mut Checks) -> Result<()> {
    let (file, capture) = match capture(bed, "classes")? {
        Ok(started) => started,
        Err(why) => {
            checks.skip("traffic classes on the wire", &why);
            return Ok(());
        }
    };
    // It went when the netdev was down.
    ip(bed, &format!("addr replace {SOURCE_V6}/64 dev s0 nodad"))?;
    let mut wanted = BTreeMap::new();
    for (commands, destinations) in PHASES {
        for words in *commands {
            says(bed, &format!("link {words}"), 0, "")?;
        }
        for (host, class, hops) in *destinations {
            wanted.insert((*host).to_owned(), (*class, *hops));
            let (source, address) = match host.contains(':') {
                true => (SOURCE_V6, format!("{host}/128 dev s0 nodad")),
                false => (SOURCE, format!("{host}/32 dev s0")),
            };
            ip(bed, &format!("addr add {address}"))?;
            until(bed, "gid show rxe0", |text| text.contains(&format!("{host} type")))?;
            talk(bed, checks, source, host)?;
        }
    }
    checks.check("the rules that are left", left(bed));
    checks.check("traffic classes on the wire", judge(bed, &file, &wanted));
    capture.signal(Signal::SIGINT);
    capture.wait()?;
    for words in ["tc rxe0 delete dst=fd82::/64", "set rxe0 cm-tos 0"] {
        cli::says(bed, &format!("link {words}"), 0, "")?;
    }
    Ok(())
}

fn talk(bed: &Bed, checks: &mut Checks, source: &str, host: &str) -> Result<()> {
    let port = bed.port();
    let end = |words: String| {
        let mut command = bed.ours("rping");
        command.args(words.split(' '));
        // The capture sees nothing of shared memory, by which two ends on one host exchange their packets otherwise.
        command.env("FERROCE_DATAPATH", "udp");
        command
    };
    let meeting = Meeting {
        name: format!("rping {source} to {host}"),
        server: end(format!("-s -C 2 -a {host} -p {port}")),
        client: end(format!("-c -C 2 -a {host} -I {source} -p {port}")),
        patience: None,
        judge: &|_, _| Ok(()),
        endless: false,
        limit: Duration::from_secs(60),
    };
    meeting.run(&bed.logs, checks).map(drop)
}

fn left(bed: &Bed) -> Result<()> {
    let text = says(bed, "link tc rxe0", 0, "")?;
    let want = "link rxe0/1 tclass=56 src=fd82::/64 dst=fd82::3/128\n\
                link rxe0/1 tclass=40 src=10.82.0.1/32 dst=10.82.0.4/32\n\
                link rxe0/1 tclass=24 src=10.82.0.0/24 dst=10.82.0.4/32\n\
                link rxe0/1 tclass=48 src=10.82.0.9/32 dst=10.82.0.3/32\n\
                link rxe0/1 tclass=57 src=any dst=fd82::/64\n";
    let sorted = |text: &str| -> Vec<String> {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    ensure!(sorted(&text) == sorted(want), "{text}");
    ensure!(text.lines().last() == want.lines().last(), "the shortest destination is not last:\n{text}");
    Ok(())
}

/// Waits until the last conversation is in the file, then looks at all: what the connected queue pairs of the source sent.
fn judge(bed: &Bed, file: &Path, wanted: &BTreeMap<String, (u8, u8)>) -> Result<()> {
    const FIELDS: [&str; 6] = ["ip.dst", "ip.dsfield", "ip.ttl", "ipv6.dst", "ipv6.tclass", "ipv6.hlim"];
    let mut options = vec!["-T", "fields", "-E", "separator=,"];
    options.extend(FIELDS.iter().flat_map(|field| ["-e", field]));
    let filter = format!(
        "infiniband && !infiniband.mad && (ip.src == {SOURCE} || ipv6.src == {SOURCE_V6}) && infiniband.bth.opcode < 32"
    );
    let deadline = Instant::now() + Duration::from_secs(20);
    let found = loop {
        let text = tshark_with(bed, file, &filter, &options)?;
        let mut found: BTreeMap<String, Vec<(u8, u8)>> = BTreeMap::new();
        for line in text.lines() {
            let fields: Vec<&str> = line.split(',').collect();
            ensure!(fields.len() == FIELDS.len(), "{line}");
            let of = if fields[0].is_empty() { &fields[3..] } else { &fields[..3] };
            let class = u8::from_str_radix(of[1].trim_start_matches("0x").trim_start_matches("0000"), 16)?;
            let seen = found.entry(of[0].to_owned()).or_default();
            let packet = (class, of[2].parse()?);
            if !seen.contains(&packet) {
                seen.push(packet);
            }
        }
        if wanted.keys().all(|host| found.contains_key(host)) || Instant::now() > deadline {
            break found;
        }
        std::thread::sleep(Duration::from_millis(200));
    };
    for (host, packet) in wanted {
        let seen = found.get(host).cloned().unwrap_or_default();
        ensure!(seen == [*packet], "to {host}: {packet:?} wanted, seen {seen:?}");
    }
    Ok(())
}
