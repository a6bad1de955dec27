//! Programs that call verbs themselves: those of rdma-core, perftest, qperf and fio.

use super::super::figures::{Figure, fio, perftest, perftest_latency, qperf_latency, qperf_rate};
use super::super::software::Software;
use super::super::trial::{Ends, Start, Trial, plain};
use ferroce_harness::debian::Program;

const PINGPONG: Software = Software {
    name: "ibverbs-utils",
    debian: &[Program { name: "ibv_rc_pingpong", package: "ibverbs-utils" }],
    wheels: &[],
    builds: &[],
};
const DIAGS: Software = Software {
    name: "infiniband-diags",
    debian: &[Program { name: "ibstat", package: "infiniband-diags" }],
    ..PINGPONG
};
const PERFTEST: Software = Software {
    name: "perftest",
    debian: &[Program { name: "ib_write_bw", package: "perftest" }],
    ..PINGPONG
};
const RDMACM: Software = Software {
    name: "rdmacm-utils",
    debian: &[Program { name: "rping", package: "rdmacm-utils" }],
    ..PINGPONG
};
const QPERF: Software =
    Software { name: "qperf", debian: &[Program { name: "qperf", package: "qperf" }], ..PINGPONG };
const FIO: Software =
    Software { name: "fio", debian: &[Program { name: "fio", package: "fio" }], ..PINGPONG };

const fn pingpong(what: &'static str, ends: Ends) -> Trial {
    Trial { verified: true, start: Start::Listening, ..plain(&PINGPONG, what, ends) }
}

const fn diags(what: &'static str, says: &'static str, program: Ends) -> Trial {
    Trial { octets: 0, says, quick: true, ..plain(&DIAGS, what, program) }
}

const fn bandwidth(what: &'static str, ends: Ends) -> Trial {
    Trial {
        start: Start::Listening,
        octets: 1 << 20,
        figure: Some(perftest()),
        ..plain(&PERFTEST, what, ends)
    }
}

const fn lag(what: &'static str, ends: Ends) -> Trial {
    Trial { octets: 1000, figure: Some(perftest_latency()), ..bandwidth(what, ends) }
}

const fn rdma(what: &'static str, ends: Ends) -> Trial {
    Trial { verified: true, ..plain(&RDMACM, what, ends) }
}

const FIO_SERVER: &str =
    "fio --name=r --ioengine=rdma --port={port} --bs=64k --size=1g --rw=read --iodepth=16";

const fn fio_of(what: &'static str, ends: Ends) -> Trial {
    Trial {
        tcp: Some((
            &[
                "fio --name=r --ioengine=net --protocol=tcp --listen --port={port} --bs=64k --size=1g --rw=read",
                "fio --name=s --ioengine=net --protocol=tcp --hostname={host} --port={port} --bs=64k --size=1g --rw=write",
            ],
            &[],
        )),
        octets: 1 << 30,
        figure: Some(fio()),
        limit: "Debian's fio aborts now and then at the end of a TCP run (double free); then there is no figure",
        ..plain(&FIO, what, ends)
    }
}

const fn qperf_of(what: &'static str, figure: Figure, ends: Ends, tcp: Ends) -> Trial {
    Trial {
        tcp: Some((tcp, &[])),
        figure: Some(figure),
        endless: true,
        start: Start::Listening,
        limit: "needs `-cm 1`: otherwise it names no GID, which RoCE asks for",
        ..plain(&QPERF, what, ends)
    }
}

/// In the order of the page.
pub const TRIALS: &[Trial] = &[
    pingpong(
        "`ibv_rc_pingpong`, 64 KiB",
        &[
            "ibv_rc_pingpong -d fr0 -g 0 -p {port} -s 65536 -n 1000 -c",
            "ibv_rc_pingpong -d fr0 -g 0 -p {port} -s 65536 -n 1000 -c {host}",
        ],
    ),
    pingpong(
        "`ibv_uc_pingpong`",
        &[
            "ibv_uc_pingpong -d fr0 -g 0 -p {port} -n 1000 -c",
            "ibv_uc_pingpong -d fr0 -g 0 -p {port} -n 1000 -c {host}",
        ],
    ),
    pingpong(
        "`ibv_ud_pingpong`",
        &[
            "ibv_ud_pingpong -d fr0 -g 0 -p {port} -s 1000 -n 1000 -c",
            "ibv_ud_pingpong -d fr0 -g 0 -p {port} -s 1000 -n 1000 -c {host}",
        ],
    ),
    pingpong(
        "`ibv_srq_pingpong`, 16 queue pairs",
        &[
            "ibv_srq_pingpong -d fr0 -g 0 -p {port} -n 1000 -c",
            "ibv_srq_pingpong -d fr0 -g 0 -p {port} -n 1000 -c {host}",
        ],
    ),
    diags("`ibstat`", "State: Active", &["ibstat fr0 1"]),
    diags("`ibstatus`", "4: ACTIVE", &["ibstatus"]),
    diags("`ibaddr`", "GID ", &["ibaddr -C fr0"]),
    diags("`perfquery`, the port's own counters", "PortXmitData", &["perfquery -C fr0 -P 1"]),
    diags("`smpquery nodeinfo`", "Channel Adapter", &["smpquery -C fr0 -D nodeinfo 0"]),
    diags("`smpquery portinfo`", "LinkState", &["smpquery -C fr0 -D portinfo 0 1"]),
    diags("`iblinkinfo`", "LinkUp", &["iblinkinfo"]),
    Trial {
        quick: false,
        fails: Some("it asks a subnet manager, and RoCE has none; it fails on a RoCE card as well"),
        ..diags("`sminfo`", "", &["sminfo -C fr0"])
    },
    Trial {
        quick: false,
        fails: Some("it asks a subnet administrator, and RoCE has none; it fails on a RoCE card as well"),
        ..diags("`saquery`", "", &["saquery -C fr0"])
    },
    bandwidth(
        "`ib_write_bw`, 64 KiB",
        &[
            "ib_write_bw -d fr0 -F -p {port} -s 65536 -D 1",
            "ib_write_bw -d fr0 -F -p {port} -s 65536 -D 1 {host}",
        ],
    ),
    bandwidth(
        "`ib_send_bw`, 64 KiB",
        &[
            "ib_send_bw -d fr0 -F -p {port} -s 65536 -D 1",
            "ib_send_bw -d fr0 -F -p {port} -s 65536 -D 1 {host}",
        ],
    ),
    bandwidth(
        "`ib_read_bw`, 64 KiB",
        &[
            "ib_read_bw -d fr0 -F -p {port} -s 65536 -D 1",
            "ib_read_bw -d fr0 -F -p {port} -s 65536 -D 1 {host}",
        ],
    ),
    Trial {
        octets: 1000,
        ..bandwidth(
            "`ib_atomic_bw`, fetch and add",
            &[
                "ib_atomic_bw -d fr0 -F -p {port} -A FETCH_AND_ADD -D 1",
                "ib_atomic_bw -d fr0 -F -p {port} -A FETCH_AND_ADD -D 1 {host}",
            ],
        )
    },
    bandwidth(
        "`ib_send_bw -c UD`, 1 KiB",
        &[
            "ib_send_bw -c UD -d fr0 -F -p {port} -s 1024 -D 1",
            "ib_send_bw -c UD -d fr0 -F -p {port} -s 1024 -D 1 {host}",
        ],
    ),
    lag(
        "`ib_write_lat`, 8 bytes",
        &[
            "ib_write_lat -d fr0 -F -p {port} -s 8 -n 2000",
            "ib_write_lat -d fr0 -F -p {port} -s 8 -n 2000 {host}",
        ],
    ),
    lag(
        "`ib_send_lat`, 8 bytes",
        &[
            "ib_send_lat -d fr0 -F -p {port} -s 8 -n 2000",
            "ib_send_lat -d fr0 -F -p {port} -s 8 -n 2000 {host}",
        ],
    ),
    lag(
        "`ib_read_lat`, 8 bytes",
        &[
            "ib_read_lat -d fr0 -F -p {port} -s 8 -n 2000",
            "ib_read_lat -d fr0 -F -p {port} -s 8 -n 2000 {host}",
        ],
    ),
    lag(
        "`ib_atomic_lat`, compare and swap",
        &[
            "ib_atomic_lat -d fr0 -F -p {port} -A CMP_AND_SWAP -n 2000",
            "ib_atomic_lat -d fr0 -F -p {port} -A CMP_AND_SWAP -n 2000 {host}",
        ],
    ),
    rdma(
        "`rping`, 1,000 pings of 4 KB",
        &[
            "rping -s -a {host} -p {port} -C 1000 -S 4096 -V",
            "rping -c -a {host} -p {port} -C 1000 -S 4096 -V",
        ],
    ),
    Trial {
        verified: false,
        ..rdma(
            "`ucmatose`, 10 connections",
            &["ucmatose -p {port} -c 10 -C 100 -S 4096", "ucmatose -p {port} -c 10 -C 100 -S 4096 -s {host}"],
        )
    },
    rdma(
        "`rstream`, 64 KiB",
        &[
            "rstream -p {port} -S 65536 -C 200 -I 2 -T v",
            "rstream -p {port} -S 65536 -C 200 -I 2 -T v -s {host}",
        ],
    ),
    Trial {
        quick: true,
        ..fio_of(
            "`ioengine=rdma`, `verb=write`, 64 KiB",
            &[
                FIO_SERVER,
                "fio --name=s --ioengine=rdma --hostname={host} --port={port} --verb=write --bs=64k --size=1g --rw=write --iodepth=16",
            ],
        )
    },
    fio_of(
        "`ioengine=rdma`, `verb=read`, 64 KiB",
        &[
            FIO_SERVER,
            "fio --name=s --ioengine=rdma --hostname={host} --port={port} --verb=read --bs=64k --size=1g --rw=write --iodepth=16",
        ],
    ),
    Trial {
        tcp: None,
        octets: 16 << 20,
        verified: true,
        quick: true,
        limit: "fio's `send` sets `rnr_retry_count` to 0: a message before its receive ends the run, on a card as well; here the receiver has all 256 posted",
        ..fio_of(
            "`ioengine=rdma`, `verb=send`, 64 KiB, `verify=crc32c`",
            &[
                "fio --name=r --ioengine=rdma --port={port} --bs=64k --size=16m --rw=read --iodepth=256 --verify=crc32c",
                "fio --name=s --ioengine=rdma --hostname={host} --port={port} --verb=send --bs=64k --size=16m --rw=write --iodepth=1 --verify=crc32c --do_verify=0",
            ],
        )
    },
    Trial {
        quick: true,
        ..qperf_of(
            "`rc_bw`, 64 KiB, to `tcp_bw`",
            qperf_rate(),
            &["qperf -lp {port}", "qperf -lp {port} -cm 1 -t 1 {host} rc_bw"],
            &["qperf -lp {port}", "qperf -lp {port} -t 1 {host} tcp_bw"],
        )
    },
    qperf_of(
        "`rc_lat`, 1 byte, to `tcp_lat`",
        qperf_latency(),
        &["qperf -lp {port}", "qperf -lp {port} -cm 1 -t 1 {host} rc_lat"],
        &["qperf -lp {port}", "qperf -lp {port} -t 1 {host} tcp_lat"],
    ),
    qperf_of(
        "`rc_rdma_write_bw`, 64 KiB, to `tcp_bw`",
        qperf_rate(),
        &["qperf -lp {port}", "qperf -lp {port} -cm 1 -t 1 {host} rc_rdma_write_bw"],
        &["qperf -lp {port}", "qperf -lp {port} -t 1 {host} tcp_bw"],
    ),
    qperf_of(
        "`rc_rdma_write_poll_lat`, 1 byte, to `tcp_lat`",
        qperf_latency(),
        &["qperf -lp {port}", "qperf -lp {port} -cm 1 -t 1 {host} rc_rdma_write_poll_lat"],
        &["qperf -lp {port}", "qperf -lp {port} -t 1 {host} tcp_lat"],
    ),
    Trial {
        verified: true,
        figure: None,
        tcp: None,
        ..qperf_of(
            "`ver_rc_compare_swap`, `ver_rc_fetch_add`",
            qperf_rate(),
            &["qperf -lp {port}", "qperf -lp {port} -cm 1 -t 1 {host} ver_rc_compare_swap ver_rc_fetch_add"],
            &[],
        )
    },
];
