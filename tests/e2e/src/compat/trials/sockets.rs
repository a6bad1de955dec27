//! Programs for TCP that rdma-core's librspreload puts onto rsockets.

use super::super::figures::iperf;
use super::super::software::Software;
use super::super::trial::{Ends, Start, Trial, Variables, plain};
use ferroce_harness::debian::Program;

const PRELOAD: &str = "/usr/lib/x86_64-linux-gnu/rsocket/librspreload.so";
const LIBRARY: Program = Program { name: PRELOAD, package: "librdmacm1" };
const IPERF: Software = Software {
    name: "iperf",
    debian: &[Program { name: "iperf", package: "iperf" }, LIBRARY],
    wheels: &[],
    builds: &[],
};
const IPERF3: Software =
    Software { name: "iperf3", debian: &[Program { name: "iperf3", package: "iperf3" }, LIBRARY], ..IPERF };
const NETCAT: Software = Software {
    name: "netcat",
    debian: &[Program { name: "nc.openbsd", package: "netcat-openbsd" }, LIBRARY],
    ..IPERF
};
const VARIABLES: Variables = &[("LD_PRELOAD", PRELOAD)];

const IPERF_ENDS: Ends = &["iperf -s -p {port}", "iperf -c {host} -p {port} -t 1 -l 128k"];

/// In the order of the page.
pub const TRIALS: &[Trial] = &[
    Trial {
        variables: VARIABLES,
        tcp: Some((IPERF_ENDS, &[])),
        endless: true,
        figure: Some(iperf()),
        octets: 1 << 20,
        ..plain(&IPERF, "through `librspreload`, 128 KiB", IPERF_ENDS)
    },
    Trial {
        variables: VARIABLES,
        seconds: 8,
        endless: true,
        fails: Some(
            "it hangs after 128 KiB: it waits by `select`, which `librspreload` translates; ferroce's `rpoll` reports the data, and iperf3 does not read them",
        ),
        ..plain(
            &IPERF3,
            "through `librspreload`",
            &["iperf3 -s -1 -p {port}", "iperf3 -c {host} -p {port} -t 1"],
        )
    },
    Trial {
        variables: VARIABLES,
        seconds: 8,
        start: Start::Pause,
        fails: Some(
            "it asks for SO_REUSEPORT, which rsockets do not have, and calls `accept4`, which `librspreload` does not replace; with rdma-core the same",
        ),
        ..plain(
            &NETCAT,
            "through `librspreload`",
            &["nc.openbsd -l {host} {port}", "nc.openbsd -N {host} {port}"],
        )
    },
];
