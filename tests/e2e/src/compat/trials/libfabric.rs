//! libfabric by its own benchmark.

use super::super::figures::libfabric;
use super::super::software::Software;
use super::super::trial::{Ends, Place, Start, Trial, plain};
use ferroce_harness::debian::Program;

const LIBFABRIC: Software = Software {
    name: "libfabric",
    debian: &[Program { name: "fi_pingpong", package: "libfabric-bin" }],
    wheels: &[],
    builds: &[],
};

const fn of(what: &'static str, ends: Ends, tcp: Ends) -> Trial {
    Trial {
        place: Place::Link,
        start: Start::Listening,
        tcp: Some((tcp, &[])),
        octets: 100_000,
        figure: Some(libfabric()),
        verified: true,
        limit: "skips loopback interfaces: it needs a link",
        ..plain(&LIBFABRIC, what, ends)
    }
}

/// In the order of the page.
pub const TRIALS: &[Trial] = &[
    of(
        "`verbs`, messages, 64 KiB",
        &[
            "fi_pingpong -p verbs -e msg -I 2000 -S 65536 -c -B {port}",
            "fi_pingpong -p verbs -e msg -I 2000 -S 65536 -c -P {port} {host}",
        ],
        &[
            "fi_pingpong -p tcp -e msg -I 2000 -S 65536 -c -B {port}",
            "fi_pingpong -p tcp -e msg -I 2000 -S 65536 -c -P {port} {host}",
        ],
    ),
    Trial {
        quick: true,
        ..of(
            "`verbs;ofi_rxm`, reliable datagrams, 64 KiB",
            &[
                "fi_pingpong -p verbs;ofi_rxm -e rdm -I 2000 -S 65536 -c -B {port}",
                "fi_pingpong -p verbs;ofi_rxm -e rdm -I 2000 -S 65536 -c -P {port} {host}",
            ],
            &[
                "fi_pingpong -p tcp;ofi_rxm -e rdm -I 2000 -S 65536 -c -B {port}",
                "fi_pingpong -p tcp;ofi_rxm -e rdm -I 2000 -S 65536 -c -P {port} {host}",
            ],
        )
    },
    of(
        "`verbs;ofi_rxd`, reliable datagrams, 64 KiB, to `udp;ofi_rxd`",
        &[
            "fi_pingpong -p verbs;ofi_rxd -e rdm -I 200 -S 65536 -c -B {port}",
            "fi_pingpong -p verbs;ofi_rxd -e rdm -I 200 -S 65536 -c -P {port} {host}",
        ],
        &[
            "fi_pingpong -p udp;ofi_rxd -e rdm -I 200 -S 65536 -c -B {port}",
            "fi_pingpong -p udp;ofi_rxd -e rdm -I 200 -S 65536 -c -P {port} {host}",
        ],
    ),
    of(
        "`verbs`, datagrams, 1 KiB, to `udp`",
        &[
            "fi_pingpong -p verbs -e dgram -I 500 -S 1024 -c -B {port}",
            "fi_pingpong -p verbs -e dgram -I 500 -S 1024 -c -P {port} {host}",
        ],
        &[
            "fi_pingpong -p udp -e dgram -I 500 -S 1024 -c -B {port}",
            "fi_pingpong -p udp -e dgram -I 500 -S 1024 -c -P {port} {host}",
        ],
    ),
];
