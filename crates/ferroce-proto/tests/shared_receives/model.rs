//! Random lives of shared receive queues and the queue pairs on them, against a model of a few lines.

use std::collections::VecDeque;
use std::sync::Arc;

use ferroce_proto::{AsyncEventKind, QpState, Service, SrqAttr, SrqAttrMask};
use ferroce_wire::{Request, SendTail};
use proptest::prelude::*;

use crate::probe::{DATA, HOME, Probe, Queue, Source, Xrcd};

#[derive(Clone, Debug)]
enum Op {
    Post {
        queue: usize,
    },
    /// A whole message to a queue.
    Message {
        qp: usize,
        queue: usize,
    },
    /// The first packet of a message of two.
    First {
        qp: usize,
        queue: usize,
    },
    /// The last of it.
    Last {
        qp: usize,
        queue: usize,
    },
    Limit {
        queue: usize,
        limit: u32,
    },
    Resize {
        queue: usize,
        max_wr: u32,
    },
    /// To the error state, to RESET, and up again.
    Cycle {
        qp: usize,
    },
    /// The queue leaves its domain, and a new one comes in its place under a new number: XRC.
    Replace {
        queue: usize,
    },
}

const QPS: usize = 3;
const QUEUES: usize = 2;

fn op() -> impl Strategy<Value = Op> {
    let (qp, queue) = (0..QPS, 0..QUEUES);
    prop_oneof![
        4 => queue.clone().prop_map(|queue| Op::Post { queue }),
        4 => (qp.clone(), queue.clone()).prop_map(|(qp, queue)| Op::Message { qp, queue }),
        2 => (qp.clone(), queue.clone()).prop_map(|(qp, queue)| Op::First { qp, queue }),
        3 => (qp.clone(), queue.clone()).prop_map(|(qp, queue)| Op::Last { qp, queue }),
        1 => (queue.clone(), 0..6_u32).prop_map(|(queue, limit)| Op::Limit { queue, limit }),
        1 => (queue.clone(), 0..9_u32).prop_map(|(queue, max_wr)| Op::Resize { queue, max_wr }),
        1 => qp.prop_map(|qp| Op::Cycle { qp }),
        1 => queue.prop_map(|queue| Op::Replace { queue }),
    ]
}

/// The expected state of a queue.
#[derive(Default)]
struct QueueModel {
    wqes: VecDeque<u64>,
    max_wr: u32,
    limit: u32,
    number: u32,
}

/// The expected state of a queue pair.
#[derive(Default)]
struct QpModel {
    psn: u32,
    /// The WQE in use and the number of its queue.
    bound: Option<(u64, u32)>,
    dead: bool,
}

struct World {
    xrc: bool,
    xrcd: Arc<Xrcd>,
    queues: Vec<Arc<Queue>>,
    qps: Vec<Probe>,
    queue_models: Vec<QueueModel>,
    qp_models: Vec<QpModel>,
    next_wr: u64,
    next_number: u32,
}

impl World {
    /// With XRC every target reaches every queue; otherwise all queue pairs are on queue 0.
    fn new(xrc: bool) -> Self {
        let xrcd = Arc::new(Xrcd::default());
        let queues: Vec<_> = (0..QUEUES).map(|n| xrcd.add(100 + n as u32, HOME)).collect();
        let queue_models = (0..QUEUES)
            .map(|n| QueueModel { max_wr: 16, number: 100 + n as u32, ..QueueModel::default() })
            .collect();
        let qps = (0..QPS)
            .map(|_| match xrc {
                true => {
                    let source = Source::Xrc { xrcd: Arc::clone(&xrcd), own_memory: true };
                    Probe::new(Service::XrcTarget, source, &[HOME]).bring(Service::XrcTarget, QpState::Rtr)
                }
                false => {
                    let source = Source::Queue(Arc::clone(&queues[0]));
                    Probe::new(Service::Rc, source, &[HOME]).bring(Service::Rc, QpState::Rtr)
                }
            })
            .collect();
        let qp_models = (0..QPS).map(|_| QpModel::default()).collect();
        Self { xrc, xrcd, queues, qps, queue_models, qp_models, next_wr: 0, next_number: 200 }
    }

    fn run(&mut self, op: &Op) {
        let place = |queue: usize, xrc| if xrc { queue } else { 0 };
        match *op {
            Op::Post { queue } => self.post(place(queue, self.xrc)),
            Op::Message { qp, queue } => self.packet(qp, place(queue, self.xrc), true, true),
            Op::First { qp, queue } => self.packet(qp, place(queue, self.xrc), true, false),
            Op::Last { qp, queue } => self.packet(qp, place(queue, self.xrc), false, true),
            Op::Limit { queue, limit } => self.modify(place(queue, self.xrc), None, Some(limit)),
            Op::Resize { queue, max_wr } => self.modify(place(queue, self.xrc), Some(max_wr), None),
            Op::Cycle { qp } => self.cycle(qp),
            Op::Replace { queue } if self.xrc => self.replace(queue),
            Op::Replace { .. } => {}
        }
        for (queue, model) in self.queues.iter().zip(&self.queue_models) {
            let query = queue.0.lock().unwrap().query();
            assert_eq!((query.max_wr, query.limit), (model.max_wr, model.limit), "{op:?}");
            assert_eq!(queue.len() as usize, model.wqes.len(), "{op:?}");
        }
    }

    fn post(&mut self, queue: usize) {
        let model = &mut self.queue_models[queue];
        if model.wqes.len() < model.max_wr as usize {
            model.wqes.push_back(self.next_wr);
            self.queues[queue].post(self.next_wr, 4096);
            self.next_wr += 1;
        }
    }

    fn packet(&mut self, qp: usize, queue: usize, first: bool, last: bool) {
        let number = self.queue_models[queue].number;
        let request = match (first, last) {
            (true, true) => Request::SendOnly { payload: &DATA[..4], tail: SendTail::None },
            (true, false) => Request::SendFirst { payload: &DATA[..1024] },
            _ => Request::SendLast { payload: &DATA[..4], tail: SendTail::None },
        };
        let model = &mut self.qp_models[qp];
        let named = self.xrc.then_some(number);
        let taken = self.qps[qp].request(model.psn, named, request).is_ok();
        let sent = self.qps[qp].out();
        let events = self.qps[qp].events();
        let on = |number: u32| if self.xrc { format!(" on {number}") } else { String::new() };
        let dead = |flushed: Option<(u64, u32)>| {
            let flushed = flushed.map(|(id, number)| format!("recv {id} WrFlushErr{}", on(number)));
            flushed.into_iter().chain(["QpLastWqeReached".to_owned()]).collect::<Vec<_>>()
        };
        if model.dead {
            assert_eq!((taken, sent.len(), events.len()), (false, 0, 0));
            return;
        }
        // Last outside of a message, First inside of one, or another queue in the middle: the end.
        let fits = model.bound.is_none() == first;
        let same = model.bound.is_none_or(|(_, bound)| first || !self.xrc || bound == number);
        if !fits || !same {
            assert!(!taken && sent.iter().any(|packet| packet.contains("Nak 0x61")), "{sent:?}");
            let mut want = dead(model.bound.take());
            if events.first().is_some_and(|event| event == "QpReqErr") {
                want.insert(0, "QpReqErr".to_owned());
            }
            assert_eq!(events, want);
            model.dead = true;
            return;
        }
        let queue_model = &mut self.queue_models[queue];
        let mut want = Vec::new();
        if first {
            let Some(id) = queue_model.wqes.pop_front() else {
                assert!(!taken && sent.iter().any(|packet| packet.contains("Rnr")), "{sent:?}");
                assert_eq!(events, [""; 0]);
                return;
            };
            model.bound = Some((id, number));
            let reached = (queue_model.wqes.len() as u32) < queue_model.limit;
            if reached {
                queue_model.limit = 0;
            }
            let event = self.queues[queue].0.lock().unwrap().poll_event();
            assert_eq!(event, reached.then_some(AsyncEventKind::SrqLimitReached));
        }
        if last && let Some((id, number)) = model.bound.take() {
            want.push(format!("recv {id} Success{}", on(number)));
        }
        model.psn += 1;
        assert!(taken);
        assert_eq!(events, want);
    }

    fn modify(&mut self, queue: usize, max_wr: Option<u32>, limit: Option<u32>) {
        let model = &mut self.queue_models[queue];
        let attr = SrqAttr { max_wr: max_wr.unwrap_or(0), max_sge: 0, limit: limit.unwrap_or(0) };
        let mask = if max_wr.is_some() { SrqAttrMask::MAX_WR } else { SrqAttrMask::LIMIT };
        let (size, bound) = (max_wr.unwrap_or(model.max_wr), limit.unwrap_or(model.limit));
        let allowed = size > 0 && size as usize >= model.wqes.len() && bound <= size;
        let mut srq = self.queues[queue].0.lock().unwrap();
        assert_eq!(srq.modify(&attr, mask).is_ok(), allowed);
        let mut reached = false;
        if allowed {
            (model.max_wr, model.limit) = (size, bound);
            reached = (model.wqes.len() as u32) < bound;
            if reached {
                model.limit = 0;
            }
        }
        assert_eq!(srq.poll_event(), reached.then_some(AsyncEventKind::SrqLimitReached));
    }

    fn cycle(&mut self, qp: usize) {
        let model = &mut self.qp_models[qp];
        let probe = &mut self.qps[qp];
        probe.to(QpState::Error);
        let mut want = Vec::new();
        if !model.dead {
            if let Some((id, number)) = model.bound {
                let on = if self.xrc { format!(" on {number}") } else { String::new() };
                want.push(format!("recv {id} WrFlushErr{on}"));
            }
            want.push("QpLastWqeReached".to_owned());
        }
        assert_eq!(probe.events(), want);
        probe.to(QpState::Reset);
        let service = if self.xrc { Service::XrcTarget } else { Service::Rc };
        let fresh = std::mem::replace(probe, Probe::new(Service::Rc, Source::Own, &[HOME]));
        *probe = fresh.bring(service, QpState::Rtr);
        *model = QpModel::default();
    }

    /// A receive taken from a queue before its destruction still completes under its number; nothing else completes
    /// from it.
    fn replace(&mut self, queue: usize) {
        let model = &mut self.queue_models[queue];
        self.xrcd.0.lock().unwrap().remove(&model.number);
        *model = QueueModel { max_wr: 16, number: self.next_number, ..QueueModel::default() };
        self.queues[queue] = self.xrcd.add(self.next_number, HOME);
        self.next_number += 1;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn rc_on_a_shared_queue(ops in proptest::collection::vec(op(), 1..60)) {
        let mut world = World::new(false);
        ops.iter().for_each(|op| world.run(op));
    }

    #[test]
    fn xrc_targets_on_several_queues(ops in proptest::collection::vec(op(), 1..60)) {
        let mut world = World::new(true);
        ops.iter().for_each(|op| world.run(op));
    }
}
