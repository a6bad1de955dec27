//! The tables.

use anyhow::Result;

use super::grid::{BEDS, Bed, Cell, Condition, GUEST_SECONDS, JUDGED, Operation, SECONDS, Stack, size};
use super::store::Store;
use crate::args::BenchArgs;
use crate::table::short;
use ferroce_harness::figures::{machine, median, today};

/// The heading in docs/BENCHMARKS.md.
pub const TITLE: &str = "## Lost packets";

/// A limit: the stack, what its median at 1 % of a WRITE of 64 KiB is divided by, and the least ratio.
type Limit = (Bed, Stack, Divisor, f64);

#[derive(Clone, Copy)]
enum Divisor {
    OwnLossless,
    Other(Stack),
}

const LIMITS: [Limit; 4] = [
    (Bed::Veth, Stack::Selective, Divisor::OwnLossless, 0.85),
    (Bed::Veth, Stack::Selective, Divisor::Other(Stack::Tcp), 1.0),
    (Bed::Guest, Stack::OursToRxe, Divisor::OwnLossless, 0.3),
    (Bed::Guest, Stack::RxeToOurs, Divisor::OwnLossless, 0.3),
];

/// The section of the documents.
pub fn report(args: &BenchArgs, store: &Store) -> Result<String> {
    let control = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").unwrap_or_default();
    let mut text = format!(
        "{TITLE}\n\n\
         Made by `{}`{} on {}: {}.\n\
         Goodput in MB/s: the median (least–most) of {} samples, of {SECONDS} s on the machine and {GUEST_SECONDS} s in the guest. The number behind \
         it is the ratio to the same stack's goodput without loss. All are Debian's unmodified perftest on one queue pair, or one TCP \
         connection with TCP_NODELAY, whose receiver checks what it gets; TCP does the same work for WRITE, READ and SEND, so its \
         figures are repeated. An XDP program at each end of the path drops packets in both directions. Bursts \
         are of 8 packets in a row, and end after 1 ms. A reordered packet takes the way back to the sender and comes once more. The \
         program is there without loss as well; it switches segmentation offload off, and checksum offload is off, too.\n\n\
         Limits for WRITE of 64 KiB with 1 % lost:\n\n{}",
        args.line(),
        args.other_build(),
        today()?,
        machine()?,
        args.rounds,
        limits(store)
    );
    let mut missing = Vec::new();
    for bed in BEDS {
        let about = match bed {
            Bed::Veth => format!(
                "Both ends in network namespaces of the machine, MTU 1500. Connected by `-R`. *TCP* has the system's congestion control, {}.",
                control.trim()
            ),
            Bed::Pair => "Both ends in a guest (QEMU without KVM, Debian's kernel 6.1, TCP cubic), MTU 1500, where everything is slow. \
                 The same options for rxe and ferroce: 16 requests in flight (`-t 16 -u 14`; for 1 MiB `-t 4 -u 17`)."
                .to_owned(),
            Bed::Guest => "ferroce on the machine and rxe in that guest. The receiver of rxe holds nothing that comes too early, so the \
                           sender goes back. *TCP* sends from the machine to the guest."
                .to_owned(),
        };
        text += &format!("\n### On the path: {}\n\n{about}\n\n{}", bed.name(), table(bed, store));
        for cell in bed.cells() {
            let samples = store.of(&cell);
            if samples.failures > 0 {
                let why = samples.why.lines().next().unwrap_or_default();
                missing.push(format!(
                    "- {}: {} of {}: {why}\n",
                    cell.name(),
                    samples.failures,
                    samples.runs()
                ));
            }
        }
    }
    if !missing.is_empty() {
        text += &format!("\nRuns without a result:\n\n{}", missing.concat());
    }
    Ok(text)
}

fn table(bed: Bed, store: &Store) -> String {
    let stacks = bed.stacks();
    let names: String = stacks.iter().map(|stack| format!(" {} | ÷ lossless |", stack.name())).collect();
    let mut text = format!("| measure | path |{names}\n|---|---|{}\n", "---|---|".repeat(stacks.len()));
    for (operation, octets, condition) in bed.rows() {
        let of = |stack: &Stack| cell(bed, *stack, operation, octets, condition);
        // Rows that no filter chose.
        if stacks.iter().all(|stack| store.of(&of(stack)).runs() == 0) {
            continue;
        }
        text += &format!("| {} {} | {} |", operation.name(), size(octets), condition.name());
        for stack in stacks {
            let cell = of(stack);
            let ratio = divided(store, &cell, &Cell { condition: Condition::Loss(0), ..cell });
            let ratio = ratio.filter(|_| condition != Condition::Loss(0));
            text += &format!(" {} | {} |", shown(store, &cell), ratio.map_or_else(|| "–".to_owned(), short));
        }
        text.push('\n');
    }
    text
}

fn cell(bed: Bed, stack: Stack, operation: Operation, size: u64, condition: Condition) -> Cell {
    let operation = if stack.is_tcp() { Operation::Stream } else { operation };
    Cell { bed, operation, size, condition, stack }
}

/// Megabytes a second.
fn middle(store: &Store, cell: &Cell) -> Option<f64> {
    let mut values = store.of(cell).values;
    Some(median(&mut values) / 1e6).filter(|value| value.is_finite())
}

fn divided(store: &Store, cell: &Cell, by: &Cell) -> Option<f64> {
    let (value, by) = (middle(store, cell)?, middle(store, by)?);
    Some(value / by).filter(|ratio| ratio.is_finite())
}

fn shown(store: &Store, cell: &Cell) -> String {
    let samples = store.of(cell);
    let (least, most) =
        (samples.values.iter().copied().reduce(f64::min), samples.values.iter().copied().reduce(f64::max));
    match (middle(store, cell), least, most) {
        (Some(value), Some(least), Some(most)) => {
            format!("{} ({}–{})", short(value), short(least / 1e6), short(most / 1e6))
        }
        _ if samples.failures > 0 => "failed".to_owned(),
        _ => "not measured".to_owned(),
    }
}

/// A line for each limit.
fn limits(store: &Store) -> String {
    let mut text =
        "| path | stack | ratio | must be at least | is | |\n|---|---|---|---|---|---|\n".to_owned();
    for (bed, stack, divisor, least) in LIMITS {
        let ours = cell(bed, stack, Operation::Write, 65_536, JUDGED);
        let (by, name) = match divisor {
            Divisor::OwnLossless => (Cell { condition: Condition::Loss(0), ..ours }, "without loss"),
            Divisor::Other(other) => (cell(bed, other, Operation::Write, 65_536, JUDGED), other.name()),
        };
        let ratio = divided(store, &ours, &by);
        let verdict = ratio.map_or("–", |ratio| if ratio >= least { "reached" } else { "**missed**" });
        let ratio = ratio.map_or_else(|| "not measured".to_owned(), short);
        text +=
            &format!("| {} | {} | to {name} | {least} | {ratio} | {verdict} |\n", bed.name(), stack.name());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_to_the_own_goodput_without_loss_and_limits_are_judged() {
        let file = std::env::temp_dir().join(format!("ferroce-loss-report-{}", std::process::id()));
        let mut store = Store::open(file.clone(), String::new(), true);
        let mut add = |stack, condition, values: &[f64]| {
            let cell = cell(Bed::Veth, stack, Operation::Write, 65_536, condition);
            values.iter().for_each(|value| store.add(&cell, Ok(value * 1e6)).unwrap());
        };
        add(Stack::Selective, Condition::Loss(0), &[100.0]);
        add(Stack::Selective, JUDGED, &[95.0, 90.0, 20.0]);
        add(Stack::Tcp, JUDGED, &[200.0]);
        let text = report(&BenchArgs { loss: true, ..BenchArgs::default() }, &store).unwrap();
        std::fs::remove_file(file).unwrap();
        for wanted in [
            "| WRITE 64 KiB | 1 % lost | 90.0 (20.0–95.0) | 0.90 | not measured | – | 200 (200–200) | – |",
            "| veth | ferroce, selective repeat | to without loss | 0.85 | 0.90 | reached |",
            "| veth | ferroce, selective repeat | to TCP | 1 | 0.45 | **missed** |",
        ] {
            assert!(text.contains(wanted), "{wanted} is not in {text}");
        }
    }
}
