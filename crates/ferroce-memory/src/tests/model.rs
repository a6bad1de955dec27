//! A model of regions and windows against the real ones: whatever was done, a key gives exactly the access
//! that its owner gave last, to nobody else, and never after it was deregistered, invalidated, bound again or
//! its queue pair destroyed.

use ferroce_proto::{Bind, WindowAccess};
use ferroce_wire::Qpn;
use proptest::prelude::*;

use super::*;

const DOMAINS: [PdId; 2] = [PdId::new(1), PdId::new(2)];
const QUEUE_PAIRS: [Qpn; 3] = [Qpn::new(17), Qpn::new(18), Qpn::new(19)];
/// Queue pairs 0 and 1 are of domain 0, the last of domain 1.
const DOMAIN_OF: [usize; 3] = [0, 0, 1];
/// Objects that the operations name; there may be none of that name.
const NAMES: usize = 4;
const SIZE: u64 = 64;

/// An operation of the model. Numbers name objects.
#[derive(Clone, Debug)]
enum Step {
    Register {
        region: usize,
        domain: usize,
        bindable: bool,
    },
    Reregister {
        region: usize,
        domain: usize,
    },
    Deregister {
        region: usize,
    },
    End {
        region: usize,
    },
    Alloc {
        window: usize,
        domain: usize,
        kind: MwType,
    },
    Dealloc {
        window: usize,
    },
    Bind {
        window: usize,
        region: usize,
        octet: u32,
        qp: usize,
        length: u64,
    },
    /// Invalidates any key that ever was.
    Invalidate {
        key: usize,
        qp: usize,
    },
    DestroyQp {
        qp: usize,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let (name, domain, qp) = (0..NAMES, 0..DOMAINS.len(), 0..QUEUE_PAIRS.len());
    let kind = prop_oneof![Just(MwType::One), Just(MwType::Two)];
    let length = prop_oneof![1 => Just(0), 6 => Just(SIZE / 2), 1 => Just(SIZE + 1)];
    prop_oneof![
        3 => (name.clone(), domain.clone(), prop::bool::weighted(0.8))
            .prop_map(|(region, domain, bindable)| Step::Register { region, domain, bindable }),
        1 => (name.clone(), domain.clone()).prop_map(|(region, domain)| Step::Reregister { region, domain }),
        2 => name.clone().prop_map(|region| Step::Deregister { region }),
        1 => name.clone().prop_map(|region| Step::End { region }),
        3 => (name.clone(), domain, kind)
            .prop_map(|(window, domain, kind)| Step::Alloc { window, domain, kind }),
        1 => name.clone().prop_map(|window| Step::Dealloc { window }),
        8 => (name.clone(), name, 0..4_u32, qp.clone(), length).prop_map(
            |(window, region, octet, qp, length)| Step::Bind { window, region, octet, qp, length }
        ),
        4 => (any::<prop::sample::Index>(), qp.clone())
            .prop_map(|(key, qp)| Step::Invalidate { key: key.index(1 << 16), qp }),
        1 => qp.prop_map(|qp| Step::DestroyQp { qp }),
    ]
}

#[derive(Clone, Copy)]
struct Region {
    key: Key,
    domain: usize,
    bindable: bool,
}

#[derive(Clone, Copy)]
struct Window {
    name: Key,
    domain: usize,
    kind: MwType,
    /// Key, region, and the queue pair that bound it.
    bound: Option<(u32, Key, usize)>,
}

/// The expected state.
#[derive(Default)]
struct Model {
    regions: [Option<Region>; NAMES],
    windows: [Option<Window>; NAMES],
    /// Keys that were given, whatever became of them.
    keys: Vec<u32>,
}

impl Model {
    fn windows_on(&self, region: Key) -> usize {
        self.windows
            .iter()
            .flatten()
            .filter(|window| window.bound.is_some_and(|(_, on, _)| on == region))
            .count()
    }

    /// Whether a peer of `qp` may read by `key`.
    fn may_read(&self, key: u32, qp: usize) -> bool {
        let region = self.regions.iter().flatten().find(|region| region.key.value() == key);
        let window =
            self.windows.iter().flatten().find(|window| window.bound.is_some_and(|(k, ..)| k == key));
        match (region, window) {
            (Some(region), None) => region.domain == DOMAIN_OF[qp],
            (None, Some(window)) => {
                let by = window.bound.map(|(.., by)| by);
                window.domain == DOMAIN_OF[qp] && (window.kind == MwType::One || by == Some(qp))
            }
            (None, None) => false,
            (Some(_), Some(_)) => panic!("{key:#x} is the key of two"),
        }
    }
}

/// The real ones.
struct Real {
    table: MemoryTable,
    pages: Pages,
    views: Vec<View>,
}

impl Real {
    fn new() -> Self {
        let table = table();
        let views = (0..QUEUE_PAIRS.len()).map(|qp| Self::fresh(&table, qp)).collect();
        Self { table, pages: Pages::new(1), views }
    }

    fn fresh(table: &MemoryTable, qp: usize) -> View {
        table.view(DOMAINS[DOMAIN_OF[qp]]).of(QUEUE_PAIRS[qp])
    }

    /// Does it on both; they must agree on whether it can be done.
    fn run(&mut self, model: &mut Model, step: &Step) {
        let at = self.pages.addr;
        match *step {
            Step::Register { region, domain, bindable } if model.regions[region].is_none() => {
                let mut access = Access::LOCAL_WRITE | Access::REMOTE_READ;
                access.set(Access::MW_BIND, bindable);
                let key = self.table.register(DOMAINS[domain], at, SIZE as usize, at, access).unwrap();
                model.regions[region] = Some(Region { key, domain, bindable });
                model.keys.push(key.value());
            }
            Step::Reregister { region, domain } => {
                let Some(mut to) = model.regions[region] else { return };
                let change = Change { pd: Some(DOMAINS[domain]), ..Change::default() };
                let done = self.table.reregister(to.key, change).is_ok();
                assert_eq!(done, model.windows_on(to.key) == 0);
                if done {
                    to.domain = domain;
                    model.regions[region] = Some(to);
                }
            }
            Step::Deregister { region } => {
                let Some(Region { key, .. }) = model.regions[region] else { return };
                let windows = model.windows_on(key);
                let want = if windows == 0 { Ok(()) } else { Err(windows as u32) };
                assert_eq!(self.table.deregister(key), want);
                if windows == 0 {
                    model.regions[region] = None;
                }
            }
            Step::End { region } => {
                let Some(Region { key, .. }) = model.regions[region].take() else { return };
                self.table.end(key);
                for window in model.windows.iter_mut().flatten() {
                    window.bound.take_if(|(_, on, _)| *on == key);
                }
            }
            Step::Alloc { window, domain, kind } if model.windows[window].is_none() => {
                let name = self.table.alloc_window(DOMAINS[domain], kind).unwrap();
                model.windows[window] = Some(Window { name, domain, kind, bound: None });
                model.keys.push(name.value());
            }
            Step::Dealloc { window } => {
                let Some(window) = model.windows[window].take() else { return };
                self.table.dealloc_window(window.name);
            }
            Step::Bind { window, region, octet, qp, length } => {
                let (Some(window), Some(region)) = (model.windows[window].as_mut(), model.regions[region])
                else {
                    return;
                };
                let done = self.views[qp].bind(&Bind {
                    window: rkey(window.name),
                    rkey: Rkey::new(octet),
                    region: lkey(region.key),
                    addr: at,
                    length,
                    access: WindowAccess::REMOTE_READ,
                });
                let here = DOMAIN_OF[qp];
                let fits = region.domain == here && region.bindable && length <= SIZE;
                let possible = window.domain == here
                    && match (window.kind, length) {
                        (MwType::One, 0) => true,
                        (MwType::One, _) => fits,
                        (MwType::Two, 0) => false,
                        (MwType::Two, _) => fits && window.bound.is_none(),
                    };
                assert_eq!(done.is_ok(), possible, "{done:?}");
                if possible {
                    let key = window.name.with_octet_of(octet).value();
                    window.bound = (length > 0).then_some((key, region.key, qp));
                    model.keys.push(key);
                }
            }
            Step::Invalidate { key, qp } => {
                let Some(&key) = model.keys.get(key % model.keys.len().max(1)) else { return };
                let done = self.views[qp].invalidate(Rkey::new(key)).is_ok();
                let its = |window: &&mut Window| {
                    window.kind == MwType::Two
                        && window.bound.is_some_and(|(bound, _, by)| (bound, by) == (key, qp))
                };
                let window = model.windows.iter_mut().flatten().find(its);
                assert_eq!(done, window.is_some());
                window.into_iter().for_each(|window| window.bound = None);
            }
            Step::DestroyQp { qp } => {
                self.views[qp].end_windows();
                self.views[qp] = Self::fresh(&self.table, qp);
                for window in model.windows.iter_mut().flatten().filter(|window| window.kind == MwType::Two) {
                    window.bound.take_if(|(.., by)| *by == qp);
                }
            }
            Step::Register { .. } | Step::Alloc { .. } => {}
        }
    }

    /// Every key that ever was gives what the model says.
    fn check(&self, model: &Model) {
        for (qp, view) in self.views.iter().enumerate() {
            for &key in &model.keys {
                let read = view.read_remote(Rkey::new(key), self.pages.addr, &mut [0; 8], 0);
                assert_eq!(read.is_ok(), model.may_read(key, qp), "{key:#x} of queue pair {qp}: {read:?}");
            }
        }
        let objects = model.regions.iter().flatten().count() + model.windows.iter().flatten().count();
        assert_eq!(self.table.len(), objects);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(few_in_miri(400) as u32))]

    #[test]
    fn no_key_works_after_its_region_is_gone(steps in prop::collection::vec(step(), 1..60)) {
        let (mut real, mut model) = (Real::new(), Model::default());
        for step in &steps {
            real.run(&mut model, step);
            real.check(&model);
        }
    }
}
