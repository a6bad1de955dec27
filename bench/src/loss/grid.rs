//! The cells of the table: each is one operation, size and condition of the path, by one stack.

/// The length of a sample on the machine, in seconds.
pub const SECONDS: u32 = 1;
/// The length of a sample in the emulated guest, in seconds.
pub const GUEST_SECONDS: u32 = 2;

/// The state of a path. An XDP program of each end sees to it, and is there even if it loses nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Condition {
    /// Packets of a million that are lost, one by one.
    Loss(u32),
    /// One percent, eight in a row.
    Bursts,
    /// One percent is overtaken by others.
    Reordered,
}

/// Without loss first: the ratios are to it.
pub const CONDITIONS: [Condition; 8] = [
    Condition::Loss(0),
    Condition::Loss(100),
    Condition::Loss(1000),
    Condition::Loss(10_000),
    Condition::Loss(30_000),
    Condition::Loss(50_000),
    Condition::Bursts,
    Condition::Reordered,
];

/// The conditions of measures that take too long for all of them.
const FEW: [Condition; 2] = [Condition::Loss(0), Condition::Loss(10_000)];

/// The loss for which the limits hold.
pub const JUDGED: Condition = Condition::Loss(10_000);

impl Condition {
    pub fn name(self) -> String {
        match self {
            Self::Loss(per_million) => format!("{} % lost", f64::from(per_million) / 1e4),
            Self::Bursts => "1 % lost, 8 in a row".to_owned(),
            Self::Reordered => "1 % reordered".to_owned(),
        }
    }

    /// LOSS, BURST and REORDER of impair.c.
    pub fn parameters(self) -> [u32; 3] {
        match self {
            Self::Loss(per_million) => [per_million, 0, 0],
            Self::Bursts => [10_000, 8, 0],
            Self::Reordered => [0, 0, 10_000],
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    Write,
    Read,
    Send,
    /// Writes of that size on one TCP connection.
    Stream,
}

impl Operation {
    pub fn name(self) -> &'static str {
        match self {
            Self::Write => "WRITE",
            Self::Read => "READ",
            Self::Send => "SEND",
            Self::Stream => "TCP",
        }
    }

    /// The program of perftest.
    pub fn program(self) -> &'static str {
        match self {
            Self::Write => "ib_write_bw",
            Self::Read => "ib_read_bw",
            Self::Send | Self::Stream => "ib_send_bw",
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stack {
    /// ferroce at both ends, which agree to selective repeat.
    Selective,
    /// ferroce at both ends without that: the sender goes back.
    GoBack,
    /// The kernel's rxe at both ends.
    Rxe,
    /// ferroce's requester at the kernel's rxe.
    OursToRxe,
    /// The requester of the kernel's rxe at ferroce.
    RxeToOurs,
    /// TCP with the congestion control that the system has.
    Tcp,
    /// TCP with cubic.
    Cubic,
}

impl Stack {
    pub fn name(self) -> &'static str {
        match self {
            Self::Selective => "ferroce, selective repeat",
            Self::GoBack => "ferroce, go-back-N",
            Self::Rxe => "rxe",
            Self::OursToRxe => "ferroce to rxe",
            Self::RxeToOurs => "rxe to ferroce",
            Self::Tcp => "TCP",
            Self::Cubic => "TCP, cubic",
        }
    }

    pub fn is_tcp(self) -> bool {
        matches!(self, Self::Tcp | Self::Cubic)
    }
}

/// The place of both ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bed {
    /// Two network namespaces on the veth of `tests/guest/lossy-veth.sh`.
    Veth,
    /// A veth in the guest.
    Pair,
    /// The host, and that guest.
    Guest,
}

pub const BEDS: [Bed; 3] = [Bed::Veth, Bed::Pair, Bed::Guest];

impl Bed {
    pub fn name(self) -> &'static str {
        match self {
            Self::Veth => "veth",
            Self::Pair => "veth in the guest",
            Self::Guest => "host and guest",
        }
    }

    /// The columns of its table.
    pub fn stacks(self) -> &'static [Stack] {
        match self {
            Self::Veth => &[Stack::Selective, Stack::GoBack, Stack::Tcp, Stack::Cubic],
            Self::Pair => &[Stack::Selective, Stack::GoBack, Stack::Rxe, Stack::Tcp],
            Self::Guest => &[Stack::OursToRxe, Stack::RxeToOurs, Stack::Tcp],
        }
    }

    fn conditions(self, size: u64) -> &'static [Condition] {
        match (self, size) {
            (Self::Veth, _) | (Self::Pair, 65_536) => &CONDITIONS,
            _ => &FEW,
        }
    }

    fn sizes(self) -> &'static [u64] {
        if self == Self::Guest { &[65_536] } else { &[65_536, 4096, 1 << 20] }
    }

    /// Operation, size and condition of each row of its table.
    pub fn rows(self) -> Vec<(Operation, u64, Condition)> {
        let mut rows = Vec::new();
        for size in self.sizes() {
            for operation in [Operation::Write, Operation::Read, Operation::Send] {
                rows.extend(self.conditions(*size).iter().map(|condition| (operation, *size, *condition)));
            }
        }
        rows
    }

    /// All cells in the order of a round. In the guest, only one of rxe and ferroce can be there, so each does all of its own in turn.
    pub fn cells(self) -> Vec<Cell> {
        let mut cells: Vec<Cell> = Vec::new();
        let rows = self.rows();
        let mut add = |stack: Stack, (operation, size, condition): (Operation, u64, Condition)| {
            let operation = if stack.is_tcp() { Operation::Stream } else { operation };
            let cell = Cell { bed: self, operation, size, condition, stack };
            if !cells.contains(&cell) {
                cells.push(cell);
            }
        };
        match self {
            Self::Veth => {
                rows.iter().for_each(|row| self.stacks().iter().for_each(|stack| add(*stack, *row)))
            }
            _ => self.stacks().iter().for_each(|stack| rows.iter().for_each(|row| add(*stack, *row))),
        }
        cells
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cell {
    pub bed: Bed,
    pub operation: Operation,
    /// Octets of a message.
    pub size: u64,
    pub condition: Condition,
    pub stack: Stack,
}

impl Cell {
    /// The name for filters, logs and stored samples.
    pub fn name(&self) -> String {
        let (bed, stack) = (self.bed.name(), self.stack.name());
        format!("{bed}: {} {}: {}: {stack}", self.operation.name(), size(self.size), self.condition.name())
    }

    /// Octets a second in the output of the client.
    pub fn rate(&self, output: &str) -> Option<f64> {
        let after = |name: &str| -> Option<f64> {
            output.split_whitespace().skip_while(|word| *word != name).nth(1)?.parse().ok()
        };
        let size = self.size as f64;
        if self.stack.is_tcp() {
            return Some(after("messages")? / after("seconds")? * size);
        }
        // perftest's own rate depends on its measurement of the processor's clock, which fails under emulation.
        let row =
            output.lines().find(|line| line.split_whitespace().next() == Some(&self.size.to_string()))?;
        let messages: f64 = row.split_whitespace().nth(1)?.parse().ok()?;
        let seconds = if self.bed == Bed::Veth { SECONDS } else { GUEST_SECONDS };
        Some(messages * size / f64::from(seconds))
    }
}

/// `4 KiB`.
pub fn size(octets: u64) -> String {
    if octets < 1 << 20 { format!("{} KiB", octets >> 10) } else { format!("{} MiB", octets >> 20) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_a_cell_of_every_stack_and_one_without_loss() {
        for bed in BEDS {
            let cells = bed.cells();
            for (operation, size, condition) in bed.rows() {
                for stack in bed.stacks() {
                    let operation = if stack.is_tcp() { Operation::Stream } else { operation };
                    for condition in [condition, Condition::Loss(0), JUDGED] {
                        let cell = Cell { bed, operation, size, condition, stack: *stack };
                        assert_eq!(
                            cells.iter().filter(|other| **other == cell).count(),
                            1,
                            "{}",
                            cell.name()
                        );
                    }
                }
            }
        }
        assert_eq!(BEDS.map(|bed| bed.rows().len()), [72, 36, 6]);
    }

    #[test]
    fn rates_are_of_the_messages_in_the_time() {
        let cell = |tcp: bool| Bed::Veth.cells().into_iter().find(|cell| cell.stack.is_tcp() == tcp).unwrap();
        let table = " #bytes  #iterations  BW peak\n 65536  2000  0.00  0.00  0.00\n----\n";
        assert_eq!(cell(false).rate(table), Some(131_072_000.0));
        assert_eq!(cell(true).rate("seconds 0.5 gap 3 messages 100\n"), Some(13_107_200.0));
        assert_eq!(cell(true).rate("no"), None);
    }
}
