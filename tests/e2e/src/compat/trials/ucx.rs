//! UCX by its own benchmark.

use super::super::figures::{Figure, ucx_latency, ucx_rate};
use super::super::software::Software;
use super::super::trial::{Ends, Start, Trial, Variables, plain};
use ferroce_harness::debian::Program;

const UCX: Software = Software {
    name: "ucx",
    debian: &[Program { name: "ucx_perftest", package: "ucx-utils" }],
    wheels: &[],
    builds: &[],
};

/// Reliable connections; the exchange that precedes them goes by datagrams.
pub const RC: Variables =
    &[("UCX_TLS", "rc_verbs,ud_verbs:aux"), ("UCX_NET_DEVICES", "fr0:1"), ("UCX_IB_GID_INDEX", "0")];
const UD: Variables = &[("UCX_TLS", "ud_verbs"), ("UCX_NET_DEVICES", "fr0:1"), ("UCX_IB_GID_INDEX", "0")];
/// UCX's own sockets.
pub const TCP: Variables = &[("UCX_TLS", "tcp"), ("UCX_NET_DEVICES", "lo")];

const fn of(what: &'static str, variables: Variables, figure: Figure, ends: Ends) -> Trial {
    Trial {
        start: Start::Listening,
        options: "--sysfs",
        variables,
        tcp: Some((ends, TCP)),
        octets: 10_000,
        figure: Some(figure),
        limit: "needs `ferroce run`: it reads files below `/sys`",
        ..plain(&UCX, what, ends)
    }
}

const TAG_RATE: Ends =
    &["ucx_perftest -p {port}", "ucx_perftest -p {port} -t tag_bw -s 1000000 -n 2000 -w 100 -f {host}"];
const TAG_LATENCY: Ends =
    &["ucx_perftest -p {port}", "ucx_perftest -p {port} -t tag_lat -s 8 -n 20000 -w 1000 -f {host}"];

/// In the order of the page.
pub const TRIALS: &[Trial] = &[
    Trial { quick: true, ..of("`rc_verbs`, tag matching, 1 MB", RC, ucx_rate(), TAG_RATE) },
    of("`rc_verbs`, tag matching, 8 bytes", RC, ucx_latency(), TAG_LATENCY),
    Trial { quick: true, ..of("`ud_verbs`, tag matching, 8 bytes", UD, ucx_latency(), TAG_LATENCY) },
    of(
        "`rc_verbs`, put, 1 MB",
        RC,
        ucx_rate(),
        &[
            "ucx_perftest -p {port}",
            "ucx_perftest -p {port} -t ucp_put_bw -s 1000000 -n 2000 -w 100 -f {host}",
        ],
    ),
    of(
        "`rc_verbs`, get, 64 KiB",
        RC,
        ucx_rate(),
        &["ucx_perftest -p {port}", "ucx_perftest -p {port} -t ucp_get -s 65536 -n 5000 -w 100 -f {host}"],
    ),
    of(
        "`rc_verbs`, active messages, 1 MB",
        RC,
        ucx_rate(),
        &[
            "ucx_perftest -p {port}",
            "ucx_perftest -p {port} -t ucp_am_bw -s 1000000 -n 2000 -w 100 -f {host}",
        ],
    ),
    of(
        "`rc_verbs`, active messages, 8 bytes",
        RC,
        ucx_latency(),
        &["ucx_perftest -p {port}", "ucx_perftest -p {port} -t ucp_am_lat -s 8 -n 10000 -w 1000 -f {host}"],
    ),
    of(
        "`rc_verbs`, stream, 64 KiB",
        RC,
        ucx_rate(),
        &["ucx_perftest -p {port}", "ucx_perftest -p {port} -t stream_bw -s 65536 -n 5000 -w 100 -f {host}"],
    ),
    of(
        "`rc_verbs`, compare and swap, 8 bytes",
        RC,
        ucx_latency(),
        &["ucx_perftest -p {port}", "ucx_perftest -p {port} -t ucp_cswap -s 8 -n 5000 -w 100 -f {host}"],
    ),
];
