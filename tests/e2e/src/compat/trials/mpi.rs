//! Open MPI and MPICH, each over UCX and libfabric, by a C program that compares every octet.

use super::super::figures::{Figure, mpi_latency, mpi_rate};
use super::super::software::{Build, Software};
use super::super::trial::{Ends, Place, Trial, Variables, plain};
use super::ucx;
use ferroce_harness::debian::Program;

const OPEN_MPI: Software = Software {
    name: "openmpi",
    debian: &[
        Program { name: "mpirun.openmpi", package: "openmpi-bin" },
        Program { name: "mpicc.openmpi", package: "libopenmpi-dev" },
    ],
    wheels: &[],
    builds: &[Build { program: "mpi", source: "mpi.c", compiler: "mpicc.openmpi", words: "" }],
};
const MPICH: Software = Software {
    name: "mpich",
    debian: &[
        Program { name: "mpirun.mpich", package: "mpich" },
        Program { name: "mpicc.mpich", package: "libmpich-dev" },
    ],
    wheels: &[],
    builds: &[Build { program: "mpi", source: "mpi.c", compiler: "mpicc.mpich", words: "" }],
};

/// Between ranks of one host MPICH would use shared memory of its own.
const MPICH_RC: Variables = &[
    ("UCX_TLS", "rc_verbs,ud_verbs:aux"),
    ("UCX_NET_DEVICES", "fr0:1"),
    ("UCX_IB_GID_INDEX", "0"),
    ("MPIR_CVAR_NOLOCAL", "1"),
];
const MPICH_TCP: Variables =
    &[("UCX_TLS", "tcp,self"), ("UCX_NET_DEVICES", "lo"), ("MPIR_CVAR_NOLOCAL", "1")];
/// The ranks are more than the processors.
const YIELD: Variables = &[("OMPI_MCA_mpi_yield_when_idle", "1")];

const fn of(software: &'static Software, what: &'static str, ends: Ends, figure: Figure) -> Trial {
    Trial {
        verified: true,
        says: "data ok",
        octets: 100 << 20,
        seconds: 45,
        figure: Some(figure),
        ..plain(software, what, ends)
    }
}

const OPEN_MPI_LIMIT: &str =
    "`--mca pml_ucx_devices any --mca pml_ucx_tls any`: else Open MPI takes UCX for known cards only";

const fn open_mpi_ucx(what: &'static str, ends: Ends, tcp: Ends, figure: Figure) -> Trial {
    Trial {
        variables: ucx::RC,
        tcp: Some((tcp, YIELD)),
        limit: OPEN_MPI_LIMIT,
        ..of(&OPEN_MPI, what, ends, figure)
    }
}

const fn open_mpi_ofi(what: &'static str, ends: Ends, tcp: Ends, figure: Figure) -> Trial {
    Trial {
        place: Place::Link,
        variables: YIELD,
        tcp: Some((tcp, YIELD)),
        limit: "libfabric skips loopback interfaces: it needs a link",
        ..of(&OPEN_MPI, what, ends, figure)
    }
}

const fn mpich_ucx(what: &'static str, ends: Ends, figure: Figure) -> Trial {
    Trial {
        variables: MPICH_RC,
        tcp: Some((ends, MPICH_TCP)),
        limit: "Debian builds it for UCX alone (`ch4:ucx`), without libfabric",
        ..of(&MPICH, what, ends, figure)
    }
}

const OPEN_MPI_UCX_2: Ends = &[
    "mpirun.openmpi --oversubscribe -np 2 --mca pml ucx --mca pml_ucx_devices any --mca pml_ucx_tls any --mca mpi_yield_when_idle 1 {bin}/mpi",
];
const OPEN_MPI_UCX_4: Ends = &[
    "mpirun.openmpi --oversubscribe -np 4 --mca pml ucx --mca pml_ucx_devices any --mca pml_ucx_tls any --mca mpi_yield_when_idle 1 {bin}/mpi",
];
const OPEN_MPI_TCP_2: Ends = &[
    "mpirun.openmpi --oversubscribe -np 2 --mca pml ob1 --mca btl tcp,self --mca btl_tcp_if_include lo {bin}/mpi",
];
const OPEN_MPI_TCP_4: Ends = &[
    "mpirun.openmpi --oversubscribe -np 4 --mca pml ob1 --mca btl tcp,self --mca btl_tcp_if_include lo {bin}/mpi",
];
const MPICH_2: Ends = &["mpirun.mpich -np 2 {bin}/mpi"];
const MPICH_4: Ends = &["mpirun.mpich -np 4 {bin}/mpi"];

/// In the order of the page.
pub const TRIALS: &[Trial] = &[
    Trial {
        quick: true,
        ..open_mpi_ucx("UCX, 2 ranks, 1 MiB; to `btl tcp`", OPEN_MPI_UCX_2, OPEN_MPI_TCP_2, mpi_rate())
    },
    open_mpi_ucx("UCX, 2 ranks, 8 bytes; to `btl tcp`", OPEN_MPI_UCX_2, OPEN_MPI_TCP_2, mpi_latency()),
    open_mpi_ucx("UCX, 4 ranks, 1 MiB; to `btl tcp`", OPEN_MPI_UCX_4, OPEN_MPI_TCP_4, mpi_rate()),
    open_mpi_ofi(
        "libfabric `verbs;ofi_rxm`, 2 ranks, 1 MiB; to `tcp;ofi_rxm`",
        &[
            "mpirun.openmpi --oversubscribe -np 2 --mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include verbs;ofi_rxm {bin}/mpi",
        ],
        &[
            "mpirun.openmpi --oversubscribe -np 2 --mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include tcp;ofi_rxm {bin}/mpi",
        ],
        mpi_rate(),
    ),
    open_mpi_ofi(
        "libfabric `verbs;ofi_rxm`, 4 ranks, 1 MiB; to `tcp;ofi_rxm`",
        &[
            "mpirun.openmpi --oversubscribe -np 4 --mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include verbs;ofi_rxm {bin}/mpi",
        ],
        &[
            "mpirun.openmpi --oversubscribe -np 4 --mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include tcp;ofi_rxm {bin}/mpi",
        ],
        mpi_rate(),
    ),
    Trial { quick: true, ..mpich_ucx("UCX, 2 ranks, 1 MiB; to UCX's `tcp`", MPICH_2, mpi_rate()) },
    mpich_ucx("UCX, 2 ranks, 8 bytes; to UCX's `tcp`", MPICH_2, mpi_latency()),
    mpich_ucx("UCX, 4 ranks, 1 MiB; to UCX's `tcp`", MPICH_4, mpi_rate()),
];
