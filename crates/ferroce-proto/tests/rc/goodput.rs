//! Goodput by loss and message size: a lost optimisation shows as a changed number.

use std::fmt::Write;
use std::time::Duration;

use ferroce_proto::{RecvWr, Remote, SelectiveRepeat, SendOp, SendWr, Sge};
use ferroce_sim::{Link, Rng, rules};
use ferroce_wire::{Lkey, PathMtu, Rkey};

use crate::ram::Ram;
use crate::snapshot;
use crate::world::{Setup, World};

const KEY: u32 = 1;
const LARGEST: u32 = 1 << 20;
/// 25 Gbit/s.
const LINK: Link = Link { octets_per_second: 25_000_000_000 / 8, queue: Duration::from_micros(500) };
const DEPTH: u64 = 32;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Send,
    Write,
    Read,
}

/// Megabytes of payload a second, one direction, 4096-octet packets.
fn goodput(kind: Kind, size: u32, loss: u32, rcvbuf: usize, selective_repeat: SelectiveRepeat) -> u64 {
    let setup = Setup { mtu: PathMtu::B4096, rcvbuf, min_rnr_timer: 1, selective_repeat, ..Setup::default() };
    let memory = || {
        let mut ram = Ram::default();
        ram.register(KEY, 0, vec![0; LARGEST as usize]);
        ram
    };
    let mut world = World::connected(&setup, [memory(), memory()]);
    world.quiet = true;
    world.network.set_link(LINK);
    world.network.rule(rules::loss(Rng::new(9), loss));
    let total = (8 << 20) / u64::from(size).max(4096);
    let sges = [Sge { addr: 0, length: size, lkey: Lkey::new(KEY) }];
    let remote = Remote { addr: 0, rkey: Rkey::new(KEY) };
    let op = match kind {
        Kind::Send => SendOp::Send,
        Kind::Write => SendOp::Write { remote },
        Kind::Read => SendOp::Read { remote },
    };
    let (mut posted, mut completed, mut receives) = (0, 0, 0);
    while completed < total {
        while kind == Kind::Send && receives < total && receives - completed < 2 * DEPTH {
            world.ends[1].qp.post_recv(&RecvWr { wr_id: receives, sges: &sges }).unwrap();
            receives += 1;
        }
        while posted < total && posted - completed < DEPTH {
            let wr = SendWr::signaled(posted, op, &sges);
            let end = &mut world.ends[0];
            end.qp.post_send(&wr, &end.mem).unwrap();
            posted += 1;
        }
        world.drain(0);
        assert!(world.step());
        completed += world.ends[0].sends.drain(..).len() as u64;
        world.ends[1].recvs.clear();
    }
    total * u64::from(size) * 1000 / world.now.as_nanos()
}

#[test]
fn goodput_by_loss_and_size() {
    snapshot::check("goodput.txt", &table(SelectiveRepeat::Off));
}

#[test]
fn goodput_with_selective_repeat() {
    snapshot::check("goodput_selective.txt", &table(SelectiveRepeat::Agreed));
}

fn table(selective_repeat: SelectiveRepeat) -> String {
    let losses = [0, 1_000, 10_000, 50_000, 100_000];
    let mut table = String::new();
    let mut at = |text: std::fmt::Arguments<'_>| writeln!(table, "{text}").unwrap();
    at(format_args!(
        "Simulated: 25 Gbit/s, 20 us round trip, path MTU 4096, one queue pair, MB/s of payload."
    ));
    for rcvbuf in [208 << 10, 4 << 20] {
        at(format_args!("\nreceive buffer {} KiB", rcvbuf >> 10));
        at(format_args!(
            "{:>6} {:>8} {:>6} {:>6} {:>6} {:>6} {:>6}",
            "", "octets", "0 %", "0.1 %", "1 %", "5 %", "10 %"
        ));
        for kind in [Kind::Send, Kind::Write, Kind::Read] {
            for size in [64, 4096, 65536, LARGEST] {
                let row =
                    losses.map(|loss| format!("{:>6}", goodput(kind, size, loss, rcvbuf, selective_repeat)));
                at(format_args!("{:>6} {size:>8} {}", format!("{kind:?}"), row.join(" ")));
            }
        }
    }
    table
}

/// Half of the goodput must remain at 1 % loss.
#[test]
fn a_hundredth_lost_costs_less_than_half() {
    let [without, with] =
        [0, 10_000].map(|loss| goodput(Kind::Write, 65536, loss, 4 << 20, SelectiveRepeat::Off));
    assert!(with * 2 >= without, "{with} of {without} MB/s");
}

/// With selective repeat nine tenths remain.
#[test]
fn a_hundredth_lost_costs_a_tenth_where_only_that_is_sent_again() {
    for kind in [Kind::Send, Kind::Write] {
        let [without, with] =
            [0, 10_000].map(|loss| goodput(kind, 65536, loss, 4 << 20, SelectiveRepeat::Agreed));
        assert!(with * 10 >= without * 9, "{kind:?}: {with} of {without} MB/s");
    }
}
