//! The programs of `cargo xtask compat`, and what is run of each.

use super::figures::{Figure, fio, libfabric, perftest, qperf_latency, qperf_rate, ucx_latency, ucx_rate};

/// The command lines of server and client; `{host}` is the server's address, `{port}` a port of this run.
pub type Ends = [&'static str; 2];
/// Variables of the environment.
pub type Variables = &'static [(&'static str, &'static str)];

/// Where the two ends run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// At 127.0.0.1, on `fr0`.
    Loopback,
    /// At an address of one end of a veth pair, on `fr1`: libfabric uses no loopback interface.
    Link,
}

/// One run of a program between two processes.
pub struct Trial {
    /// The name on the command line.
    pub program: &'static str,
    /// Debian's package, whose version the page shows.
    pub package: &'static str,
    /// The command as the page shows it.
    pub what: &'static str,
    pub place: Place,
    /// Options of `ferroce run`.
    pub options: &'static str,
    /// Variables for both ends on ferroce.
    pub variables: Variables,
    pub ends: Ends,
    /// The same over the program's own TCP transport, with its variables.
    pub tcp: Option<(Ends, Variables)>,
    pub figure: Option<Figure>,
    /// The server serves until it is ended.
    pub endless: bool,
    /// The program compares the data, and fails if they differ.
    pub verified: bool,
    /// A limit that users meet, for the page.
    pub limit: &'static str,
}

/// UCX over reliable connections; the exchange that precedes them goes by datagrams.
const UCX_RC: &[(&str, &str)] =
    &[("UCX_TLS", "rc_verbs,ud_verbs:aux"), ("UCX_NET_DEVICES", "fr0:1"), ("UCX_IB_GID_INDEX", "0")];
const UCX_UD: &[(&str, &str)] =
    &[("UCX_TLS", "ud_verbs"), ("UCX_NET_DEVICES", "fr0:1"), ("UCX_IB_GID_INDEX", "0")];
const UCX_TCP: &[(&str, &str)] = &[("UCX_TLS", "tcp"), ("UCX_NET_DEVICES", "lo")];

/// A run on loopback without options, variables, figure or TCP.
const fn plain(program: &'static str, package: &'static str, what: &'static str, ends: Ends) -> Trial {
    Trial {
        program,
        package,
        what,
        place: Place::Loopback,
        options: "",
        variables: &[],
        ends,
        tcp: None,
        figure: None,
        endless: false,
        verified: false,
        limit: "",
    }
}

const fn pingpong(what: &'static str, ends: Ends) -> Trial {
    Trial { verified: true, ..plain("ibverbs-utils", "ibverbs-utils", what, ends) }
}

const fn bandwidth(what: &'static str, ends: Ends) -> Trial {
    Trial { figure: Some(perftest()), ..plain("perftest", "perftest", what, ends) }
}

const fn rdma(what: &'static str, ends: Ends) -> Trial {
    Trial { verified: true, ..plain("rdmacm-utils", "rdmacm-utils", what, ends) }
}

const FIO_SERVER: &str =
    "fio --name=r --ioengine=rdma --port={port} --bs=64k --size=1g --rw=read --iodepth=16";

const fn fio_of(what: &'static str, ends: Ends) -> Trial {
    Trial {
        tcp: Some((
            [
                "fio --name=r --ioengine=net --protocol=tcp --listen --port={port} --bs=64k --size=1g --rw=read",
                "fio --name=s --ioengine=net --protocol=tcp --hostname={host} --port={port} --bs=64k --size=1g --rw=write",
            ],
            &[],
        )),
        figure: Some(fio()),
        limit: "fio's `send` sets `rnr_retry_count` to 0 and dies of the first RNR NAK, on a card as well; Debian's fio aborts at the end of a TCP run (double free), so there is no figure",
        ..plain("fio", "fio", what, ends)
    }
}

const fn qperf_of(what: &'static str, figure: Figure, client: &'static str, tcp: &'static str) -> Trial {
    Trial {
        tcp: Some((["qperf -lp {port}", tcp], &[])),
        figure: Some(figure),
        endless: true,
        limit: "needs `-cm 1`: otherwise it names no GID, which RoCE asks for",
        ..plain("qperf", "qperf", what, ["qperf -lp {port}", client])
    }
}

const fn ucx_of(what: &'static str, variables: Variables, figure: Figure, ends: Ends) -> Trial {
    Trial {
        options: "--sysfs",
        variables,
        tcp: Some((ends, UCX_TCP)),
        figure: Some(figure),
        limit: "needs `ferroce run`: it reads files below `/sys`",
        ..plain("ucx", "ucx-utils", what, ends)
    }
}

const UCX_BW: [&str; 2] =
    ["ucx_perftest -p {port}", "ucx_perftest -p {port} -t tag_bw -s 1000000 -n 2000 -w 100 -f {host}"];
const UCX_LAT: [&str; 2] =
    ["ucx_perftest -p {port}", "ucx_perftest -p {port} -t tag_lat -s 8 -n 20000 -w 1000 -f {host}"];

const fn libfabric_of(what: &'static str, figure: Figure, ends: Ends, tcp: Ends) -> Trial {
    Trial {
        place: Place::Link,
        tcp: Some((tcp, &[])),
        figure: Some(figure),
        verified: true,
        limit: "skips loopback interfaces: it needs a link",
        ..plain("libfabric", "libfabric-bin", what, ends)
    }
}

/// All runs, in the order of the page.
pub const ALL: &[Trial] = &[
    pingpong(
        "`ibv_rc_pingpong`, 64 KiB",
        [
            "ibv_rc_pingpong -d fr0 -g 0 -p {port} -s 65536 -n 1000 -c",
            "ibv_rc_pingpong -d fr0 -g 0 -p {port} -s 65536 -n 1000 -c {host}",
        ],
    ),
    pingpong(
        "`ibv_uc_pingpong`",
        [
            "ibv_uc_pingpong -d fr0 -g 0 -p {port} -n 1000 -c",
            "ibv_uc_pingpong -d fr0 -g 0 -p {port} -n 1000 -c {host}",
        ],
    ),
    pingpong(
        "`ibv_ud_pingpong`",
        [
            "ibv_ud_pingpong -d fr0 -g 0 -p {port} -s 1000 -n 1000 -c",
            "ibv_ud_pingpong -d fr0 -g 0 -p {port} -s 1000 -n 1000 -c {host}",
        ],
    ),
    bandwidth(
        "`ib_write_bw`, 64 KiB",
        [
            "ib_write_bw -d fr0 -F -p {port} -s 65536 -D 1",
            "ib_write_bw -d fr0 -F -p {port} -s 65536 -D 1 {host}",
        ],
    ),
    bandwidth(
        "`ib_send_bw`, 64 KiB",
        [
            "ib_send_bw -d fr0 -F -p {port} -s 65536 -D 1",
            "ib_send_bw -d fr0 -F -p {port} -s 65536 -D 1 {host}",
        ],
    ),
    bandwidth(
        "`ib_read_bw`, 64 KiB",
        [
            "ib_read_bw -d fr0 -F -p {port} -s 65536 -D 1",
            "ib_read_bw -d fr0 -F -p {port} -s 65536 -D 1 {host}",
        ],
    ),
    rdma(
        "`rping`, 1,000 pings of 4 KB",
        [
            "rping -s -a {host} -p {port} -C 1000 -S 4096 -V",
            "rping -c -a {host} -p {port} -C 1000 -S 4096 -V",
        ],
    ),
    Trial {
        verified: false,
        ..rdma(
            "`ucmatose`, 10 connections",
            ["ucmatose -p {port} -c 10 -C 100 -S 4096", "ucmatose -p {port} -c 10 -C 100 -S 4096 -s {host}"],
        )
    },
    fio_of(
        "`ioengine=rdma`, `verb=write`, 64 KiB",
        [
            FIO_SERVER,
            "fio --name=s --ioengine=rdma --hostname={host} --port={port} --verb=write --bs=64k --size=1g --rw=write --iodepth=16",
        ],
    ),
    fio_of(
        "`ioengine=rdma`, `verb=read`, 64 KiB",
        [
            FIO_SERVER,
            "fio --name=s --ioengine=rdma --hostname={host} --port={port} --verb=read --bs=64k --size=1g --rw=write --iodepth=16",
        ],
    ),
    qperf_of(
        "`rc_bw`, 64 KiB, to `tcp_bw`",
        qperf_rate(),
        "qperf -lp {port} -cm 1 -t 1 {host} rc_bw",
        "qperf -lp {port} -t 1 {host} tcp_bw",
    ),
    qperf_of(
        "`rc_lat`, 1 byte, to `tcp_lat`",
        qperf_latency(),
        "qperf -lp {port} -cm 1 -t 1 {host} rc_lat",
        "qperf -lp {port} -t 1 {host} tcp_lat",
    ),
    qperf_of(
        "`rc_rdma_write_bw`, 64 KiB, to `tcp_bw`",
        qperf_rate(),
        "qperf -lp {port} -cm 1 -t 1 {host} rc_rdma_write_bw",
        "qperf -lp {port} -t 1 {host} tcp_bw",
    ),
    ucx_of("`rc_verbs`, tag matching, 1 MB", UCX_RC, ucx_rate(), UCX_BW),
    ucx_of("`rc_verbs`, tag matching, 8 bytes", UCX_RC, ucx_latency(), UCX_LAT),
    ucx_of("`ud_verbs`, tag matching, 8 bytes", UCX_UD, ucx_latency(), UCX_LAT),
    libfabric_of(
        "`verbs`, messages, 64 KiB, data compared",
        libfabric(),
        [
            "fi_pingpong -p verbs -e msg -I 2000 -S 65536 -c -B {port}",
            "fi_pingpong -p verbs -e msg -I 2000 -S 65536 -c -P {port} {host}",
        ],
        [
            "fi_pingpong -p tcp -e msg -I 2000 -S 65536 -c -B {port}",
            "fi_pingpong -p tcp -e msg -I 2000 -S 65536 -c -P {port} {host}",
        ],
    ),
    libfabric_of(
        "`verbs;ofi_rxm`, reliable datagrams, 64 KiB, data compared",
        libfabric(),
        [
            "fi_pingpong -p verbs;ofi_rxm -e rdm -I 2000 -S 65536 -c -B {port}",
            "fi_pingpong -p verbs;ofi_rxm -e rdm -I 2000 -S 65536 -c -P {port} {host}",
        ],
        [
            "fi_pingpong -p tcp;ofi_rxm -e rdm -I 2000 -S 65536 -c -B {port}",
            "fi_pingpong -p tcp;ofi_rxm -e rdm -I 2000 -S 65536 -c -P {port} {host}",
        ],
    ),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_run_has_a_name_of_its_own_and_ends_that_find_each_other() {
        let names: BTreeSet<_> = ALL.iter().map(|trial| (trial.program, trial.what)).collect();
        assert_eq!(names.len(), ALL.len());
        for trial in ALL {
            let all = trial.ends.iter().chain(trial.tcp.iter().flat_map(|(ends, _)| ends));
            assert!(all.clone().all(|words| words.contains("{port}")), "{}", trial.what);
            assert!(trial.ends[1].contains("{host}"), "{}", trial.what);
            assert!(trial.tcp.is_none() || trial.figure.is_some(), "{}: a ratio of what?", trial.what);
        }
    }
}
