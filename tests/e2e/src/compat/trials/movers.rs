//! Packages of PyPI that move data between hosts for AI programs, with host memory, by scripts that compare what arrives.

use super::super::figures::{Figure, mover_read, mover_write};
use super::super::software::{Build, PYTHON, Software};
use super::super::trial::{Ends, Start, Trial, Variables, plain};
use ferroce_harness::debian::Program;

const PIP: Program =
    Program { name: "/usr/lib/python3/dist-packages/pip/__init__.py", package: "python3-pip" };
const PYTHON3: Program = Program { name: PYTHON, package: "python3" };

const MOONCAKE: Software = Software {
    name: "mooncake",
    debian: &[PIP, PYTHON3, Program { name: "/usr/share/doc/libnuma1", package: "libnuma1" }],
    wheels: &["mooncake-transfer-engine-non-cuda==0.3.13.post1"],
    builds: &[],
};
const NIXL: Software = Software {
    name: "nixl",
    debian: &[PIP, PYTHON3],
    wheels: &["nixl-cu12==1.5.1", "numpy==1.26.4", "ibverbs==2026.10.22", "pyverbs==56.0rc1"],
    builds: &[],
};
const IBVERBS: Software =
    Software { name: "ibverbs", debian: &[PIP, PYTHON3], wheels: &["ibverbs==2026.10.22"], builds: &[] };
const NVMEOF: Software = Software {
    name: "nvmeof",
    debian: &[PIP, PYTHON3, Program { name: "/usr/include/rdma/rdma_cma.h", package: "librdmacm-dev" }],
    wheels: &["nvmeof==2026.10.22", "ibverbs==2026.10.22"],
    builds: &[Build {
        program: "nvme_target",
        source: "nvme_target.c",
        compiler: "cc",
        words: "-lrdmacm -libverbs",
    }],
};

const fn of(software: &'static Software, what: &'static str, figure: Figure, ends: Ends) -> Trial {
    Trial {
        start: Start::Listening,
        figure: Some(figure),
        verified: true,
        says: "data ok",
        octets: 16 << 20,
        ..plain(software, what, ends)
    }
}

const PATHS: Variables = &[("PYTHONPATH", "{files}:{wheels}")];
const MOONCAKE_RDMA: Ends = &[
    "/usr/bin/python3 {files}/mooncake_ends.py target {host} {port} rdma",
    "/usr/bin/python3 {files}/mooncake_ends.py initiator {host} {port} rdma",
];
const MOONCAKE_TCP: Ends = &[
    "/usr/bin/python3 {files}/mooncake_ends.py target {host} {port} tcp",
    "/usr/bin/python3 {files}/mooncake_ends.py initiator {host} {port} tcp",
];

/// Mooncake with one worker. With its usual two, three threads of the initiator spin on the processors.
const ONE_WORKER: Variables = &[("PYTHONPATH", "{files}:{wheels}"), ("MC_WORKERS_PER_CTX", "1")];

const fn mooncake(what: &'static str, variables: Variables, figure: Figure) -> Trial {
    Trial {
        options: "--sysfs",
        variables,
        tcp: Some((MOONCAKE_TCP, PATHS)),
        limit: "without `ferroce run` it takes TCP silently; three of its threads spin: on two processors set `MC_WORKERS_PER_CTX=1`",
        ..of(&MOONCAKE, what, figure, MOONCAKE_RDMA)
    }
}

const NIXL_ENDS: Ends = &[
    "/usr/bin/python3 {files}/nixl_ends.py target {host} {port}",
    "/usr/bin/python3 {files}/nixl_ends.py initiator {host} {port}",
];
const NIXL_RC: Variables =
    &[("PYTHONPATH", "{files}:{wheels}"), ("UCX_TLS", "rc_verbs,ud_verbs:aux"), ("UCX_NET_DEVICES", "fr0:1")];
const NIXL_TCP: Variables =
    &[("PYTHONPATH", "{files}:{wheels}"), ("UCX_TLS", "tcp"), ("UCX_NET_DEVICES", "lo")];

const fn nixl(what: &'static str, figure: Figure) -> Trial {
    Trial {
        options: "--sysfs",
        variables: NIXL_RC,
        tcp: Some((NIXL_ENDS, NIXL_TCP)),
        limit: "needs `ferroce run`",
        ..of(&NIXL, what, figure, NIXL_ENDS)
    }
}

const SEVERAL_ENDS: Ends = &[
    "/usr/bin/python3 {files}/several_ends.py target {host} {port}",
    "/usr/bin/python3 {files}/several_ends.py initiator {host} {port}",
];
const IBVERBS_ENDS: Ends = &[
    "/usr/bin/python3 {files}/ibverbs_ends.py target {host} {port}",
    "/usr/bin/python3 {files}/ibverbs_ends.py initiator {host} {port}",
];

/// In the order of the page.
pub const TRIALS: &[Trial] = &[
    mooncake("transfer engine, writes of 64 × 64 KiB", PATHS, mover_write()),
    mooncake("transfer engine, reads of 64 × 64 KiB", PATHS, mover_read()),
    mooncake("`MC_WORKERS_PER_CTX=1`, writes of 64 × 64 KiB", ONE_WORKER, mover_write()),
    mooncake("`MC_WORKERS_PER_CTX=1`, reads of 64 × 64 KiB", ONE_WORKER, mover_read()),
    nixl("UCX 1.23 `rc_verbs`, writes of 64 × 64 KiB; to UCX's `tcp`", mover_write()),
    nixl("UCX 1.23 `rc_verbs`, reads of 64 × 64 KiB; to UCX's `tcp`", mover_read()),
    Trial {
        tcp: None,
        ends: SEVERAL_ENDS,
        ..nixl("in turn with ibverbs, beside pyverbs, in one process", mover_write())
    },
    Trial { variables: PATHS, ..of(&IBVERBS, "writes of 64 × 64 KiB", mover_write(), IBVERBS_ENDS) },
    Trial {
        start: Start::Pause,
        variables: PATHS,
        ..of(
            &NVMEOF,
            "writes of 4 MiB to a target of ours",
            mover_write(),
            &["{bin}/nvme_target {host} {port}", "/usr/bin/python3 {files}/nvmeof_ends.py {host} {port}"],
        )
    },
];
