use ferroce_wire::{Lkey, Rkey};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use super::*;
use crate::memory::nothing::Nothing;
use crate::{QpAttr, QpCaps, Remote, SendTo, SendWr, Sge};

const MTU: u32 = 256;
/// Packets that one READ request asks for.
const CHUNK: u32 = 1 << 20;

/// A posted message. Places count PSNs from the first one without end.
#[derive(Clone, Copy, Debug)]
struct Posted {
    first: u64,
    packets: u32,
    read: bool,
}

/// A pipeline, and where its PSNs must be.
struct Story {
    pipeline: Pipeline,
    budget: Budget,
    start: u32,
    posted: Vec<Posted>,
    oldest: u64,
    next: u64,
    end: u64,
}

impl Story {
    fn new(start: u32) -> Self {
        Self::with_slots(start, 64)
    }

    fn with_slots(start: u32, max_send_wr: u32) -> Self {
        let caps = QpCaps { max_send_wr, max_send_sge: 1, ..QpCaps::default() };
        let mut pipeline = Pipeline::new(SendQueue::new(caps, false));
        let accounts = Accounts { reads: Account::Reads, data: Account::Destination(0) };
        pipeline.begin(Psn::new(start), MTU, CHUNK, accounts);
        let budget = Budget::new(1 << 40);
        Self { pipeline, budget, start, posted: Vec::new(), oldest: 0, next: 0, end: 0 }
    }

    fn psn(&self, place: u64) -> Psn {
        Psn::new(self.start.wrapping_add(place as u32))
    }

    fn post(&mut self, packets: u32, read: bool) {
        let remote = Remote { addr: 0, rkey: Rkey::new(1) };
        let sges = [Sge { addr: 0, length: packets * MTU, lkey: Lkey::new(1) }];
        let op = if read { SendOp::Read { remote } } else { SendOp::Write { remote } };
        let wr = SendWr {
            wr_id: 0,
            op,
            to: SendTo::Peer,
            sges: &sges,
            signaled: false,
            solicited: false,
            fence: false,
            inline: false,
        };
        let attr = QpAttr { max_rd_atomic: 16, ..QpAttr::default() };
        self.pipeline.queue.post(&wr, false, &attr, &Nothing).unwrap();
        self.posted.push(Posted { first: self.end, packets, read });
        self.end += u64::from(packets);
    }

    /// Sends packets until `most` PSNs are outstanding, or the window is full, or nothing is left.
    fn send(&mut self, most: u32) {
        while self.pipeline.outstanding() < most
            && let Some(piece) = self.pipeline.piece()
        {
            let account = self.pipeline.account(&piece.wqe.op);
            self.budget.force(account, piece.charge);
            if self.pipeline.sent(&piece, piece.wqe.op.is_answered()) {
                assert_eq!(piece.psn, self.psn(self.next));
                self.next += u64::from(piece.count);
            }
            assert!(self.next - self.oldest < 1 << 23, "the peer must tell duplicates from what is new");
        }
    }

    /// The message of a place.
    fn owner(&self, place: u64) -> (u64, Posted) {
        let index = self.posted.iter().rposition(|posted| posted.first <= place).unwrap();
        (index as u64, self.posted[index])
    }

    /// Everything that was sent is answered as it must be: reads packet by packet, all else by one ACK for as
    /// much as there is before the next read. `upto` is the last place that the answers tell of.
    fn answer(&mut self, upto: u64) {
        while self.oldest <= upto {
            let (_, message) = self.owner(self.oldest);
            let behind = message.first + u64::from(message.packets);
            if message.read {
                let stop = behind.min(upto + 1);
                for _ in self.oldest..stop {
                    self.pipeline.answered(&self.budget);
                }
                self.oldest = stop;
            } else {
                let read = self.posted.iter().find(|posted| posted.read && posted.first > self.oldest);
                let stop = read.map_or(upto + 1, |read| read.first.min(upto + 1));
                let through = self.psn(upto);
                let acknowledged = self.pipeline.acknowledge(through, &self.budget);
                assert_eq!(u64::from(acknowledged.packets), stop - self.oldest);
                assert_eq!(acknowledged.read_missing, stop <= upto);
                self.oldest = stop;
            }
        }
        while self.pipeline.queue.has_done() {
            self.pipeline.queue.pop_done();
        }
    }

    fn check(&self, places: impl Iterator<Item = u64>) {
        assert_eq!(self.pipeline.oldest(), self.psn(self.oldest));
        assert_eq!(self.pipeline.next(), self.psn(self.next));
        assert_eq!(u64::from(self.pipeline.outstanding()), self.next - self.oldest);
        for place in places.filter(|place| (self.oldest..self.next).contains(place)) {
            assert_eq!(self.pipeline.owner(self.psn(place)), Some(self.owner(place).0), "{place}");
            assert_eq!(
                self.pipeline.queue.completed(self.psn(place)).map(|wqe| wqe.packets),
                None,
                "{place}"
            );
        }
    }
}

fn any_message() -> impl Strategy<Value = (u32, bool)> {
    prop_oneof![
        3 => (1u32..2000, any::<bool>()),
        1 => ((1u32 << 20)..=(1 << 23)).prop_map(|packets| (packets, true)),
        1 => ((1u32 << 10)..=(1 << 18)).prop_map(|packets| (packets, false)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(1),
        ..ProptestConfig::with_cases(3)
    })]

    /// The requester knows each unanswered PSN's message, and which PSN comes next, however often the PSNs
    /// went round.
    #[test]
    #[cfg_attr(miri, ignore = "24 million PSNs take hours in Miri")]
    fn places_of_the_send_queue_follow_the_psn_round_the_circle(
        start in 0u32..1 << 24,
        messages in prop::collection::vec(any_message(), 12),
        turns in prop::collection::vec((1u32..1 << 23, 0u64..100, any::<bool>()), 4..12),
    ) {
        let mut story = Story::new(start);
        let mut turns = turns.into_iter().cycle();
        // Until the circle was closed once and a half.
        for (packets, read) in messages.into_iter().cycle() {
            if story.end > 3 << 23 {
                break;
            }
            story.post(packets, read);
            let (window, part, again) = turns.next().unwrap();
            story.send(window);
            let outstanding = story.next - story.oldest;
            let upto = story.oldest + outstanding * part / 100;
            let ends = [story.oldest, upto, story.next - 1];
            let bounds = story.posted.iter().rev().take(40).flat_map(|one| {
                let behind = one.first + u64::from(one.packets);
                [one.first, behind - 1, behind]
            });
            let places: Vec<u64> = ends.into_iter().chain(bounds).collect();
            story.check(places.iter().copied());
            if part > 0 {
                story.answer(upto.min(story.next - 1));
            }
            if again {
                story.pipeline.rewind(&story.budget);
            }
            story.check(places.into_iter());
            // The queue has room for the next message.
            if story.pipeline.queue.tail() - story.pipeline.queue.done() > 32 {
                while story.next < story.end || story.oldest < story.next {
                    story.send(u32::MAX);
                    story.answer(story.next - 1);
                }
            }
        }
        while story.oldest < story.end {
            story.send(u32::MAX);
            story.answer(story.next - 1);
        }
        prop_assert_eq!(story.pipeline.flight().data + story.pipeline.flight().reads, 0);
        prop_assert_eq!(story.budget.reads_in_use(), 0);
    }
}

/// The backlog counts whole messages, and is empty while something else than a new small message is due.
#[test]
fn the_backlog_is_of_small_messages() {
    let mut story = Story::new(7);
    assert_eq!(story.pipeline.backlog(), None);
    (0..3).for_each(|_| story.post(1, false));
    let backlog = |in_flight, waiting, payload| Some(Backlog { in_flight, waiting, payload });
    assert_eq!(story.pipeline.backlog(), backlog(0, 3, MTU));
    let piece = story.pipeline.piece().unwrap();
    story.pipeline.sent(&piece, piece.wqe.op.is_answered());
    assert_eq!(story.pipeline.backlog(), backlog(1, 2, MTU));
    story.post(1, true);
    assert_eq!(story.pipeline.backlog(), backlog(1, 3, 0), "a READ request has no payload");
    story.post(2, false);
    assert_eq!(story.pipeline.backlog(), None, "two packets");
    story.post(1, false);
    assert_eq!(story.pipeline.backlog(), backlog(1, 5, MTU));
    story.pipeline.rewind(&story.budget);
    assert_eq!(story.pipeline.backlog(), None, "a packet is sent again");
}

/// With more PSNs on their way than bits for responses behind a gap, a bit stands for the nearest of its PSNs
/// alone.
#[test]
fn a_response_that_came_stands_for_no_later_one() {
    let mut story = Story::new(0xff_fe00);
    (0..5).for_each(|_| story.post(256, true));
    story.send(u32::MAX);
    let psn: Vec<Psn> = (0..1280).map(|place| story.psn(place)).collect();
    let pipeline = &mut story.pipeline;
    assert!((1..256).all(|n| pipeline.place(psn[n])));
    assert!((1..256).all(|n| pipeline.is_placed(psn[n])));
    assert!((256..1280).all(|n| !pipeline.is_placed(psn[n])));
    let missing = |from: usize, to: usize| {
        let piece = pipeline.missing_response(psn[from], psn[to], true).unwrap();
        (piece.psn, piece.count)
    };
    assert_eq!(missing(0, 1279), (psn[0], 1));
    assert_eq!(missing(1, 1279), (psn[256], 256));
    assert_eq!(missing(1024, 1279), (psn[1024], 255));
    let newest = pipeline.newest(true).unwrap();
    assert_eq!((newest.psn, newest.count), (psn[1024], 256));
}

/// The search for missing responses looks at each request between two READs once.
#[test]
fn the_search_for_missing_responses_is_linear() {
    const WRITES: usize = 1000;
    let mut story = Story::with_slots(0xff_ff00, WRITES as u32 + 2);
    story.post(8, true);
    (0..WRITES).for_each(|_| story.post(1, false));
    story.post(8, true);
    story.send(u32::MAX);
    let psn: Vec<Psn> = (0..WRITES as u64 + 16).map(|place| story.psn(place)).collect();
    let pipeline = &mut story.pipeline;
    let last = psn[8 + WRITES];
    assert!(pipeline.place(last));
    let looked_at = |search: &dyn Fn()| {
        pipeline.queue.lookups.set(0);
        search();
        pipeline.queue.lookups.get()
    };
    let all = looked_at(&|| assert!(pipeline.missing_response(psn[8], last, true).is_none()));
    assert!(all < 2 * WRITES, "{all} requests looked at");
    let one = looked_at(&|| assert_eq!(pipeline.owner(last), Some(WRITES as u64 + 1)));
    assert!(one < 20, "{one} requests looked at");
}
