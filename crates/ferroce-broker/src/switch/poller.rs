//! The thread of a port of DPDK.
//!
//! The thread asks the port for frames all the time while traffic passes, because a port has no descriptor to
//! wait for. After [`SPIN`] without a frame it sleeps between its looks, and longer after longer silence: the
//! first packet after a silence waits for the end of a sleep. Frames of the kernel end a sleep, since the tap
//! has a descriptor.

use std::time::{Duration, Instant};

use ferroce_datapath::dpdk::{BURST, Burst, Rx};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::dpdk::DpdkPort;

/// The time without a frame after which the thread sleeps.
const SPIN: Duration = Duration::from_micros(200);
/// The sleeps, each with the time without a frame up to which it is taken.
const SLEEPS: [(Duration, Duration); 2] = [
    (Duration::from_millis(20), Duration::from_micros(50)),
    (Duration::from_secs(1), Duration::from_micros(250)),
];
/// The sleep after that.
const LONG_SLEEP: Duration = Duration::from_millis(1);
/// Looks at the port for each look at the tap, which is a system call.
const LOOKS_PER_TAP: u32 = 16;
/// The time between two questions about the link.
const LINK_PERIOD: Duration = Duration::from_millis(500);

/// Serves the port until it is stopped. `serve` gives away the frames of a burst and sends the packets of
/// programs; it returns whether there are more of these, or `None` at the end of the switch.
pub(super) fn run(
    port: &DpdkPort,
    mut rx: Rx,
    mut serve: impl FnMut(Instant, Option<&Burst>) -> Option<bool>,
) {
    rx.know_thread();
    let mut burst = Burst::new(port.mtu);
    let mut last_frame = Instant::now();
    let mut next_link = last_frame;
    let mut looks: u32 = 0;
    while !port.is_stopped() {
        let now = Instant::now();
        let received = rx.receive(&mut burst) > 0;
        let Some(more) = serve(now, received.then_some(&burst)) else { break };
        let idle = now.saturating_duration_since(last_frame);
        looks = looks.wrapping_add(1);
        let look_at_tap = idle > SPIN || looks.is_multiple_of(LOOKS_PER_TAP);
        let sent = look_at_tap && take_from_kernel(port);
        if received || more || sent {
            last_frame = now;
            continue;
        }
        if now >= next_link {
            next_link = now + LINK_PERIOD;
            if let Some(up) = rx.link() {
                let _ = port.tap.set_carrier(up); // before Linux 5.0 it always has one
            }
        }
        match idle {
            idle if idle <= SPIN => std::thread::yield_now(),
            idle => {
                let sleep =
                    SLEEPS.iter().find(|(until, _)| idle <= *until).map_or(LONG_SLEEP, |(_, sleep)| *sleep);
                wait(port, sleep);
            }
        }
    }
    drop(rx);
    port.end();
}

/// Sends what the kernel sends by the tap. Returns whether there was a frame.
fn take_from_kernel(port: &DpdkPort) -> bool {
    let mut any = false;
    for _ in 0..BURST {
        if !port.send_with(|place| port.tap.read(place).ok().flatten().filter(|len| *len > 0)) {
            break;
        }
        any = true;
    }
    if any {
        port.flush();
    }
    any
}

/// Sleeps until the kernel has a frame, the thread is woken, or the time is over.
fn wait(port: &DpdkPort, sleep: Duration) {
    let limit = Timespec { tv_sec: 0, tv_nsec: i64::from(sleep.subsec_nanos()) };
    let mut fds = [PollFd::new(&port.tap, PollFlags::IN), PollFd::new(port.wake(), PollFlags::IN)];
    let _ = poll(&mut fds, Some(&limit)); // whatever it says, the next look follows
}
