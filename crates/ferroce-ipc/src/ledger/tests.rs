use std::fs::File;
use std::io::Write;

use super::records::{Block, ContextRecord, PdRecord, QpParts, QpProgress, QpPsns, QpRecord};
use zerocopy::FromZeros;

use super::*;
use zerocopy::IntoBytes;

fn pair(slot: u16) -> (Arc<Ledger>, LedgerReader) {
    let (ledger, file) = Ledger::create(slot).unwrap();
    (Arc::new(ledger), LedgerReader::new(file.unwrap()).unwrap())
}

fn sum(reader: &LedgerReader, name: &str) -> u64 {
    let blocks = reader.devices().unwrap();
    let mut totals = Totals::default();
    blocks.iter().for_each(|block| totals.add(&block.totals.device, &block.totals.transport));
    totals.named().into_iter().find(|(known, _)| *known == name).unwrap().1
}

#[test]
fn what_a_program_counts_is_read_by_another() {
    let (ledger, reader) = pair(3);
    assert_eq!(reader.devices().unwrap(), []);
    let (a, b) = (ledger.block_of(0, "fr0"), ledger.block_of(7, "eth_rdma"));
    assert_eq!((a, b, ledger.block_of(0, "fr0")), (0, 1, 0));
    DeviceCounters::add(&ledger.device(a).rcvd_pkts, 5);
    DeviceCounters::count(&ledger.device(b).rx_icrc_errors);
    let blocks = reader.devices().unwrap();
    let names: Vec<_> = blocks.iter().map(|block| (block.id, &*block.name)).collect();
    assert_eq!(names, [(0, "fr0"), (7, "eth_rdma")]);
    assert_eq!(blocks[0].totals.rxe()[1], ("rcvd_pkts", 5));
    assert!(blocks[1].totals.named().contains(&("rx_icrc_errors", 1)));
}

#[test]
fn a_queue_pair_that_ends_leaves_its_numbers() {
    let (ledger, reader) = pair(1);
    let block = ledger.block_of(0, "fr0");
    let entry = ledger.record(Table::Qp);
    let mut words = [0; QP_RECORD];
    words[0] = 1 << 16 | block as u64;
    let place = TRANSPORT_COUNTERS.iter().position(|name| *name == "rdma_sends").unwrap();
    words[QP_COUNTERS + place] = 4;
    entry.store(0, words.as_bytes());
    assert_eq!(sum(&reader, "rdma_sends"), 4);
    assert_eq!(reader.records(Table::Qp).unwrap()[0].number, entry.number());
    ledger.retire(block, &words[QP_COUNTERS..], &entry);
    assert_eq!(sum(&reader, "rdma_sends"), 4);
    assert_eq!(reader.records(Table::Qp).unwrap(), []);
    assert_eq!(ledger.retired(block)[place], 4);
}

#[test]
fn places_are_used_again_and_numbers_are_the_slots() {
    let (ledger, reader) = pair(2);
    let first = ledger.record(Table::Mr);
    let second = ledger.record(Table::Mr);
    assert_eq!((first.number(), second.number()), ((2 << 20) + 1, (2 << 20) + 2));
    second.store(0, [1_u64 << 16, 2, 3].as_bytes());
    // More than it has room for goes nowhere.
    second.store(7, [9_u64; 5].as_bytes());
    assert_eq!(reader.records(Table::Mr).unwrap()[0].words, [1 << 16, 2, 3, 0, 0, 0, 0, 9]);
    first.end();
    drop(first);
    assert_eq!(ledger.record(Table::Mr).number(), (2 << 20) + 1);
    let third = ledger.record(Table::Mr);
    assert_eq!(third.number(), (2 << 20) + 1, "given back when it was dropped");
}

#[test]
fn the_parts_of_a_record_come_out_as_they_went_in() {
    let (ledger, reader) = pair(2);
    let (entry, block) = (ledger.record(Table::Qp), Block::new(DEVICES - 1));
    let parts = QpParts { pd: 1, send_cq: 2, recv_cq: u32::MAX };
    let progress = QpProgress {
        block,
        service: 2,
        state: 3,
        qpn: 4,
        remote_qpn: 5,
        psns: QpPsns { rq_psn: 6, sq_psn: u32::MAX },
    };
    entry.put(&parts);
    entry.put_queue_pair(progress, |words| words.iter().for_each(|word| word.store(7, Ordering::Relaxed)));
    let record = &reader.records(Table::Qp).unwrap()[0];
    assert_eq!(record.decode::<QpRecord>(), QpRecord { progress, parts });
    assert_eq!((record.decode::<QpParts>(), record.block()), (parts, DEVICES - 1));
    assert_eq!(record.counters(), [7; TRANSPORT_COUNTERS.len()]);
    let pd = ledger.record(Table::Pd);
    pd.put(&PdRecord { block: Block::new(0), context: 0 });
    assert_eq!(reader.records(Table::Pd).unwrap()[0].decode::<PdRecord>().block.number(), 0, "it is there");
    let short = Record { number: 1, words: vec![1] };
    assert_eq!(short.decode::<QpParts>(), QpParts { pd: 0, send_cq: 0, recv_cq: 0 });
}

#[test]
fn a_full_table_lists_no_more() {
    let (ledger, reader) = pair(1);
    let (count, ..) = Table::Context.shape();
    let all: Vec<_> = (0..count).map(|_| ledger.record(Table::Context)).collect();
    let more = ledger.record(Table::Context);
    more.store(0, ContextRecord { block: Block::new(0) }.as_bytes());
    assert_eq!(more.number(), 0);
    assert_eq!(reader.records(Table::Context).unwrap(), []);
    drop((more, all));
}

#[test]
fn devices_beyond_the_room_share_the_last_block() {
    let (ledger, _reader) = pair(1);
    let blocks: Vec<_> = (0..40).map(|id| ledger.block_of(id, "x")).collect();
    assert_eq!((blocks[31], blocks[39]), (31, 31));
}

#[test]
fn what_is_no_ledger_is_refused() {
    for file in [File::open("/dev/null").unwrap(), File::open("/proc/self/exe").unwrap()] {
        assert_eq!(
            LedgerReader::new(std::os::fd::OwnedFd::from(file)).unwrap_err().kind(),
            io::ErrorKind::InvalidData
        );
    }
    let seal = rustix::fs::SealFlags::SHRINK | rustix::fs::SealFlags::GROW;
    for (length, sealed) in
        [(0, true), (4096, true), (END * WORD, true), (END * WORD, false), (4 << 30, true)]
    {
        let flags = rustix::fs::MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("x", flags).unwrap();
        rustix::fs::ftruncate(&file, length as u64).unwrap();
        if sealed {
            rustix::fs::fcntl_add_seals(&file, seal).unwrap();
        }
        let error = LedgerReader::new(file).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{length} {sealed}");
    }
}

#[test]
fn whatever_is_in_it_is_only_numbers() {
    // All bits set: lengths beyond the tables, names that are none, a retirement that never ends.
    let file = rustix::fs::memfd_create("x", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
    let mut file = File::from(file);
    let head: Vec<u8> = [MAGIC, VERSION].into_iter().flat_map(u64::to_ne_bytes).collect();
    file.write_all(&head).unwrap();
    file.write_all(&vec![0xff; 4 * HEAD * WORD]).unwrap();
    rustix::fs::ftruncate(&file, (END * WORD) as u64).unwrap();
    rustix::fs::fcntl_add_seals(&file, rustix::fs::SealFlags::SHRINK | rustix::fs::SealFlags::GROW).unwrap();
    let reader = LedgerReader::new(std::os::fd::OwnedFd::from(file)).unwrap();
    let blocks = reader.devices().unwrap();
    assert!(blocks.iter().all(|block| block.name.is_empty()));
    assert_eq!(reader.records(Table::Qp).unwrap(), []);
    reader.counts().unwrap();
}

#[test]
fn nobody_else_can_write_to_it() {
    let (_ledger, file) = Ledger::create(1).unwrap();
    let error = File::from(file.unwrap()).write_all(b"x").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(1), "EPERM: sealed");
}

/// A file whose owner claims all records and a retirement that never ends costs one pass at most.
#[test]
fn a_file_that_is_never_consistent_is_read_once() {
    let (ledger, reader) = pair(1);
    ledger.block_of(0, "fr0");
    let (count, stride, _) = Table::Qp.shape();
    ledger.set(AT_USED + Table::Qp as usize, u64::MAX);
    ledger.set(AT_RETIRED, 1);
    let whole = (count * stride * WORD) as u64;
    for _ in 0..3 {
        let before = reader.octets_read();
        assert_eq!(reader.devices().unwrap().len(), 1);
        let read = reader.octets_read() - before;
        assert!((whole..whole + 100_000).contains(&read), "{read} octets, {whole} of records");
    }
    // A short file gets several attempts, once.
    let (ledger, reader) = pair(1);
    ledger.block_of(0, "fr0");
    ledger.set(AT_RETIRED, 1);
    let reads = [(); 2].map(|()| {
        let before = reader.octets_read();
        reader.devices().unwrap();
        reader.octets_read() - before
    });
    assert!(reads[0] > reads[1], "{reads:?}");
    ledger.set(AT_RETIRED, 2);
    reader.devices().unwrap();
    ledger.set(AT_RETIRED, 3);
    let before = reader.octets_read();
    reader.devices().unwrap();
    assert_eq!(reader.octets_read() - before, reads[0], "it was consistent meanwhile");
}

#[test]
fn a_ring_tells_the_last_events_after_its_queue_pair_ended() {
    let (ledger, reader) = pair(1);
    assert_eq!(reader.recordings().unwrap(), []);
    let entry = ledger.record(Table::Qp);
    let ends = records::Ends { qpn: 0x11, remote_qpn: 0x12, timeout: 14, ..FromZeros::new_zeroed() };
    entry.connects(&ends);
    let count = EVENTS as u64 + 3;
    (1..=count).for_each(|event| entry.happened([event, !event]));
    let own: Vec<_> = entry.events().collect();
    entry.end();
    let told = reader.recordings().unwrap();
    assert_eq!((told.len(), &told[0].events), (1, &own));
    assert_eq!((told[0].ends, told[0].lost), (ends, 3));
    assert_eq!(told[0].events, (4..=count).map(|event| [event, !event]).collect::<Vec<_>>());
    let (pid, name) = reader.program().unwrap();
    assert_eq!((pid, name.is_empty()), (std::process::id(), false));
    assert!((4096..1 << 20).contains(&reader.memory().unwrap()), "{:?}", reader.memory());
    let clocks = reader.clocks().unwrap();
    assert!(clocks.monotonic > 0 && clocks.real > clocks.monotonic);

    // Other places are taken first. One that takes this place forgets.
    let mut places = Vec::new();
    while reader.recordings().unwrap().len() == 1 {
        let next = ledger.record(Table::Qp);
        next.connects(&records::Ends { qpn: 0, ..ends });
        next.happened([7, 7]);
        next.end();
        places.push(next.number());
        assert!(places.len() < 1000, "the ring is kept for ever");
    }
    assert!(places.len() > 64, "{}", places.len());
    assert_eq!(*places.last().unwrap(), entry.number());
}

#[test]
fn queue_pairs_beyond_the_rings_are_not_recorded() {
    let (ledger, reader) = pair(1);
    let entries: Vec<_> = (0..=RINGS).map(|_| ledger.record(Table::Qp)).collect();
    let ends = records::Ends { qpn: 1, ..FromZeros::new_zeroed() };
    entries.iter().for_each(|entry| entry.connects(&ends));
    assert_eq!(reader.recordings().unwrap().len(), RINGS);
    entries[RINGS].happened([1, 1]);
    assert_eq!(entries[RINGS].events().count(), 0);
}
