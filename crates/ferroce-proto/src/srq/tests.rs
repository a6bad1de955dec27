use ferroce_wire::Lkey;

use super::*;
use crate::Sge;

const DOMAIN: Domain = Domain(7);

fn queue(max_wr: u32) -> SharedReceiveQueue {
    SharedReceiveQueue::new(max_wr, 2, DOMAIN).unwrap()
}

fn post(queue: &mut SharedReceiveQueue, wr_id: u64) -> Result<(), PostRecvError> {
    let sges = [Sge { addr: wr_id, length: 8, lkey: Lkey::new(1) }; 2];
    queue.post(&RecvWr { wr_id, sges: &sges })
}

fn take(queue: &mut SharedReceiveQueue) -> Option<u64> {
    let mut wqe = RecvWqe::new(2);
    match queue.take(&mut wqe, 0) {
        Taken::Wqe => {
            assert_eq!(wqe.length, 16, "all SGEs came along");
            Some(wqe.wr_id())
        }
        Taken::Empty | Taken::TooShort | Taken::Failed => None,
    }
}

fn modify(
    queue: &mut SharedReceiveQueue,
    max_wr: Option<u32>,
    limit: Option<u32>,
) -> Result<(), ModifySrqError> {
    let attr = SrqAttr { max_wr: max_wr.unwrap_or(0), max_sge: 0, limit: limit.unwrap_or(0) };
    let mut mask = SrqAttrMask::empty();
    mask.set(SrqAttrMask::MAX_WR, max_wr.is_some());
    mask.set(SrqAttrMask::LIMIT, limit.is_some());
    queue.modify(&attr, mask)
}

#[test]
fn first_in_first_out_and_never_more_than_fit() {
    let mut queue = queue(3);
    for round in 0..3 {
        for wr_id in 0..3 {
            assert_eq!(post(&mut queue, round * 10 + wr_id), Ok(()));
        }
        assert_eq!(post(&mut queue, 99), Err(PostRecvError::QueueFull { max: 3 }));
        assert_eq!(queue.len(), 3);
        assert_eq!(
            [(); 4].map(|()| take(&mut queue)),
            [0, 1, 2, 99].map(|n| (n < 99).then_some(round * 10 + n))
        );
    }
    let sges = [Sge::default(); 3];
    assert_eq!(
        queue.post(&RecvWr { wr_id: 0, sges: &sges }),
        Err(PostRecvError::TooManySges { given: 3, max: 2 })
    );
    assert!(queue.is_empty());
}

/// A datagram that is too long for the oldest WQE leaves it, and the limit, as they are.
#[test]
fn a_wqe_that_is_too_short_stays() {
    let mut queue = queue(3);
    post(&mut queue, 1).unwrap();
    post(&mut queue, 2).unwrap();
    modify(&mut queue, None, Some(2)).unwrap();
    assert_eq!(queue.take(&mut RecvWqe::new(2), 17), Taken::TooShort);
    assert_eq!((queue.len(), queue.poll_event()), (2, None));
    let mut wqe = RecvWqe::new(2);
    assert_eq!((queue.take(&mut wqe, 16), wqe.wr_id()), (Taken::Wqe, 1));
    assert_eq!(queue.poll_event(), Some(AsyncEventKind::SrqLimitReached));
}

/// Once per arming, when a take leaves fewer than the limit.
#[test]
fn the_limit_is_one_shot() {
    let mut queue = queue(8);
    (0..4).for_each(|wr_id| post(&mut queue, wr_id).unwrap());
    assert_eq!(modify(&mut queue, None, Some(3)), Ok(()));
    assert_eq!((queue.query().limit, queue.poll_event()), (3, None));
    take(&mut queue);
    assert_eq!((queue.query().limit, queue.poll_event()), (3, None), "three are left");
    take(&mut queue);
    assert_eq!((queue.query().limit, queue.poll_event()), (0, Some(AsyncEventKind::SrqLimitReached)));
    take(&mut queue);
    take(&mut queue);
    assert_eq!((take(&mut queue), queue.poll_event()), (None, None));
}

/// A program that arms the limit late would otherwise wait for a take that never comes (IBTA 11.2.3.3).
#[test]
fn a_limit_above_what_is_there_is_reached_at_once() {
    let mut queue = queue(8);
    post(&mut queue, 0).unwrap();
    assert_eq!(modify(&mut queue, None, Some(2)), Ok(()));
    assert_eq!((queue.query().limit, queue.poll_event()), (0, Some(AsyncEventKind::SrqLimitReached)));
    assert_eq!(modify(&mut queue, None, Some(1)), Ok(()));
    assert_eq!((queue.query().limit, queue.poll_event()), (1, None));
    assert_eq!(modify(&mut queue, None, Some(0)), Ok(()), "disarmed");
    take(&mut queue);
    assert_eq!(queue.poll_event(), None);
}

#[test]
fn a_resize_keeps_wqes_and_their_order() {
    let mut queue = queue(4);
    (0..3).for_each(|wr_id| post(&mut queue, wr_id).unwrap());
    take(&mut queue);
    (3..5).for_each(|wr_id| post(&mut queue, wr_id).unwrap());
    for max_wr in [9, 4, 6] {
        assert_eq!(modify(&mut queue, Some(max_wr), None), Ok(()));
        assert_eq!((queue.query().max_wr, queue.len()), (max_wr, 4));
    }
    assert_eq!([(); 5].map(|()| take(&mut queue)), [Some(1), Some(2), Some(3), Some(4), None]);
}

/// A resize that fails leaves the queue as it was.
#[test]
fn a_failed_modify_changes_nothing() {
    let mut queue = queue(4);
    (0..3).for_each(|wr_id| post(&mut queue, wr_id).unwrap());
    modify(&mut queue, None, Some(2)).unwrap();
    let before = queue.query();
    for (max_wr, limit, error) in [
        (Some(2), None, ModifySrqError::Size { asked: 2, present: 3 }),
        (Some(0), None, ModifySrqError::Size { asked: 0, present: 3 }),
        (Some(3), Some(4), ModifySrqError::Limit { limit: 4, max_wr: 3 }),
        (None, Some(5), ModifySrqError::Limit { limit: 5, max_wr: 4 }),
        (Some(2), Some(1), ModifySrqError::Size { asked: 2, present: 3 }),
    ] {
        assert_eq!(modify(&mut queue, max_wr, limit), Err(error));
        assert_eq!((queue.query(), queue.len(), queue.poll_event()), (before, 3, None));
    }
    let unknown = SrqAttrMask::from_bits_retain(4);
    assert_eq!(
        queue.modify(&SrqAttr { max_wr: 9, ..before }, unknown | SrqAttrMask::MAX_WR),
        Err(ModifySrqError::Mask { unknown })
    );
    assert_eq!([(); 4].map(|()| take(&mut queue)), [Some(0), Some(1), Some(2), None]);
}

#[test]
fn a_limit_below_an_armed_one_survives_a_resize() {
    let mut queue = queue(4);
    (0..3).for_each(|wr_id| post(&mut queue, wr_id).unwrap());
    modify(&mut queue, None, Some(3)).unwrap();
    take(&mut queue);
    assert_eq!(queue.poll_event(), Some(AsyncEventKind::SrqLimitReached));
    modify(&mut queue, None, Some(2)).unwrap();
    assert_eq!(modify(&mut queue, Some(2), None), Ok(()));
    assert_eq!((queue.query().limit, queue.poll_event()), (2, None));
    take(&mut queue);
    assert_eq!(queue.poll_event(), Some(AsyncEventKind::SrqLimitReached));
}

#[test]
fn a_failed_queue_gives_nothing() {
    let mut queue = queue(4);
    post(&mut queue, 0).unwrap();
    queue.fail();
    queue.fail();
    assert_eq!((queue.poll_event(), queue.poll_event()), (Some(AsyncEventKind::SrqErr), None));
    assert_eq!(queue.take(&mut RecvWqe::new(2), 0), Taken::Failed);
    assert_eq!(queue.len(), 1);
}
