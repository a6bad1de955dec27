use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ferroce_ipc::ledger::records::{Block, QpProgress, QpPsns};
use ferroce_ipc::ledger::{DeviceCounters, Entry, Ledger, LedgerReader, Table};

use super::*;
use crate::gsi::Traffic;
use crate::logic::ledgers::MOST_ENDED;

/// A program that counts.
struct Program {
    ledger: Arc<Ledger>,
    file: OwnedFd,
    block: usize,
}

impl Program {
    fn new(slot: u16) -> Self {
        let (ledger, file) = Ledger::create(slot).unwrap();
        let block = ledger.block_of(0, "fr0");
        Self { ledger: Arc::new(ledger), file: file.unwrap(), block }
    }

    fn hands_over(&self, bench: &mut Bench, client: u64) {
        let sent = bench.say(client, Message::Ledger, vec![self.file.try_clone().unwrap()]);
        assert!(sent.is_empty(), "nobody waits for an answer: {sent:?}");
    }

    fn receives(&self, count: u64) {
        DeviceCounters::add(&self.ledger.device(self.block).rcvd_pkts, count);
    }

    /// A queue pair that sent one packet.
    fn queue_pair(&self) -> Entry {
        let entry = self.ledger.record(Table::Qp);
        let progress = QpProgress {
            block: Block::new(self.block),
            service: 2,
            state: 3,
            qpn: 0,
            remote_qpn: 0,
            psns: QpPsns { rq_psn: 0, sq_psn: 0 },
        };
        entry.put_queue_pair(progress, |counters| counters[11].store(1, Ordering::Relaxed));
        entry
    }
}

impl Bench {
    fn statistic(&mut self, client: u64, name: &str) -> u64 {
        match self.say(client, Message::GetStatistics("fr0".to_owned()), vec![]).pop() {
            Some((5, Message::Statistics(counters), _)) => {
                counters.into_iter().find(|(known, _)| known == name).unwrap().1
            }
            other => panic!("{other:?}"),
        }
    }

    /// A client that leases a slot and hands over its ledger, the program's process id being 100 more.
    fn with_ledger(&mut self, client: u64) -> Program {
        self.connect(client, 100 + client as u32);
        let (slots, ..) = self.lease(client, 1).unwrap();
        let program = Program::new(u16::from(slots[0]) * 16);
        program.hands_over(self, client);
        program
    }
}

#[test]
fn what_programs_count_is_summed() {
    let mut bench = Bench::loopback();
    let (a, b) = (bench.with_ledger(1), bench.with_ledger(2));
    a.receives(3);
    b.receives(4);
    let _entry = b.queue_pair();
    // Somebody who only asks.
    bench.connect(9, 200);
    assert_eq!(bench.statistic(9, "rcvd_pkts"), 7);
    assert_eq!(bench.statistic(9, "resent_pkts"), 1);
    a.receives(1);
    assert_eq!(bench.statistic(9, "rcvd_pkts"), 8, "without a word of the program");
    let Message::Refused(refusal) =
        bench.say(9, Message::GetStatistics("fr7".to_owned()), vec![]).remove(0).1
    else {
        panic!("there is no fr7")
    };
    assert_eq!(refusal.code, RefusalCode::UnknownLink);
}

#[test]
fn what_a_program_counted_outlives_it() {
    let mut bench = Bench::loopback();
    let (a, b) = (bench.with_ledger(1), bench.with_ledger(2));
    bench.connect(9, 200);
    let _entry = a.queue_pair();
    a.receives(3);
    b.receives(4);
    // Its connection ends before its process does, and once more the sum is asked for in between.
    bench.broker.disconnected(bench.now, ClientId(1));
    assert_eq!(bench.statistic(9, "rcvd_pkts"), 7);
    bench.broker.died(bench.now, ProcessId(101));
    assert_eq!(bench.statistic(9, "rcvd_pkts"), 7);
    assert_eq!(bench.statistic(9, "resent_pkts"), 1);
    // The other is killed, and nobody hears of its connection before.
    bench.broker.died(bench.now, ProcessId(102));
    assert_eq!(bench.statistic(9, "rcvd_pkts"), 7);
    assert!(bench.broker.ledgers.count_away() == 0);
}

#[test]
fn the_ledgers_of_the_last_programs_that_ended_are_kept() {
    let mut bench = Bench::loopback();
    bench.connect(99, 200);
    let told = |bench: &mut Bench| -> Vec<u32> {
        let sent = bench.say(99, Message::GetEndedLedgers, vec![]);
        let pid = |message: &Message| match message {
            Message::LedgerOf(program) => Some(program.pid),
            _ => None,
        };
        sent.iter().filter_map(|(_, message, _)| pid(message)).collect()
    };
    for client in 1..=MOST_ENDED as u64 + 3 {
        let program = bench.with_ledger(client);
        let _entry = program.queue_pair();
        assert!(!told(&mut bench).contains(&(100 + client as u32)), "it runs");
        bench.broker.disconnected(bench.now, ClientId(client));
        bench.broker.died(bench.now, ProcessId(100 + client));
    }
    let last: Vec<u32> = (104..=103 + MOST_ENDED as u32).collect();
    assert_eq!(told(&mut bench), last);
    assert!(matches!(bench.say(99, Message::GetLedgers, vec![])[0].1, Message::Ledgers(0)));
}

#[test]
fn a_program_that_comes_back_counts_once() {
    let mut bench = Bench::loopback();
    bench.connect(1, 101);
    let (slots, _, parked) = bench.lease(1, 1).unwrap();
    let program = Program::new(u16::from(slots[0]) * 16);
    program.hands_over(&mut bench, 1);
    program.receives(5);
    bench.broker.disconnected(bench.now, ClientId(1));
    bench.connect(2, 101);
    assert_eq!(bench.resume(2, &slots, &parked).unwrap(), slots);
    program.hands_over(&mut bench, 2);
    bench.connect(9, 200);
    assert_eq!(bench.statistic(9, "rcvd_pkts"), 5);
    assert!(bench.broker.ledgers.count_away() == 0);
}

#[test]
fn the_ledgers_of_all_programs_are_handed_out() {
    let mut bench = Bench::loopback();
    let _programs = (bench.with_ledger(1), bench.with_ledger(2));
    // No ledger at all: a program that has none is not listed.
    bench.connect(3, 103);
    bench.lease(3, 1).unwrap();
    bench.connect(9, 200);
    let sent = bench.say(9, Message::GetLedgers, vec![]);
    assert_eq!(sent[0].1, Message::Ledgers(2));
    let pids: Vec<u32> = sent[1..]
        .iter()
        .map(|(id, message, files)| match message {
            Message::LedgerOf(program) => {
                assert_eq!((*id, files.len()), (5, 1));
                LedgerReader::new(files[0].try_clone().unwrap()).unwrap();
                program.pid
            }
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(pids, [101, 102]);
}

#[test]
fn packets_of_queue_pair_1_count_for_their_device() {
    let mut bench = Bench::loopback();
    let program = bench.with_ledger(1);
    program.receives(3);
    let traffic = Traffic { rcvd_pkts: 2, sent_octets: 300, ..Traffic::default() };
    for (ip, scope_id) in [("127.0.0.1", 0), ("10.9.9.9", 0)] {
        bench.broker.mads_passed(Address { ip: ip.parse().unwrap(), scope_id }, &traffic);
    }
    assert_eq!(bench.statistic(1, "rcvd_pkts"), 5);
    assert_eq!(bench.statistic(1, "sent_octets"), 300);
}

#[test]
fn what_is_no_ledger_counts_nothing() {
    let mut bench = Bench::loopback();
    bench.connect(1, 101);
    bench.lease(1, 1).unwrap();
    for file in ["/dev/zero", "/proc/self/maps"] {
        assert!(bench.say(1, Message::Ledger, vec![File::open(file).unwrap().into()]).is_empty());
    }
    assert_eq!(bench.statistic(1, "rcvd_pkts"), 0);
    assert!(matches!(bench.say(1, Message::GetLedgers, vec![])[0].1, Message::Ledgers(0)));
}

#[test]
fn dropped_frames_count_for_the_device_of_their_interface() {
    let mut bench = Bench::loopback();
    bench.connect(9, 200);
    assert_eq!(bench.statistic(9, "frame_forged_source"), 0);
    let ifindex = bench.broker.links.devices.all().next().unwrap().ifindex;
    let mut drops = crate::switch::Counts::default();
    (drops[1], drops[10]) = (3, u64::MAX);
    bench.broker.frames_dropped(ifindex, &drops);
    bench.broker.frames_dropped(ifindex, &drops);
    bench.broker.frames_dropped(ifindex + 100, &drops);
    bench.broker.frames_dropped(0, &drops);
    assert_eq!(bench.statistic(9, "frame_forged_source"), 6);
    assert_eq!(bench.statistic(9, "frame_rings_broken"), u64::MAX - 1, "it wraps");
    assert_eq!(bench.statistic(9, "frame_malformed"), 0);
}

/// Each user has a share of the time that ledgers take; others are as fresh as ever.
#[test]
fn long_ledgers_are_read_within_the_share_of_their_user() {
    const ANN: u32 = 2001;
    let mut bench = Bench::loopback();
    bench.broker.serve_all_users();
    let own = bench.with_ledger(1);
    // Two connections of Ann's program hand over the same file, which claims all records and is never
    // consistent.
    for client in [2, 3] {
        bench.broker.connected(ClientId(client), Peer { pid: 102, uid: ANN }, ProcessId(102), true);
        bench.say(client, Message::Hello(Hello::ours("")), vec![]);
        bench.lease_slots(client, 1).unwrap();
    }
    let ann = Program::new(0x20);
    ann.receives(10);
    let entries: Vec<Entry> = (0..20_000).map(|_| ann.queue_pair()).collect();
    ann.hands_over(&mut bench, 2);
    ann.hands_over(&mut bench, 3);
    for asked in 1..=200 {
        own.receives(1);
        assert_eq!(bench.statistic(1, "rcvd_pkts"), 10 + asked);
        assert_eq!(bench.statistic(1, "resent_pkts"), 20_000);
    }
    let octets = |bench: &Bench| bench.broker.ledgers.octets_read();
    assert!(octets(&bench) < 12 << 20, "{} octets", octets(&bench));
    // Ann's questions count as well, and her last numbers stand until there is time again.
    ann.receives(5);
    let before = octets(&bench);
    assert_eq!(bench.statistic(2, "rcvd_pkts"), 10 + 200);
    assert!(octets(&bench) - before < 100_000);
    bench.now += Duration::from_secs(10);
    assert_eq!(bench.statistic(2, "rcvd_pkts"), 15 + 200);
    drop(entries);
    bench.now += Duration::from_secs(10);
    bench.broker.died(bench.now, ProcessId(102));
    assert_eq!(bench.statistic(1, "rcvd_pkts"), 15 + 200, "what she counted outlives her program");
}
