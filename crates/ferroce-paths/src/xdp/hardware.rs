//! The hardware addresses of frames that leave by a direct port, where no program of the kernel writes them.
//!
//! They come from the kernel's tables of routes and neighbours. An answer is used for a second, so that
//! packets follow a change of the tables, such as the fail-over of a router, as soon.

use std::net::IpAddr;
use std::time::Duration;

use ferroce_datapath::xdp::HARDWARE;
use ferroce_wire::{Flow, Instant};

use super::routes::hash;

/// Destinations whose addresses are kept; a power of two. Of two with the same place one takes it from the
/// other.
const PLACES: usize = 256;
/// How long an address is used.
const INTERVAL: Duration = Duration::from_secs(1);
/// How soon the kernel is asked again for an address that it did not know.
const RETRY: Duration = Duration::from_millis(5);

/// Asks for the hardware addresses of frames from a source to a destination: first the next hop's, then the
/// interface's own. `None` if the kernel does not know the next hop. It neither allocates nor waits.
pub(super) type Resolve = dyn FnMut(IpAddr, IpAddr) -> Option<[u8; HARDWARE]> + Send;

pub(super) struct Hardware {
    resolve: Box<Resolve>,
    places: Box<[Option<Place>]>,
}

#[derive(Clone, Copy)]
struct Place {
    source: IpAddr,
    destination: IpAddr,
    addresses: Option<[u8; HARDWARE]>,
    /// Time at which to ask again.
    until: Instant,
}

impl Hardware {
    pub(super) fn new(resolve: Box<Resolve>) -> Self {
        Self { resolve, places: vec![None; PLACES].into_boxed_slice() }
    }

    /// The addresses of frames of a flow; `None` if its packets cannot leave by the port now.
    #[inline]
    pub(super) fn find(&mut self, flow: &Flow, now: Instant) -> Option<[u8; HARDWARE]> {
        let (source, destination) = (flow.source, flow.destination);
        let at = (hash(destination) >> 56) as usize % PLACES;
        let place = self.places.get_mut(at)?;
        match place {
            Some(known)
                if (known.source, known.destination) == (source, destination) && now < known.until =>
            {
                known.addresses
            }
            _ => {
                let addresses = (self.resolve)(source, destination);
                let until = now + if addresses.is_some() { INTERVAL } else { RETRY };
                *place = Some(Place { source, destination, addresses, until });
                addresses
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use ferroce_wire::LinkLayer;

    use super::*;

    fn flow(last: u8) -> Flow {
        Flow {
            source: [10, 0, 0, 1].into(),
            destination: [10, 0, 0, last].into(),
            source_port: 50_000,
            traffic_class: 0,
            hop_limit: 64,
            link: LinkLayer::UDP,
        }
    }

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn the_kernel_is_asked_once_a_second_and_sooner_for_what_it_does_not_know() {
        let asked = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&asked);
        // Knows the destination from the third question on, and gives it another address each time.
        let mut hardware = Hardware::new(Box::new(move |_, to| {
            let number = count.fetch_add(1, Ordering::Relaxed);
            let last = match to {
                IpAddr::V4(ip) => ip.octets()[3],
                IpAddr::V6(_) => 0,
            };
            (number >= 2).then_some([last ^ number as u8; HARDWARE])
        }));
        let mut look = |last, millis| hardware.find(&flow(last), at(millis)).map(|addresses| addresses[0]);
        assert_eq!(look(9, 100), None);
        assert_eq!(look(9, 104), None);
        assert_eq!(asked.load(Ordering::Relaxed), 1);
        assert_eq!(look(9, 105), None);
        assert_eq!(look(9, 110), Some(9 ^ 2));
        assert_eq!(look(9, 1109), Some(9 ^ 2));
        assert_eq!(look(9, 1110), Some(9 ^ 3), "a change is seen after a second");
        let before = asked.load(Ordering::Relaxed);
        for last in 20..40 {
            assert_eq!(look(last, 2000).map(|address| address ^ last), Some(before as u8 + last - 20));
        }
    }

    #[test]
    fn destinations_with_one_place_have_addresses_of_their_own() {
        let mut hardware = Hardware::new(Box::new(|_, to| match to {
            IpAddr::V4(ip) => Some([ip.octets()[3]; HARDWARE]),
            IpAddr::V6(_) => None,
        }));
        let place = |last| (hash([10, 0, 0, last].into()) >> 56) as usize % PLACES;
        let same = (1..=250u8).find_map(|a| (a + 1..=250).find(|b| place(a) == place(*b)).map(|b| (a, b)));
        let (a, b) = same.expect("250 destinations on 256 places meet");
        for round in 0..4 {
            assert_eq!(hardware.find(&flow(a), at(round)), Some([a; HARDWARE]));
            assert_eq!(hardware.find(&flow(b), at(round)), Some([b; HARDWARE]));
        }
    }
}
