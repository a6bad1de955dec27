//! The table of programs. Each connects by librdmacm, because nothing else connects queue pairs of iWARP.
//!
//! Data is compared by rping (Write, Read and Send; `-V`), by rstream and riostream (Write; `-T v`), by cmprobe (Send of four
//! segments) and by fio (Send; `verify=crc32c`). perftest compares none. `rping -q` is not here: it moves its queue pair to
//! RTS itself, which siw refuses with EINVAL.

use crate::dialogues::{Dialogue, Wanted};

/// A dialogue, and where it can run.
#[derive(Clone, Debug)]
pub struct Row {
    /// For messages and the names of logs.
    pub name: String,
    pub dialogue: Dialogue,
    /// Part of a run without `--all`.
    pub quick: bool,
    /// False for programs whose server or whose option for connections knows IPv4 alone.
    pub ipv6: bool,
}

impl Row {
    fn new(name: String, server: (&'static str, String), client: (&'static str, String)) -> Self {
        let dialogue = Dialogue { server, client, wanted: Wanted::Nothing };
        Self { name, dialogue, quick: false, ipv6: true }
    }

    fn wanted(mut self, wanted: Wanted) -> Self {
        self.dialogue.wanted = wanted;
        self
    }

    fn quick(mut self, quick: bool) -> Self {
        self.quick = quick;
        self
    }

    fn ipv4_alone(mut self) -> Self {
        self.ipv6 = false;
        self
    }
}

/// The rows that siw's own two ends master, of one address family.
pub fn rows(all: bool, ipv6: bool) -> Vec<Row> {
    let list = [pings(), connections(), streams(), perftest(SIW_PERFTEST)].concat();
    chosen(list, all, ipv6)
}

/// A few rows that touch every operation: for a second checksum setting, a wire with loss, a NAT.
pub fn sample(ipv6: bool) -> Vec<Row> {
    let names = ["rping 65535", "ucmatose -c 4 -C 10 -S 1000", "rstream -T b -T v", "ib_send_bw -s 65536"];
    let list = rows(false, ipv6).into_iter().filter(|row| names.contains(&&*row.name));
    list.collect()
}

/// Rows for two ends of ferroce alone: programs that the guest lacks, and perftest with a shared receive queue.
///
/// That row has one queue pair, because perftest's own flow control, which it has for iWARP, is wrong for several of them. With
/// `-n 50 -q 4` the server posts 4 x 12 receives, and each of four windows of the client lets 49 Sends pass, so a Send may find no receive:
/// that ends its connection, on siw and on cards as well. The server, whose receives stay in the shared queue, waits on for
/// completions, and so does the client if TCP had taken all of its Sends before. Beside that, the server counts credits by the
/// `wr_id` of the receive, which is not the queue pair that the message came by. A client whose credit of a queue pair exceeds its
/// Sends there computes a negative window in an unsigned number, and never sends by that queue pair again
/// (perftest 4.5-0.17, `run_iter_bw`: `swindow`). Both were seen, in captures: both ends then wait for ever. The engine's test
/// `queue_pairs_of_a_shared_receive_queue` has several queue pairs.
pub fn pairs(all: bool, ipv6: bool) -> Vec<Row> {
    let list = [perftest(&[("ib_send_bw", "--use-srq -s 8000", true)]), fio(), qperf()].concat();
    chosen(list, all, ipv6)
}

fn chosen(mut list: Vec<Row>, all: bool, ipv6: bool) -> Vec<Row> {
    list.retain(|row| (all || row.quick) && (row.ipv6 || !ipv6));
    list
}

fn pings() -> Vec<Row> {
    const PINGS: usize = 10;
    let sizes = [(17, false), (100, true), (1024, false), (4097, false), (65_535, true)];
    let row = |(size, quick): (u32, bool)| {
        let common = format!("-v -C {PINGS} -S {size} -a {{host}} -p {{port}}");
        let (server, client) = (format!("-s {common}"), format!("-c -V {common}"));
        let row = Row::new(format!("rping {size}"), ("rping", server), ("rping", client));
        row.wanted(Wanted::Pings(PINGS)).quick(quick)
    };
    sizes.into_iter().map(row).collect()
}

fn connections() -> Vec<Row> {
    let mut list = Vec::new();
    let kinds = [
        ("-c 4 -C 10 -S 1000", "", true),
        ("-C 50 -S 4096", "-t 32 -a 14", false),
        ("-C 5 -S 65536", "", false),
        ("-m -c 3", "", false),
        ("-P ib -c 2", "", false),
    ];
    for (common, client, quick) in kinds {
        let server = format!("{common} -b {{host}} -p {{port}}");
        let client = format!("{common} {client} -s {{host}} -p {{port}}");
        let row = Row::new(format!("ucmatose {common}"), ("ucmatose", server), ("ucmatose", client));
        let words = Wanted::Words(&["data transfers complete", "return status 0"]);
        list.push(row.wanted(words).quick(quick));
    }
    let args = || "-s {host} -p {port}".to_owned();
    let row = Row::new("rdma_client".to_owned(), ("rdma_server", args()), ("rdma_client", args()));
    list.push(row.wanted(Wanted::Words(&[": end 0"])).quick(true));
    let server = ("rdma_xserver", "-p {port} -c r".to_owned());
    let client = ("rdma_xclient", "-s {host} -p {port} -c r".to_owned());
    list.push(Row::new("rdma_xclient".to_owned(), server, client).ipv4_alone());
    let args = "-c 50 -p {port}";
    let (server, client) = (format!("{args} -b {{host}}"), format!("{args} -s {{host}}"));
    let row = Row::new("cmtime".to_owned(), ("cmtime", server), ("cmtime", client));
    list.push(row.wanted(Wanted::Times).quick(true));
    list
}

fn streams() -> Vec<Row> {
    let kinds = [
        ("rstream", "-T b -T v", true),
        ("rstream", "-T a", false),
        ("rstream", "-T n", false),
        ("rstream", "-T r -T v", false),
        ("rstream", "-k 1", false),
        ("rstream", "-i 0 -T v", false),
        ("rstream", "-B 10000 -T v", false),
        ("riostream", "-T v", true),
        ("riostream", "-T b", false),
    ];
    let row = |(program, kind, quick)| {
        let common = format!("-p {{port}} {kind} -I 5 -C 10 -S 30000");
        let (server, client) = (format!("-b {{host}} {common}"), format!("-s {{host}} {common}"));
        let row = Row::new(format!("{program} {kind}"), (program, server), (program, client));
        row.wanted(Wanted::Words(&["custom "])).quick(quick)
    };
    kinds.into_iter().map(row).collect()
}

/// A program of perftest, its options beside `-F -R -n 50`, and whether it is part of a quick run.
type Perftest = (&'static str, &'static str, bool);

const SIW_PERFTEST: &[Perftest] = &[
    ("ib_send_lat", "", true),
    ("ib_write_lat", "", true),
    ("ib_read_lat", "", true),
    ("ib_send_bw", "-s 65536", true),
    ("ib_write_bw", "-s 65536", true),
    ("ib_read_bw", "-s 65536", true),
    ("ib_send_lat", "-s 4096", false),
    ("ib_write_lat", "-s 4096", false),
    ("ib_read_lat", "-s 4096", false),
    ("ib_send_bw", "-s 1048576", false),
    ("ib_write_bw", "-s 1048576", false),
    ("ib_send_bw", "-q 4 -s 8000", false),
    ("ib_send_bw", "-b", false),
    ("ib_write_bw", "-b", false),
    ("ib_read_bw", "-b", false),
    ("ib_send_lat", "-I 0", false),
    ("ib_send_lat", "-I 64 -s 64", false),
    ("ib_send_lat", "-e", false),
    ("ib_write_bw", "-a", false),
    ("ib_send_bw", "-D 1", false),
];

/// Debian's perftest connects by IPv4 alone with `-R`.
fn perftest(list: &[Perftest]) -> Vec<Row> {
    let row = |(program, options, quick): &Perftest| {
        // A time takes the place of the number of messages.
        let count = if options.contains("-D") { "" } else { "-n 50" };
        let args = format!("-F -R {count} -p {{port}} {options}");
        let name = format!("{program} {options}");
        let row = Row::new(name.trim_end().to_owned(), (program, args.clone()), (program, args + " {host}"));
        row.wanted(Wanted::Words(&["rdma_cm QPs\t : ON"])).quick(*quick).ipv4_alone()
    };
    list.iter().map(row).collect()
}

/// The receiver posts all receives before the sender's first Send: a Send without a receive ends a connection of iWARP.
fn fio() -> Vec<Row> {
    let row = |(verb, depth, size, verify, quick): (&str, [u32; 2], &str, [&str; 2], bool)| {
        let common = format!("--ioengine=rdma --port={{port}} --bs=64k --size={size}");
        let server = format!("--name=r {common} --rw=read --iodepth={} {}", depth[0], verify[0]);
        let client = format!(
            "--name=s {common} --rw=write --hostname={{host}} --verb={verb} --iodepth={} {}",
            depth[1], verify[1]
        );
        Row::new(format!("fio verb={verb}"), ("fio", server), ("fio", client)).quick(quick).ipv4_alone()
    };
    [
        ("write", [16, 16], "64m", ["", ""], true),
        ("read", [16, 16], "64m", ["", ""], false),
        (
            "send",
            [256, 1],
            "16m",
            ["--verify=crc32c --verify_state_save=0", "--verify=crc32c --do_verify=0 --verify_state_save=0"],
            true,
        ),
    ]
    .map(row)
    .into()
}

/// The tests in which both ends send. In the others one end makes a queue pair without a send queue, which siw refuses; see
/// [`ONE_SIDED`].
fn qperf() -> Vec<Row> {
    let row = |(test, word): (&str, &'static str)| one_qperf(test).wanted(Wanted::Served(word)).quick(true);
    [("rc_lat", "latency"), ("rc_bi_bw", "bw")].map(row).into()
}

fn one_qperf(test: &str) -> Row {
    let client = format!("-lp {{port}} -cm 1 -t 1 {{host}} {test}");
    Row::new(format!("qperf {test}"), ("qperf", "-lp {port}".to_owned()), ("qperf", client)).ipv4_alone()
}

/// Tests of qperf that end on siw 6.1 in [`NO_SEND_QUEUE`], and that a device may run as well.
pub fn one_sided() -> Vec<Row> {
    ONE_SIDED.iter().map(|test| one_qperf(test).wanted(Wanted::Served(" = "))).collect()
}

const ONE_SIDED: [&str; 5] =
    ["rc_bw", "rc_rdma_write_bw", "rc_rdma_read_lat", "rc_rdma_read_bw", "rc_rdma_write_poll_lat"];

/// qperf's message on a device that makes no queue pair without a send queue.
pub const NO_SEND_QUEUE: &str = "failed to create QP: Invalid argument";

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn rows_have_names_of_their_own_and_every_end_has_its_place() {
        let list = [rows(true, false), pairs(true, false), one_sided()].concat();
        let names: BTreeSet<&str> = list.iter().map(|row| &*row.name).collect();
        assert_eq!(names.len(), list.len());
        for row in &list {
            let [server, client] =
                [&row.dialogue.server, &row.dialogue.client].map(|end| Dialogue::words(end, "h", 9));
            for words in [&server, &client] {
                assert!(words.iter().all(|word| !word.contains('{')), "{words:?}");
                assert!(words.iter().any(|word| word == "9" || word == "--port=9"), "{words:?}");
            }
            assert!(client.iter().any(|word| word == "h" || word == "--hostname=h"), "{client:?}");
        }
    }

    #[test]
    fn a_quick_run_is_a_part_of_the_whole_one() {
        let names =
            |all, ipv6| -> BTreeSet<String> { rows(all, ipv6).into_iter().map(|row| row.name).collect() };
        assert!(names(false, false).is_subset(&names(true, false)));
        assert!(names(true, true).is_subset(&names(true, false)));
        assert_eq!((sample(false).len(), sample(true).len()), (4, 3));
    }
}
