//! Streams without a CRC: payload leaves from registered memory, and arrives in it, without a copy by this process. Memory that is gone,
//! registrations that end and programs that poll memory see the same as with copies.
//!
//! Each test runs in a network namespace of its own, where the test makes the device.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::streams::{CRC, Pair, answer, connect, end, established, inside, listen, next, pair, request};
use common::*;
use ferroce_engine::cm::EventKind;
use ferroce_engine::{
    Access, Mr, MrChange, QpAccess, QpAttr, QpAttrMask, QpInit, QpState, RecvWr, Remote, SendOp, Sge,
    SrqInit, WcOpcode, WcStatus,
};

const MIB: usize = 1 << 20;

/// Runs the test in a namespace whose device asks for no CRC.
fn without_crc(name: &str, body: impl FnOnce()) {
    CRC.store(false, Ordering::Relaxed);
    inside(name, body);
}

/// A mapping of its own, which can be taken away.
struct Pages {
    addr: usize,
    len: usize,
}

impl Pages {
    fn new(len: usize) -> Self {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let addr = unsafe {
            libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
        };
        assert_ne!(addr, libc::MAP_FAILED);
        Self { addr: addr as usize, len }
    }

    fn register(&self, end: &End) -> Arc<Mr> {
        end.pd.reg_mr(self.addr as u64, self.len, self.addr as u64, all_access()).unwrap()
    }

    /// Takes everything from octet `from` on away: a touch of it faults.
    fn take_away(&self, from: usize) {
        // SAFETY: pages of this mapping, which nothing but registrations points to.
        let rc = unsafe {
            libc::mprotect((self.addr + from) as *mut libc::c_void, self.len - from, libc::PROT_NONE)
        };
        assert_eq!(rc, 0);
    }

    fn sge(&self, mr: &Mr, at: usize, len: usize) -> Sge {
        Sge { addr: (self.addr + at) as u64, length: len as u32, lkey: mr.lkey() }
    }

    fn remote(&self, mr: &Mr) -> Remote {
        Remote { addr: self.addr as u64, rkey: mr.rkey() }
    }
}

#[test]
fn messages_of_all_sizes() {
    without_crc("messages_of_all_sizes", || {
        let Pair { active: (a, _connection, _), passive: (b, _other, _), .. } = pair(16, 2 * MIB);
        for len in [1, 4095, 4096, 16_384, 32_768, 32_769, 65_536, 100_000, MIB - 1000] {
            for (from, to) in [(&a, &b), (&b, &a)] {
                from.memory.fill(len, len);
                // Three pieces that are not one after the other, and the last receives behind the first.
                let (one, two) = (len / 3, len / 2);
                let sges =
                    [to.sge(0, one), to.sge(MIB + one, two - one), to.sge(MIB + MIB / 2 + 7, len - two)];
                to.qp.post_recv([RecvWr { wr_id: 2, sges: &sges }]).unwrap();
                let sges = [from.sge(0, two), from.sge(two, len - two)];
                from.qp.post_send([send(1, SendOp::Send, &sges)]).unwrap();
                from.expect(1, WcOpcode::Send);
                assert_eq!(to.expect(2, WcOpcode::Recv).byte_len as usize, len);
                to.memory.check(len, one);
                for (at, begin, end) in [(MIB + one, one, two), (MIB + MIB / 2 + 7, two, len)] {
                    let same = (begin..end).all(|i| to.memory.get(at + i - begin) == from.memory.get(i));
                    assert!(same, "{begin} to {end} of {len}");
                }
                from.post(3, SendOp::Write { remote: to.remote(13) }, from.sge(0, len));
                from.expect(3, WcOpcode::RdmaWrite);
                from.post(4, SendOp::Read { remote: to.remote(13) }, from.sge(MIB + 1, len));
                from.expect(4, WcOpcode::RdmaRead);
                to.memory.check_at(13, len, len);
                from.memory.check_at(MIB + 1, len, len);
            }
        }
    });
}

/// Sends of both ends at once, each of which polls by a thread of its own: every message arrives whole and in order.
#[test]
fn both_ends_send_at_once() {
    without_crc("both_ends_send_at_once", || {
        const LEN: usize = 70_000;
        const DEPTH: usize = 16;
        const COUNT: usize = 3000;
        let Pair { active: (a, _connection, _), passive: (b, _other, _), .. } =
            pair(2 * DEPTH as u32, 2 * DEPTH * LEN);
        let arrived = [const { AtomicUsize::new(0) }; 2];
        for end in [&a, &b] {
            (0..DEPTH).for_each(|slot| end.receive(slot as u64, end.sge(slot * LEN, LEN)));
        }
        let exchange = |end: &End, mine: &AtomicUsize, peers: &AtomicUsize| {
            let (mut posted, mut sent, start) = (0, 0, Instant::now());
            let slot = |number: usize| (DEPTH + number % DEPTH) * LEN;
            while sent < COUNT || mine.load(Ordering::Acquire) < COUNT {
                // The peer has a receive for each message that is under way.
                while posted < COUNT
                    && posted - sent < DEPTH
                    && posted - peers.load(Ordering::Acquire) < DEPTH
                {
                    let at = slot(posted);
                    [0, LEN / 2, LEN - 1].into_iter().for_each(|i| end.memory.set(at + i, posted as u8));
                    end.post(posted as u64, SendOp::Send, end.sge(at, LEN));
                    posted += 1;
                }
                let mut wc = [blank(); 4];
                let count = end.cq.poll(&mut wc).unwrap();
                for wc in &wc[..count] {
                    assert_eq!(wc.status, WcStatus::Success, "{wc:?}");
                    if wc.opcode == WcOpcode::Send {
                        assert_eq!(wc.wr_id as usize, sent);
                        sent += 1;
                        continue;
                    }
                    let (number, at) = (mine.load(Ordering::Relaxed), wc.wr_id as usize * LEN);
                    assert_eq!((wc.byte_len as usize, wc.wr_id as usize), (LEN, number % DEPTH));
                    for i in [0, LEN / 2, LEN - 1] {
                        assert_eq!(end.memory.get(at + i), number as u8, "octet {i} of message {number}");
                    }
                    end.receive(wc.wr_id, end.sge(at, LEN));
                    mine.store(number + 1, Ordering::Release);
                }
                assert!(start.elapsed() < 3 * PATIENCE, "{sent} sent of {posted}");
            }
        };
        std::thread::scope(|scope| {
            let [to_a, to_b] = &arrived;
            scope.spawn(|| exchange(&a, to_a, to_b));
            exchange(&b, to_b, to_a);
        });
    });
}

/// A shared receive queue has a protection domain of its own, in which the keys of its receives are looked for.
#[test]
fn receives_of_a_shared_queue() {
    without_crc("receives_of_a_shared_queue", || {
        const LEN: usize = 200_000;
        let (_listener, address, requests) = listen(1);
        let (from, to) = (end(16, LEN), end(16, LEN));
        let domain = to.context.alloc_pd().unwrap();
        let mr = domain.reg_mr(to.memory.addr(), LEN, to.memory.addr(), all_access()).unwrap();
        let srq = domain.create_srq(SrqInit { max_wr: 4, max_sge: 1, user: 0 }).unwrap();
        let wanted = QpInit { srq: Some(Arc::clone(&srq)), ..init(&to.cq, &to.cq, 16) };
        let qp = to.pd.create_qp(wanted).unwrap();
        let attr = QpAttr { state: QpState::Init, access: QpAccess::REMOTE_WRITE, ..QpAttr::default() };
        qp.modify(&attr, QpAttrMask::STATE | QpAttrMask::ACCESS_FLAGS).unwrap();
        let (_connection, events) = connect(&from, address, b"");
        let request = request(&requests);
        request.connection.accept(&answer(qp.qpn(), 1, 1), b"").unwrap();
        established(next(&events));
        for seed in 0..10 {
            let sge = Sge { addr: to.memory.addr(), length: LEN as u32, lkey: mr.lkey() };
            srq.post_recv([RecvWr { wr_id: 1, sges: &[sge] }]).unwrap();
            from.memory.fill(seed, LEN);
            from.post(2, SendOp::Send, from.sge(0, LEN));
            assert_eq!(to.expect(1, WcOpcode::Recv).byte_len as usize, LEN);
            from.expect(2, WcOpcode::Send);
            to.memory.check(seed, LEN);
            // Behind it the keys of the queue pair's own domain count again.
            from.post(3, SendOp::Write { remote: to.remote(0) }, from.sge(0, LEN));
            from.expect(3, WcOpcode::RdmaWrite);
        }
        assert_eq!(qp.state(), QpState::Rts);
    });
}

/// A program that polls the last octet of a message's place sees all of the message once it sees that octet.
#[test]
fn the_last_octet_is_seen_last() {
    without_crc("the_last_octet_is_seen_last", || {
        const LEN: usize = 200_000;
        let Pair { active: (a, _connection, _), passive: (b, _other, _), .. } = pair(16, LEN);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // The engine's own thread and this one receive.
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    assert_eq!(b.cq.poll(&mut [blank()]).unwrap(), 0);
                }
            });
            for round in 1..=100_u8 {
                (0..LEN).for_each(|i| a.memory.set(i, round));
                a.post(1, SendOp::Write { remote: b.remote(0) }, a.sge(0, LEN));
                let start = Instant::now();
                while b.memory.get(LEN - 1) != round && start.elapsed() < PATIENCE {
                    std::hint::spin_loop();
                }
                let old = (0..LEN).filter(|i| b.memory.get(*i) != round).count();
                over.store(old > 0, Ordering::Relaxed);
                assert_eq!(old, 0, "octets of round {round} came behind the last one");
                a.expect(1, WcOpcode::RdmaWrite);
            }
            over.store(true, Ordering::Relaxed);
        });
    });
}

/// The memory that a peer writes to is gone behind its registration, from its begin or from somewhere within the message.
#[test]
fn a_target_that_is_gone() {
    without_crc("a_target_that_is_gone", || {
        for from in [0, 65_536, MIB - 4096] {
            let Pair { active: (a, _connection, events), passive: (b, _other, others), .. } = pair(16, MIB);
            let pages = Pages::new(MIB);
            let mr = pages.register(&b);
            pages.take_away(from);
            a.post(1, SendOp::Write { remote: pages.remote(&mr) }, a.sge(0, MIB));
            a.receive(2, a.sge(0, 64));
            assert!(
                matches!(next(&events), EventKind::Disconnected(_))
                    && matches!(next(&others), EventKind::Disconnected(_))
            );
            assert_eq!((a.qp.state(), b.qp.state()), (QpState::Error, QpState::Error), "from {from}");
        }
    });
}

/// So is the buffer of a receive, or that of a read.
#[test]
fn a_buffer_that_is_gone() {
    without_crc("a_buffer_that_is_gone", || {
        for from in [0, 65_536, MIB - 4096] {
            let Pair { active: (a, _connection, _), passive: (b, _other, others), .. } = pair(16, MIB);
            let pages = Pages::new(MIB);
            let mr = pages.register(&b);
            pages.take_away(from);
            b.receive(1, pages.sge(&mr, 0, MIB));
            a.post(1, SendOp::Send, a.sge(0, MIB));
            let failed = b.complete();
            assert_eq!((failed.wr_id, failed.status), (1, WcStatus::LocProtErr), "from {from}");
            assert!(matches!(next(&others), EventKind::Disconnected(_)));

            let Pair { active: (a, _connection, _), passive: (b, _other, others), .. } = pair(16, MIB);
            let mr = pages.register_on_demand(&b);
            b.post(1, SendOp::Read { remote: a.remote(0) }, pages.sge(&mr, 0, MIB));
            let failed = b.complete();
            assert_eq!((failed.wr_id, failed.status), (1, WcStatus::LocProtErr), "from {from}");
            assert!(matches!(next(&others), EventKind::Disconnected(_)));
        }
    });
}

impl Pages {
    /// As [`Self::register`], of pages that may be gone already.
    fn register_on_demand(&self, end: &End) -> Arc<Mr> {
        let access = all_access() | Access::ON_DEMAND;
        end.pd.reg_mr(self.addr as u64, self.len, self.addr as u64, access).unwrap()
    }
}

/// The memory that a message leaves from is gone: the request fails, those before it complete, and the connection ends.
#[test]
fn a_source_that_is_gone() {
    without_crc("a_source_that_is_gone", || {
        for from in [0, 4096, 65_536, MIB - 4096] {
            let Pair { active: (a, _connection, events), passive: (b, _other, others), .. } = pair(16, MIB);
            let pages = Pages::new(MIB);
            let mr = pages.register(&a);
            pages.take_away(from);
            b.receive(1, b.sge(0, 64));
            let before = a.sge(0, 8);
            let sges = [pages.sge(&mr, 0, MIB)];
            let requests = [
                send(1, SendOp::Send, std::slice::from_ref(&before)),
                send(2, SendOp::Write { remote: b.remote(0) }, &sges),
                send(3, SendOp::Send, std::slice::from_ref(&before)),
            ];
            a.qp.post_send(requests).unwrap();
            b.expect(1, WcOpcode::Recv);
            a.expect(1, WcOpcode::Send);
            let ends = [a.complete(), a.complete()].map(|c| (c.wr_id, c.status));
            assert_eq!(ends, [(2, WcStatus::LocProtErr), (3, WcStatus::WrFlushErr)], "from {from}");
            assert!(
                matches!(next(&events), EventKind::Disconnected(_))
                    && matches!(next(&others), EventKind::Disconnected(_))
            );
            assert_eq!((a.qp.state(), b.qp.state()), (QpState::Error, QpState::Error));
        }
    });
}

/// So is the memory that the peer reads: it learns so by a Terminate, if nothing of an answer left.
#[test]
fn a_read_of_memory_that_is_gone() {
    without_crc("a_read_of_memory_that_is_gone", || {
        for from in [0, 65_536] {
            let Pair { active: (a, _connection, events), passive: (b, _other, others), .. } = pair(16, MIB);
            let pages = Pages::new(MIB);
            let mr = pages.register(&b);
            pages.take_away(from);
            a.post(1, SendOp::Read { remote: pages.remote(&mr) }, a.sge(0, MIB));
            let failed = a.complete();
            let allowed = [WcStatus::RemAccessErr, WcStatus::WrFlushErr];
            let allowed = if from == 0 { &allowed[..1] } else { &allowed[..] };
            assert!(failed.wr_id == 1 && allowed.contains(&failed.status), "from {from}: {failed:?}");
            assert!(
                matches!(next(&events), EventKind::Disconnected(_))
                    && matches!(next(&others), EventKind::Disconnected(_))
            );
        }
    });
}

/// Once the end of a registration, or its change, has returned, nothing is written through it any more.
#[test]
fn the_end_of_a_registration_that_is_written() {
    without_crc("the_end_of_a_registration_that_is_written", || {
        for round in 0..20 {
            let Pair { active: (a, _connection, _), passive: (b, _other, _), .. } = pair(64, MIB);
            a.memory.fill(1, MIB);
            for id in 0..64 {
                a.post(id, SendOp::Write { remote: b.remote(0) }, a.sge(0, MIB));
            }
            std::thread::sleep(Duration::from_micros(500 * round % 3000));
            let end = |()| match round % 2 {
                0 => b.mr.dereg().unwrap(),
                _ => b.mr.rereg(&MrChange { access: Some(Access::empty()), ..MrChange::default() }).unwrap(),
            };
            end(());
            b.memory.fill(2, MIB);
            // What is still on its way is refused.
            let start = Instant::now();
            while b.qp.state() != QpState::Error {
                assert!(start.elapsed() < PATIENCE);
                std::thread::sleep(Duration::from_millis(1));
            }
            b.memory.check(2, MIB);
        }
    });
}

/// And nothing of what the program puts there later leaves.
#[test]
fn the_end_of_a_registration_that_is_sent() {
    without_crc("the_end_of_a_registration_that_is_sent", || {
        for round in 0..20 {
            let Pair { active: (a, _connection, _), passive: (b, _other, _), .. } = pair(64, MIB);
            (0..MIB).for_each(|i| a.memory.set(i, 1));
            for id in 0..64 {
                a.post(id, SendOp::Write { remote: b.remote(0) }, a.sge(0, MIB));
            }
            std::thread::sleep(Duration::from_micros(500 * round % 3000));
            a.mr.dereg().unwrap();
            (0..MIB).for_each(|i| a.memory.set(i, 2));
            let start = Instant::now();
            while b.qp.state() != QpState::Error {
                a.cq.poll(&mut [blank()]).unwrap();
                b.cq.poll(&mut [blank()]).unwrap();
                assert!(start.elapsed() < PATIENCE);
            }
            let late = (0..MIB).filter(|i| b.memory.get(*i) == 2).count();
            assert_eq!(late, 0, "octets from behind the end of the registration");
        }
    });
}

/// The connection ends while a message arrives: its receive is flushed, and its memory is left alone.
#[test]
fn a_connection_that_ends_within_a_message() {
    without_crc("a_connection_that_ends_within_a_message", || {
        for _ in 0..10 {
            let Pair { active: (a, connection, events), passive: (b, _other, others), .. } = pair(64, MIB);
            for id in 0..8 {
                b.receive(id, b.sge(0, MIB));
                a.post(id, SendOp::Send, a.sge(0, MIB));
            }
            connection.disconnect().unwrap();
            assert!(
                matches!(next(&events), EventKind::Disconnected(_))
                    && matches!(next(&others), EventKind::Disconnected(_))
            );
            let ends: Vec<_> = (0..8).map(|_| b.complete()).collect();
            assert!(ends.iter().zip(0..).all(|(wc, id)| wc.wr_id == id), "{ends:?}");
            let good = ends.iter().take_while(|wc| wc.status == WcStatus::Success).count();
            assert!(ends[good..].iter().all(|wc| wc.status == WcStatus::WrFlushErr), "{ends:?}");
            b.memory.fill(3, MIB);
            std::thread::sleep(Duration::from_millis(5));
            b.memory.check(3, MIB);
        }
    });
}
