//! The destinations of a port: which of them it reaches, and when the kernel was last asked to look for their
//! hardware addresses.
//!
//! The program behind the port takes hardware addresses from the kernel's table of neighbours and drops
//! packets to others. The kernel fills and renews that table for packets of sockets alone. So a datagram of a
//! socket leaves once a second for a destination that is sent to, and packets to a destination that was not
//! sent to for long leave by the socket at first, where they wait for the answer.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use ferroce_wire::Instant;

/// Destinations whose state is kept; a power of two. Of two destinations with the same place one takes it
/// from the other.
const PLACES: usize = 1024;
/// The kernel is asked once in this time, in milliseconds.
const INTERVAL: u32 = 1000;
/// Packets to a new destination take the socket for this time, in milliseconds: the kernel asks the wire for
/// the hardware address.
const SETTLING: u32 = 100;
/// A destination that was not sent to for this time is new, in milliseconds: the kernel forgets unused
/// neighbours after a minute.
const FORGOTTEN: u32 = 30_000;

/// The way of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Way {
    Socket,
    Port {
        /// The kernel is to be asked to look for the next hop.
        look_for: bool,
    },
}

/// How packets to a destination leave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
enum RouteState {
    /// No destination has the place.
    Empty = 0,
    /// Packets leave by the port.
    Port = 1,
    /// Packets leave by the socket until the address is settled, then by the port.
    New = 2,
    /// Packets leave by the socket.
    Socket = 3,
}

/// A place of the table: the upper 30 bits of a hash of the destination, the state, and the time in
/// milliseconds.
#[derive(Clone, Copy)]
struct Entry(u64);

impl Entry {
    const fn new(tag: u32, state: RouteState, at: u32) -> Self {
        Self((tag as u64) << 34 | (state as u64) << 32 | at as u64)
    }

    const fn tag(self) -> u32 {
        (self.0 >> 34) as u32
    }

    const fn at(self) -> u32 {
        self.0 as u32
    }

    const fn state(self) -> RouteState {
        match (self.0 >> 32) & 3 {
            0 => RouteState::Empty,
            1 => RouteState::Port,
            2 => RouteState::New,
            _ => RouteState::Socket,
        }
    }
}

/// The destinations, each a relaxed atomic. A lost update costs one more datagram.
pub(super) struct Routes {
    places: Box<[AtomicU64]>,
}

impl Routes {
    pub(super) fn new() -> Self {
        Self { places: (0..PLACES).map(|_| AtomicU64::new(0)).collect() }
    }

    /// The caller asks the kernel to look for `destination` now, and packets leave by the port at once.
    pub(super) fn known(&self, destination: IpAddr, now: Instant) {
        let (place, tag) = self.find(destination);
        if let Some(place) = place {
            place.store(Entry::new(tag, RouteState::Port, millis(now)).0, Ordering::Relaxed);
        }
    }

    /// The way of packets to `destination`. `by_socket` says whether they never leave by the port; it is
    /// asked once a second.
    #[inline]
    pub(super) fn way(&self, destination: IpAddr, now: Instant, by_socket: impl FnOnce() -> bool) -> Way {
        let (place, tag) = self.find(destination);
        let Some(place) = place else { return Way::Socket };
        let (entry, now) = (Entry(place.load(Ordering::Relaxed)), millis(now));
        let age = now.wrapping_sub(entry.at());
        if entry.tag() == tag && age < INTERVAL {
            match entry.state() {
                RouteState::Port => return Way::Port { look_for: false },
                RouteState::New if age < SETTLING => return Way::Socket,
                RouteState::New => return Way::Port { look_for: false },
                RouteState::Socket => return Way::Socket,
                RouteState::Empty => {}
            }
        }
        let is_new = entry.tag() != tag || entry.state() == RouteState::Empty || age >= FORGOTTEN;
        let state = match is_new {
            _ if by_socket() => RouteState::Socket,
            true => RouteState::New,
            false => RouteState::Port,
        };
        place.store(Entry::new(tag, state, now).0, Ordering::Relaxed);
        if state == RouteState::Port { Way::Port { look_for: true } } else { Way::Socket }
    }

    fn find(&self, destination: IpAddr) -> (Option<&AtomicU64>, u32) {
        let hash = hash(destination);
        let place = (hash >> 54) as usize % PLACES;
        (self.places.get(place), (hash >> 20) as u32 & 0x3fff_ffff)
    }
}

/// A number whose upper bits depend on all bits of the destination.
#[inline]
pub(super) fn hash(destination: IpAddr) -> u64 {
    let number = match destination {
        IpAddr::V4(ip) => u128::from(ip.to_bits()),
        IpAddr::V6(ip) => ip.to_bits(),
    };
    // The multiplier of SplitMix64.
    let hash = (number as u64 ^ ((number >> 64) as u64).rotate_left(31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (hash ^ (hash >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Wraps after 49 days. A destination that was not sent to for just as long may then be asked for once more
/// or less.
fn millis(now: Instant) -> u32 {
    (now.as_nanos() / 1_000_000) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOME: u64 = 5_000;

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    fn ip(n: u32) -> IpAddr {
        std::net::Ipv4Addr::from_bits(0x0a00_0000 + n).into()
    }

    #[test]
    fn a_new_destination_takes_the_socket_until_the_kernel_knows_it() {
        let routes = Routes::new();
        let way = |millis| routes.way(ip(1), at(millis), || false);
        let settling = u64::from(SETTLING);
        assert_eq!(way(HOME), Way::Socket);
        assert_eq!(way(HOME + settling - 1), Way::Socket);
        assert_eq!(way(HOME + settling), Way::Port { look_for: false });
        assert_eq!(way(HOME + 999), Way::Port { look_for: false });
        assert_eq!(way(HOME + 1000), Way::Port { look_for: true }, "once a second");
        assert_eq!(way(HOME + 1001), Way::Port { look_for: false });
        assert_eq!(way(HOME + 9000), Way::Port { look_for: true });
        assert_eq!(way(HOME + 9000 + u64::from(FORGOTTEN)), Way::Socket, "new again");
    }

    #[test]
    fn a_destination_of_a_path_takes_the_port_at_once() {
        let routes = Routes::new();
        routes.known(ip(1), at(HOME));
        assert_eq!(routes.way(ip(1), at(HOME + 1), || unreachable!()), Way::Port { look_for: false });
        assert_eq!(routes.way(ip(1), at(HOME + 1001), || false), Way::Port { look_for: true });
    }

    #[test]
    fn an_address_of_this_host_takes_the_socket_and_is_asked_for_once_a_second() {
        let routes = Routes::new();
        let mut asked = 0;
        for millis in 0..3000 {
            assert_eq!(
                routes.way(ip(1), at(HOME + millis), || {
                    asked += 1;
                    true
                }),
                Way::Socket
            );
        }
        assert_eq!(asked, 3);
        // The address moved to another host.
        assert_eq!(routes.way(ip(1), at(HOME + 4000), || false), Way::Port { look_for: true });
    }

    #[test]
    fn many_destinations_have_places_of_their_own() {
        let routes = Routes::new();
        let destinations = (0..200).map(ip).chain((0..200).map(|n| {
            let [a, b] = [(n / 7) as u16, n as u16];
            std::net::Ipv6Addr::new(0xfd00, 0, 0, a, 0, 0, 0, b).into()
        }));
        let found = destinations.map(|ip| {
            let (place, tag) = routes.find(ip);
            (std::ptr::from_ref(place.unwrap()), tag)
        });
        let found: Vec<_> = found.collect();
        let distinct = |mut keys: Vec<usize>| {
            keys.sort_unstable();
            keys.dedup();
            keys.len()
        };
        // A random choice of 400 among 1024 places has 331 different ones in the mean.
        let places = distinct(found.iter().map(|(place, _)| place.addr()).collect());
        assert!((300..360).contains(&places), "{places}");
        let tags = distinct(found.iter().map(|(_, tag)| *tag as usize).collect());
        assert_eq!(tags, 400);
    }

    #[test]
    fn the_clock_may_begin_anywhere() {
        let routes = Routes::new();
        for start in [0, u64::from(u32::MAX) - 500] {
            routes.known(ip(1), at(start));
            for later in (0..INTERVAL).step_by(100) {
                let way = routes.way(ip(1), at(start + u64::from(later)), || false);
                assert_eq!(way, Way::Port { look_for: false }, "{start} {later}");
            }
        }
    }
}
