//! The libraries below PyTorch's distributed packages, from Debian, by C++ programs that compare every octet.

use super::super::figures::{Figure, mpi_latency, mpi_rate};
use super::super::software::{Build, Software};
use super::super::trial::{Start, Trial, plain};
use ferroce_harness::debian::Program;

const COMPILER: Program = Program { name: "g++", package: "g++" };
const GLOO: Software = Software {
    name: "gloo",
    debian: &[Program { name: "/usr/include/gloo/config.h", package: "libgloo-dev" }, COMPILER],
    wheels: &[],
    builds: &[Build { program: "gloo", source: "gloo.cpp", compiler: "g++", words: "-lgloo" }],
};
const TENSORPIPE: Software = Software {
    name: "tensorpipe",
    debian: &[
        Program { name: "/usr/include/tensorpipe/tensorpipe.h", package: "libtensorpipe-dev" },
        COMPILER,
    ],
    wheels: &[],
    builds: &[Build {
        program: "tensorpipe",
        source: "tensorpipe.cpp",
        compiler: "g++",
        words: "-ltensorpipe",
    }],
};

const fn gloo(what: &'static str, figure: Figure) -> Trial {
    Trial {
        tcp: Some((&["{bin}/gloo tcp {home}"], &[])),
        figure: Some(figure),
        verified: true,
        says: "data ok",
        octets: 50 << 20,
        ..plain(&GLOO, what, &["{bin}/gloo ibverbs {home}"])
    }
}

/// In the order of the page.
pub const TRIALS: &[Trial] = &[
    gloo("`ibverbs`, sum of 1 MiB, 2 ranks; to gloo's `tcp`", mpi_rate()),
    gloo("`ibverbs`, sum of 8 bytes, 2 ranks; to gloo's `tcp`", mpi_latency()),
    Trial {
        start: Start::Listening,
        tcp: Some((
            &["{bin}/tensorpipe server uv {host} {port}", "{bin}/tensorpipe client uv {host} {port}"],
            &[],
        )),
        figure: Some(mpi_rate()),
        verified: true,
        says: "data ok",
        octets: 200 << 20,
        ..plain(
            &TENSORPIPE,
            "`ibv`, messages of 1 MiB; to TensorPipe's `uv`",
            &["{bin}/tensorpipe server ibv {host} {port}", "{bin}/tensorpipe client ibv {host} {port}"],
        )
    },
];
