//! `cargo xtask bench --guest`: the same perftest commands on the kernel's rxe and on ferroce, both ends in the
//! guest. Emulated, so only the ratios say something.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;

use super::args::BenchArgs;
use super::guest::{HOST, Stacks};
use super::spec::{Figures, perftest};
use super::table::short;
use ferroce_harness::dist::Dist;
use ferroce_harness::figures::{machine, median, replaced, today};
use ferroce_harness::tree;

const TITLE: &str = "## Beside the kernel's rxe";
/// For one pair of programs in an emulated machine.
const LIMIT: Duration = Duration::from_secs(60);
/// perftest's measurement of the processor's clock may fail under emulation.
const TRIES: u32 = 3;
/// perftest's default port, and as /proc/net/tcp writes it.
const PORT: (u16, &str) = (18_515, "4853");

/// Measure, program, message size, messages, whether it is latency.
const ROWS: [(&str, &str, u64, u32, bool); 8] = [
    ("WRITE 64 KiB", "ib_write_bw", 65_536, 500, false),
    ("SEND 64 KiB", "ib_send_bw", 65_536, 500, false),
    ("READ 64 KiB", "ib_read_bw", 65_536, 500, false),
    ("WRITE 4 KiB", "ib_write_bw", 4096, 6000, false),
    ("WRITE 8 B", "ib_write_bw", 8, 20_000, false),
    ("SEND 8 B, half round trip", "ib_send_lat", 8, 2000, true),
    ("WRITE 8 B, half round trip", "ib_write_lat", 8, 2000, true),
    ("READ 8 B", "ib_read_lat", 8, 2000, true),
];

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Stack {
    Rxe,
    /// As programs get it.
    Ours,
    /// Over UDP sockets, although both ends are on one host.
    Wire,
}

const STACKS: [Stack; 3] = [Stack::Rxe, Stack::Wire, Stack::Ours];

/// Values in the row's unit by row and stack.
type Samples = BTreeMap<(usize, Stack), Vec<f64>>;

/// Measures, prints, and with `--save` writes the section of docs/BENCHMARKS.md; true when every run ended well.
pub fn run(args: &BenchArgs) -> Result<bool> {
    let dist = match &args.dist {
        Some(folder) => Dist::at(folder),
        None => Dist::build()?,
    };
    let stacks = Stacks::up(&dist, None)?;
    stacks.mtu(args.mtu)?;
    let (mut samples, mut failures) = (Samples::new(), 0);
    for round in 0..args.rounds {
        for stack in STACKS {
            eprintln!("round {} of {}: {stack:?}", round + 1, args.rounds);
            stacks.choose(stack != Stack::Rxe)?;
            for (number, row) in ROWS.iter().enumerate() {
                match once(&stacks, stack, row, args)? {
                    Some(value) => samples.entry((number, stack)).or_default().push(value),
                    None => failures += 1,
                }
            }
        }
    }
    let text = report(args, &mut samples)?;
    print!("{text}");
    if args.save {
        let path = tree::root().join("docs/BENCHMARKS.md");
        std::fs::write(&path, replaced(&std::fs::read_to_string(&path)?, &title(args), &text))?;
    }
    println!("{failures} runs failed");
    Ok(failures == 0)
}

/// The line of the section for this MTU.
fn title(args: &BenchArgs) -> String {
    format!("{TITLE}, MTU {}\n", args.mtu)
}

/// One run, in MiB/s, thousand messages a second, or microseconds.
fn once(
    stacks: &Stacks,
    stack: Stack,
    row: &(&str, &str, u64, u32, bool),
    args: &BenchArgs,
) -> Result<Option<f64>> {
    let (name, program, size, count, latency) = *row;
    let count = if args.quick { count / 10 } else { count };
    let path_mtu = if args.mtu < 4200 { 1024 } else { 4096 };
    let (front, device, host) = match stack {
        Stack::Rxe => (String::new(), "rxe0", HOST),
        Stack::Ours => (Stacks::front("", ""), "fr0", "127.0.0.1"),
        Stack::Wire => (Stacks::front("FERROCE_DATAPATH=udp", ""), "fr0", "127.0.0.1"),
    };
    // A retransmission after the usual 67 ms would be premature in an emulated machine. GID 1 of rxe0 is its IPv4 address.
    let gid = if stack == Stack::Rxe { 1 } else { 0 };
    let (port, hex) = PORT;
    let command = format!(
        "{front}{program} -d {device} -x {gid} -m {path_mtu} -s {size} -n {count} -u 20 -F -p {port}"
    );
    let line = format!(
        "{command} >/tmp/server.log 2>&1 & server=$!; \
         for i in $(seq 100); do grep -q ':{hex} 0*:0000 0A' /proc/net/tcp /proc/net/tcp6 && break; sleep 0.1; done; \
         {command} {host}; status=$?; [ $status = 0 ] || kill $server; wait $server || cat /tmp/server.log; exit $status"
    );
    for _ in 0..TRIES {
        let ended = stacks.run(&format!("{stack:?} {name}"), &line, LIMIT)?;
        let figures = perftest(program, &ended.output, size).filter(|_| ended.ok());
        if let Some(value) = figures.and_then(|figures| value(&figures, size, latency)) {
            return Ok(Some(value));
        }
        eprintln!("  {stack:?} {name}: {}", ended.describe().replace('\n', "\n  "));
    }
    Ok(None)
}

fn value(figures: &Figures, size: u64, latency: bool) -> Option<f64> {
    let value = match (latency, size) {
        (true, _) => figures.micros?,
        (false, 0..4096) => figures.rate / 1e3,
        (false, _) => figures.rate * size as f64 / 1_048_576.0,
    };
    Some(value).filter(|value| value.is_finite() && *value > 0.0)
}

fn report(args: &BenchArgs, samples: &mut Samples) -> Result<String> {
    let mut text = format!(
        "{}\n\n\
         Made by `cargo xtask bench --guest --rounds {}{}{} --save` on {}: {}, in a guest of it (QEMU without KVM, Debian's \
         kernel 6.1).\nDebian's perftest with the same options on both, both ends in the guest, MTU {}: rxe0 on eth0, ferroce on fr0, as \
         programs get it and over UDP (*wire*). Median (least–most) of {} rounds; the ratios are those to rxe. Bandwidth must be at least twice \
         rxe's (goal four times), latency at most half (goal a quarter).\n\n\
         | measure | unit | rxe | ferroce | ratio | verdict | ferroce, wire | ratio |\n|---|---|---|---|---|---|---|---|\n",
        title(args).trim_end(),
        args.rounds,
        if args.quick { " --quick" } else { "" },
        if args.mtu == 4200 { String::new() } else { format!(" --mtu {}", args.mtu) },
        today()?,
        machine()?,
        args.mtu,
        args.rounds
    );
    for (number, (name, _, size, _, latency)) in ROWS.iter().enumerate() {
        let mut cell = |stack: Stack| {
            let values = samples.entry((number, stack)).or_default();
            let middle = median(values);
            match (values.first(), values.last()) {
                (Some(least), Some(most)) => {
                    (middle, format!("{} ({}–{})", short(middle), short(*least), short(*most)))
                }
                _ => (middle, "failed".to_owned()),
            }
        };
        let (rxe, ours, wire) = (cell(Stack::Rxe), cell(Stack::Ours), cell(Stack::Wire));
        let unit = match (latency, size) {
            (true, _) => "µs",
            (false, 0..4096) => "k messages/s",
            (false, _) => "MiB/s",
        };
        let ratio = ours.0 / rxe.0;
        let (gain, dash) = (if *latency { 1.0 / ratio } else { ratio }, "–".to_owned());
        let verdict = match gain {
            4.0.. => "goal reached",
            2.0.. => "reached",
            gain if gain.is_finite() => "**missed**",
            _ => "–",
        };
        let shown = |ratio: f64| if ratio.is_finite() { short(ratio) } else { dash.clone() };
        text += &format!(
            "| {name} | {unit} | {} | {} | {} | {verdict} | {} | {} |\n",
            rxe.1,
            ours.1,
            shown(ratio),
            wire.1,
            shown(wire.0 / rxe.0)
        );
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_and_verdicts() {
        let mut samples = Samples::new();
        for (number, (.., latency)) in ROWS.iter().enumerate() {
            samples.insert((number, Stack::Rxe), vec![100.0]);
            samples.insert((number, Stack::Ours), vec![if *latency { 50.0 } else { 400.0 }]);
        }
        let args = BenchArgs { rounds: 1, ..BenchArgs::default() };
        let text = report(&args, &mut samples).unwrap();
        let row =
            "| WRITE 64 KiB | MiB/s | 100 (100–100) | 400 (400–400) | 4.00 | goal reached | failed | – |";
        assert!(text.contains(row), "{text}");
        assert!(
            text.contains("| READ 8 B | µs | 100 (100–100) | 50.0 (50.0–50.0) | 0.50 | reached |"),
            "{text}"
        );
    }
}
