//! The hand-over of lanes under loom: every interleaving of the background thread, which is about
//! to sleep, with a thread of the program that changes something.
#![allow(dead_code, missing_docs)]

mod sync {
    pub use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
}

#[path = "../src/handover.rs"]
mod handover;

use handover::{Attention, LaneState, NEVER, Plan, TICK};
use loom::sync::Arc;
use loom::thread;
use sync::{AtomicBool, AtomicU64, Ordering};

struct World {
    lane: LaneState,
    attention: Attention,
    /// The eventfd: once written it ends the sleep, before or after it began.
    woken: AtomicBool,
    /// The deadline of the one queue pair.
    deadline: AtomicU64,
}

impl World {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            lane: LaneState::new(),
            attention: Attention::new(),
            woken: AtomicBool::new(false),
            deadline: AtomicU64::new(NEVER),
        })
    }

    fn wake(&self) {
        self.woken.store(true, Ordering::SeqCst);
    }

    /// The background thread's steps until it sleeps, as in `background.rs`.
    fn park(&self, now: u64, watching: bool) -> Plan {
        let mut watching = watching;
        loop {
            self.attention.unpark();
            let plan = self.lane.plan(now, watching);
            watching |= plan.watch;
            self.attention.park(plan.wake_at);
            let again = self.lane.plan(now, watching);
            watching |= again.watch;
            if again.wake_at >= plan.wake_at {
                return Plan { watch: watching, ..plan };
            }
        }
    }

    fn was_woken(&self) -> bool {
        self.woken.load(Ordering::SeqCst)
    }

    /// A queue pair sets its deadline, as `Locked::finish_batch` does.
    fn set_deadline(&self, at: u64) {
        self.deadline.store(at, Ordering::SeqCst);
        self.lane.deadline(at, &self.attention, || self.wake());
    }
}

const NOW: u64 = 100 * TICK;

/// The background thread falls asleep on a lane that it watches, while a post sets a deadline.
fn park_beside_post(world: &Arc<World>) -> Plan {
    let poster = {
        let world = Arc::clone(world);
        thread::spawn(move || world.set_deadline(NOW + 5))
    };
    let sleep = world.park(NOW, true);
    poster.join().unwrap();
    sleep
}

/// A thread that slept on the socket leaves: the background thread must take the socket back.
#[test]
fn the_socket_is_never_left_alone() {
    loom::model(|| {
        let world = World::new();
        assert!(world.lane.watch());
        let sleeper = {
            let world = Arc::clone(&world);
            thread::spawn(move || world.lane.unwatch(NOW, &world.attention, || world.wake()))
        };
        let sleep = world.park(NOW, false);
        sleeper.join().unwrap();
        assert!(
            sleep.watch || sleep.wake_at <= NOW + TICK || world.was_woken(),
            "asleep until {} with nobody on the socket",
            sleep.wake_at
        );
    });
}

/// A post sets a deadline while the background thread falls asleep: it must wake in time.
#[test]
fn no_deadline_is_slept_through() {
    loom::model(|| {
        let world = World::new();
        let sleep = park_beside_post(&world);
        assert!(sleep.wake_at <= NOW + 5 || world.was_woken(), "asleep until {}", sleep.wake_at);
    });
}

/// An acknowledgement was put off and the program does not come back.
#[test]
fn a_delayed_acknowledgement_is_sent() {
    loom::model(|| {
        let world = World::new();
        world.lane.served(NOW);
        let program = {
            let world = Arc::clone(&world);
            thread::spawn(move || world.lane.ack_delayed(&world.attention, || world.wake()))
        };
        let sleep = world.park(NOW, true);
        program.join().unwrap();
        assert!(sleep.wake_at <= NOW + TICK || world.was_woken(), "asleep until {}", sleep.wake_at);
        assert!(world.lane.delayed_ack_overdue(NOW + TICK));
    });
}

/// Messages begin to wait while the background thread falls asleep, and the program polls: it must wake in time all the same.
#[test]
fn messages_that_wait_are_looked_at() {
    loom::model(|| {
        let world = World::new();
        world.lane.served(NOW);
        let poster = {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                world.lane.gather_until(NOW + 5);
                world.attention.request(NOW + 5, || world.wake());
            })
        };
        let sleep = world.park(NOW, true);
        poster.join().unwrap();
        assert!(sleep.wake_at <= NOW + 5 || world.was_woken(), "asleep until {}", sleep.wake_at);
    });
}

/// The same while the lane is hot: a tick after the last poll is early enough.
#[test]
fn no_deadline_of_a_polled_lane_is_forgotten() {
    loom::model(|| {
        let world = World::new();
        world.lane.served(NOW);
        let sleep = park_beside_post(&world);
        assert!(sleep.wake_at <= NOW + TICK || world.was_woken(), "asleep until {}", sleep.wake_at);
    });
}

/// The holder scans the timers while a post sets one: seen by the scan or kept for the next.
#[test]
fn no_deadline_falls_between_two_scans() {
    loom::model(|| {
        let world = World::new();
        let poster = {
            let world = Arc::clone(&world);
            thread::spawn(move || world.set_deadline(NOW + 5))
        };
        world.lane.start_scan();
        let seen = world.deadline.load(Ordering::SeqCst);
        if seen != NEVER {
            world.lane.deadline(seen, &world.attention, || world.wake());
        }
        poster.join().unwrap();
        assert_eq!(world.lane.earliest(), NOW + 5);
    });
}

/// A thread that polls falls asleep for a moment, and stops polling when it wakes, earlier than it said: somebody
/// looks a tick later.
#[test]
fn a_program_that_stops_behind_a_short_sleep_is_noticed() {
    loom::model(|| {
        let world = World::new();
        world.lane.served(NOW);
        world.lane.asleep_until(NOW + 3 * TICK);
        assert!(world.lane.kept_by_program(NOW + 5 * TICK));
        let poller = {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                world.lane.awake(NOW + 3 * TICK, NOW, &world.attention, || world.wake());
            })
        };
        let sleep = world.park(NOW, false);
        poller.join().unwrap();
        assert!(!sleep.watch && (sleep.wake_at == NOW + TICK || world.was_woken()), "{}", sleep.wake_at);
        assert!(world.park(NOW + TICK, false).watch);
    });
}

/// A timer that is set during a short sleep runs in time, on a lane that the background thread watches, too.
#[test]
fn a_timer_behind_a_short_sleep_runs() {
    loom::model(|| {
        let world = World::new();
        world.lane.served(NOW);
        world.lane.asleep_until(NOW + 8 * TICK);
        let sleep = park_beside_post(&world);
        assert!(sleep.wake_at <= NOW + TICK || world.was_woken(), "asleep until {}", sleep.wake_at);
        assert!(world.lane.earliest() <= NOW + TICK && !world.lane.timers_kept_by_program(NOW + TICK));
    });
}

/// Packets wake a poller from its short sleep, and completions do not: the background thread leaves them to it also
/// if it is eager, until the poller is lost.
#[test]
fn who_sleeps_between_polls_gets_the_packets() {
    loom::model(|| {
        let world = World::new();
        world.lane.become_eager(false);
        world.lane.served(5);
        assert!(!world.lane.kept_by_program(6) && !world.lane.is_asleep(6));
        world.lane.asleep_until(1000);
        assert!(world.lane.is_asleep(999) && world.lane.is_asleep(8_000_999));
        assert!(!world.lane.is_asleep(8_001_000));
        world.lane.awake(1000, 500, &world.attention, || {});
        assert!(!world.lane.is_asleep(501));
    });
}

/// If two threads try to sleep on the socket, one succeeds; the other may after the first has left.
#[test]
fn one_thread_watches() {
    loom::model(|| {
        let world = World::new();
        let other = {
            let world = Arc::clone(&world);
            thread::spawn(move || world.lane.watch())
        };
        let here = world.lane.watch();
        assert!(here ^ other.join().unwrap());
        world.lane.unwatch(NOW, &world.attention, || ());
        assert!(world.lane.watch());
    });
}
