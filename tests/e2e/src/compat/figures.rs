//! The figures that programs print.

/// A figure, and how to find it in a client's output.
#[derive(Clone, Copy)]
pub struct Figure {
    /// `MB/s` or `µs`.
    pub unit: &'static str,
    /// Whether more is better.
    pub more: bool,
    /// In that unit; `None` if the output has none.
    pub read: fn(&str) -> Option<f64>,
}

const fn rate(read: fn(&str) -> Option<f64>) -> Figure {
    Figure { unit: "MB/s", more: true, read }
}

const fn latency(read: fn(&str) -> Option<f64>) -> Figure {
    Figure { unit: "µs", more: false, read }
}

/// perftest's average bandwidth, which it prints in MiB/s as "MB/sec".
pub const fn perftest() -> Figure {
    rate(|text| {
        let row = text.lines().skip_while(|line| !line.contains("#bytes")).nth(1)?;
        Some(column(row, 3)? * 1.048_576)
    })
}

/// perftest's median latency, "t_typical"; over a time it prints an average alone.
pub const fn perftest_latency() -> Figure {
    latency(|text| {
        let row = text.lines().skip_while(|line| !line.contains("#bytes")).nth(1)?;
        column(row, 4)
    })
}

/// `rate 1234.5 MB/s` of the program `mpi.c`.
pub const fn mpi_rate() -> Figure {
    rate(|text| text.lines().find_map(|line| line.strip_prefix("rate ")?.strip_suffix(" MB/s")?.parse().ok()))
}

/// `latency 12.3 us` of the program `mpi.c`.
pub const fn mpi_latency() -> Figure {
    latency(|text| {
        text.lines().find_map(|line| line.strip_prefix("latency ")?.strip_suffix(" us")?.parse().ok())
    })
}

/// `write 1234.5 MB/s` of the script `ends.py`.
pub const fn mover_write() -> Figure {
    rate(|text| moved(text, "write "))
}

/// `read 1234.5 MB/s` of it.
pub const fn mover_read() -> Figure {
    rate(|text| moved(text, "read "))
}

fn moved(text: &str, operation: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix(operation)?.strip_suffix(" MB/s")?.parse().ok())
}

/// iperf's `[  1] 0.0000-2.0134 sec  5.22 GBytes  22.3 Gbits/sec`.
pub const fn iperf() -> Figure {
    rate(|text| {
        let line = text.lines().rfind(|line| line.ends_with("bits/sec"))?;
        let mut words = line.split_whitespace().rev();
        let (unit, number) = (words.next()?, words.next()?);
        let scale = match unit.strip_suffix("bits/sec")? {
            "K" => 0.001,
            "M" => 1.0,
            "G" => 1000.0,
            _ => return None,
        };
        Some(number.parse::<f64>().ok()? * scale / 8.0)
    })
}

/// fio's `WRITE: bw=913MiB/s (957MB/s), …`, or READ.
pub const fn fio() -> Figure {
    rate(|text| {
        let line = text.lines().find(|line| line.contains(": bw="))?;
        let inside = line.split_once('(')?.1.split_once(')')?.0;
        with_unit(inside.trim_end_matches("/s"))
    })
}

/// qperf's `bw  =  3.2 GB/sec`.
pub const fn qperf_rate() -> Figure {
    rate(|text| {
        let value = after(text, "bw")?;
        with_unit(&value.replace(' ', "").replace("/sec", ""))
    })
}

/// qperf's `latency  =  5.3 us`.
pub const fn qperf_latency() -> Figure {
    latency(|text| {
        let value = after(text, "latency")?;
        let (number, unit) = value.split_once(' ')?;
        let scale = match unit.trim() {
            "ns" => 0.001,
            "us" => 1.0,
            "ms" => 1000.0,
            _ => return None,
        };
        Some(number.parse::<f64>().ok()? * scale)
    })
}

/// The overall bandwidth of ucx_perftest's last row, in MiB/s as "MB/s".
pub const fn ucx_rate() -> Figure {
    rate(|text| Some(column(last_row(text)?, 5)? * 1.048_576))
}

/// Its overall latency.
pub const fn ucx_latency() -> Figure {
    latency(|text| column(last_row(text)?, 3))
}

/// The MB/sec of fi_pingpong's last row.
pub const fn libfabric() -> Figure {
    rate(|text| column(last_row(text)?, 5))
}

/// The text behind `name  =`.
fn after<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (left, right) = line.split_once('=')?;
        (left.trim() == name).then(|| right.trim())
    })
}

/// The last line that begins with a digit.
fn last_row(text: &str) -> Option<&str> {
    text.lines().map(str::trim).rfind(|line| line.starts_with(|c: char| c.is_ascii_digit()))
}

/// A column, counted from 0.
fn column(row: &str, index: usize) -> Option<f64> {
    row.split_whitespace().nth(index)?.parse().ok()
}

/// `957MB` in MB.
fn with_unit(text: &str) -> Option<f64> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, unit) = text.split_at(digits);
    let scale = match unit.trim() {
        "kB" | "KB" => 0.001,
        "MB" => 1.0,
        "GB" => 1000.0,
        "Mbit" => 0.125,
        "Gbit" => 125.0,
        _ => return None,
    };
    Some(number.parse::<f64>().ok()? * scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_are_read() {
        let read = |figure: Figure, text: &str| (figure.read)(text).unwrap();
        let bw = " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n 65536      5000             0.00               1000.00            0.06\n";
        assert!((read(perftest(), bw) - 1048.576).abs() < 0.01);
        let lag = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]\n 8       2000          1.10           90.20        1.30     \t       1.50        \t2.00\n";
        assert_eq!(read(perftest_latency(), lag), 1.30);
        let mpi = "latency 14.92 us\nrate 972.1 MB/s\n2 ranks, data ok\n";
        let mover = "write 680.0 MB/s\nread 777.9 MB/s\ndata ok\n";
        assert_eq!((read(mover_write(), mover), read(mover_read(), mover)), (680.0, 777.9));
        assert_eq!(read(iperf(), "[  1] 0.0000-2.0134 sec  5.22 GBytes  22.4 Gbits/sec\n"), 2800.0);
        assert_eq!((read(mpi_latency(), mpi), read(mpi_rate(), mpi)), (14.92, 972.1));
        assert_eq!(
            read(fio(), "  WRITE: bw=913MiB/s (957MB/s), 913MiB/s-913MiB/s (957MB/s-957MB/s), io=512MiB"),
            957.0
        );
        assert_eq!(read(fio(), "   READ: bw=1.2GiB/s (1.3GB/s), x"), 1300.0);
        assert_eq!(read(fio(), "  WRITE: bw=11.0Gibit/s (11.8Gbit/s), x"), 1475.0);
        assert_eq!(read(qperf_rate(), "rc_bw:\n    bw  =  3.2 GB/sec\n"), 3200.0);
        assert_eq!(read(qperf_latency(), "rc_lat:\n    latency  =  5.25 us\n"), 5.25);
        let ucx = "|     Test     | # iterations |\n                         500      1.461   617.060   617.060     1545.51    1545.51        1621        1621\n";
        assert!((read(ucx_rate(), ucx) - 1545.51 * 1.048_576).abs() < 0.01);
        assert_eq!(read(ucx_latency(), ucx), 617.06);
        let fabric = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n64k     200     =200     25m         0.06s    439.08     149.26       0.01\n";
        assert_eq!(read(libfabric(), fabric), 439.08);
        assert!((fio().read)("no figure").is_none());
    }
}
