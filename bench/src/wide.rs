//! The rows of the wide table, behind `--all`: sizes, operations, services, queue pairs, processes, paths and rivals.

use std::collections::BTreeSet;

use super::rows::{Row, Unit, many, perftest, usual};
use super::spec::{Path, Program};

const SIZES: [(u64, &str); 9] = [
    (2, "2 B"),
    (8, "8 B"),
    (64, "64 B"),
    (512, "512 B"),
    (4096, "4 KiB"),
    (16_384, "16 KiB"),
    (65_536, "64 KiB"),
    (1 << 20, "1 MiB"),
    (8 << 20, "8 MiB"),
];
const OPERATIONS: [(&str, &str, &str); 3] = [
    ("WRITE", "ib_write_bw", "ib_write_lat"),
    ("SEND", "ib_send_bw", "ib_send_lat"),
    ("READ", "ib_read_bw", "ib_read_lat"),
];

/// The usual rows and all others.
pub fn all() -> Vec<Row> {
    let mut rows = usual();
    for path in [Path::Wire, Path::Host] {
        sizes(&mut rows, path);
        services(&mut rows, path);
        pairs(&mut rows, path);
        libraries(&mut rows, path);
    }
    for path in [Path::Wire6, Path::Cut] {
        for (operation, program, lat) in OPERATIONS {
            rows.push(bandwidth(operation, program, path, 65_536, "64 KiB"));
            rows.push(bandwidth(operation, program, path, 8, "8 B"));
            rows.push(latency(operation, lat, path, 8, "8 B"));
        }
    }
    let mut seen = BTreeSet::new();
    rows.retain(|row| seen.insert(row.name()));
    rows
}

/// Small messages are counted, large ones weighed.
fn bandwidth(operation: &str, program: &'static str, path: Path, size: u64, label: &str) -> Row {
    let name = format!("{operation} {label}");
    match size {
        0..4096 => Row::new(name, path, Unit::Messages, perftest(program, ""), size)
            .against("UDP, one by one", Program::Own("udp-one")),
        _ => Row::new(name, path, Unit::GigabytesPerSecond, perftest(program, ""), size)
            .against("TCP, 64 KiB writes", Program::Own("tcp")),
    }
}

fn latency(operation: &str, program: &'static str, path: Path, size: u64, label: &str) -> Row {
    let row = Row::new(
        format!("{operation} {label}, latency"),
        path,
        Unit::Microseconds,
        perftest(program, ""),
        size,
    );
    // A UDP datagram has at most 65,507 octets, and the baselines stamp eight.
    if (8..=60_000).contains(&size) { row.against("UDP, spinning", Program::Own("udp-spin")) } else { row }
}

fn sizes(rows: &mut Vec<Row>, path: Path) {
    for (operation, program, lat) in OPERATIONS {
        for (size, label) in SIZES {
            // The baselines' datagrams have at least eight octets.
            let mut row = bandwidth(operation, program, path, size, label);
            if size < 8 {
                row.rivals.clear();
            }
            rows.push(row);
            rows.push(latency(operation, lat, path, size, label));
        }
    }
}

fn services(rows: &mut Vec<Row>, path: Path) {
    use Unit::{GigabytesPerSecond, Messages, Microseconds};
    for kind in ["FETCH_AND_ADD", "CMP_AND_SWAP"] {
        let flags = format!("-A {kind}");
        let latency = format!("{kind}, latency");
        rows.push(Row::new(kind, path, Messages, perftest("ib_atomic_bw", &flags), 8));
        rows.push(Row::new(latency, path, Microseconds, perftest("ib_atomic_lat", &flags), 8));
    }
    for (measure, unit, program, flags, size) in [
        ("UC WRITE 64 KiB", GigabytesPerSecond, "ib_write_bw", "-c UC", 65_536),
        ("UC WRITE 8 B", Messages, "ib_write_bw", "-c UC", 8),
        ("UC SEND 64 KiB", GigabytesPerSecond, "ib_send_bw", "-c UC", 65_536),
        ("UC SEND 8 B, latency", Microseconds, "ib_send_lat", "-c UC", 8),
        ("UD SEND 8 B", Messages, "ib_send_bw", "-c UD", 8),
        ("UD SEND 1 KiB", Messages, "ib_send_bw", "-c UD", 1024),
        ("UD SEND 8 B, latency", Microseconds, "ib_send_lat", "-c UD", 8),
        ("SEND 64 KiB, events", GigabytesPerSecond, "ib_send_bw", "-e", 65_536),
        ("SEND 8 B, latency, events", Microseconds, "ib_send_lat", "-e", 8),
        ("READ 8 B, latency, events", Microseconds, "ib_read_lat", "-e", 8),
        ("WRITE 64 KiB, both ways, sum", GigabytesPerSecond, "ib_write_bw", "-b", 65_536),
        ("WRITE 8 B, lists of 64", Messages, "ib_write_bw", "-l 64", 8),
        ("WRITE 8 B, inline", Messages, "ib_write_bw", "-I 64", 8),
    ] {
        rows.push(Row::new(measure, path, unit, perftest(program, flags), size));
    }
}

fn pairs(rows: &mut Vec<Row>, path: Path) {
    for (pairs, name) in [(8, "8"), (100, "100"), (1000, "1,000"), (10_000, "10,000")] {
        // perftest's buffer is as large as a message for each queue pair, twice.
        let (size, label) = if pairs > 1000 { (4096, "4 KiB") } else { (65_536, "64 KiB") };
        let measure = format!("WRITE {label}, {name} queue pairs");
        rows.push(
            Row::new(measure, path, Unit::GigabytesPerSecond, many("ib_write_bw", pairs), size)
                .against("1 queue pair", perftest("ib_write_bw", "")),
        );
    }
    for (size, label) in [(8, "8 B"), (65_536, "64 KiB")] {
        let mut row = bandwidth("WRITE", "ib_write_bw", path, size, label);
        row.measure += ", 4 pairs of processes";
        row.ours.processes = 4;
        row.rivals.iter_mut().for_each(|rival| rival.spec.processes = 4);
        rows.push(row);
    }
}

/// Other libraries for the same purpose.
fn libraries(rows: &mut Vec<Row>, path: Path) {
    let host = path == Path::Host;
    let (tls, ucx) = if host { ("shm", "UCX, shared memory") } else { ("tcp", "UCX, tcp") };
    let (provider, kind, libfabric) =
        if host { ("shm", "rdm", "libfabric, shm") } else { ("tcp", "msg", "libfabric, tcp") };
    for (size, label) in [(8, "8 B"), (65_536, "64 KiB"), (1 << 20, "1 MiB")] {
        let unit = if size < 4096 { Unit::Messages } else { Unit::GigabytesPerSecond };
        rows.push(
            Row::new(format!("SEND {label}, beside UCX"), path, unit, perftest("ib_send_bw", ""), size)
                .against(ucx, Program::Ucx("tag_bw", tls)),
        );
    }
    for (size, label) in [(8, "8 B"), (65_536, "64 KiB")] {
        let measure = format!("SEND {label}, latency, beside other libraries");
        rows.push(
            Row::new(measure, path, Unit::Microseconds, perftest("ib_send_lat", ""), size)
                .against(ucx, Program::Ucx("tag_lat", tls))
                .against(libfabric, Program::Libfabric(provider, kind)),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wide_table_has_every_dimension() {
        let names: Vec<String> = all().iter().map(Row::name).collect();
        for part in [
            "wire: READ 2 B",
            "same host: SEND 8 MiB",
            "UD SEND",
            "UC WRITE",
            "FETCH_AND_ADD",
            "10,000",
            "4 pairs",
            "IPv6",
            "cut: READ",
            "libraries",
        ] {
            assert!(names.iter().any(|name| name.contains(part)), "{part}");
        }
        assert!(names.len() > 100);
    }
}
