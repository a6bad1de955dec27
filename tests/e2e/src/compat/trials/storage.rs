//! Storage and persistent memory.

use super::super::figures::{Figure, mover_read, mover_write};
use super::super::software::{Build, Software};
use super::super::trial::{Ends, Start, Trial, plain};
use ferroce_harness::debian::Program;

const LIBRPMA: Software = Software {
    name: "librpma",
    debian: &[Program { name: "/usr/include/librpma.h", package: "librpma-dev" }],
    wheels: &[],
    builds: &[Build { program: "librpma", source: "librpma.c", compiler: "cc", words: "-lrpma -libverbs" }],
};

const ISER: Software = Software {
    name: "tgt",
    debian: &[
        Program { name: "tgtd", package: "tgt" },
        Program { name: "/usr/include/iscsi/iscsi.h", package: "libiscsi-dev" },
    ],
    wheels: &[],
    builds: &[Build { program: "iscsi", source: "iscsi.c", compiler: "cc", words: "-liscsi" }],
};

const ISER_ENDS: Ends = &[
    "sh {files}/tgt.sh iser {host} {port} {home}",
    "sh {files}/when_ready.sh {home} {bin}/iscsi iser://{host}:{port}/iqn.2001-04.test:iser/1",
];
const ISCSI_ENDS: Ends = &[
    "sh {files}/tgt.sh iscsi {host} {port} {home}",
    "sh {files}/when_ready.sh {home} {bin}/iscsi iscsi://{host}:{port}/iqn.2001-04.test:iscsi/1",
];

const fn iser(what: &'static str, figure: Figure) -> Trial {
    Trial {
        start: Start::Listening,
        endless: true,
        verified: true,
        says: "data ok",
        octets: 32 << 20,
        figure: Some(figure),
        tcp: Some((ISCSI_ENDS, &[])),
        ..plain(&ISER, what, ISER_ENDS)
    }
}

/// In the order of the page.
pub const TRIALS: &[Trial] = &[
    iser("iSER by libiscsi's initiator, writes of 64 KiB; to iSCSI over TCP", mover_write()),
    iser("iSER by libiscsi's initiator, reads of 64 KiB; to iSCSI over TCP", mover_read()),
    Trial {
        octets: 2 << 20,
        verified: true,
        says: "data ok",
        ..plain(
            &LIBRPMA,
            "write, flush and read of 1 MiB",
            &["{bin}/librpma target {host} {port}", "{bin}/librpma initiator {host} {port}"],
        )
    },
];
