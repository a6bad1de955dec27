//! Hardware addresses of peers, from the kernel's neighbour table.
//!
//! The kernel answers a lookup at once as a rule, but not while a process holds its lock of interfaces. A
//! thread of its own therefore looks neighbours up without the switch's lock (`lookup`). Frames to a new
//! neighbour wait here meanwhile; frames to the others are sent.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use ferroce_host::rtnetlink::Neighbour;

/// Frames that wait for one neighbour, a first window's worth, and for all.
const WAITING: usize = 64;
const WAITING_IN_ALL: usize = 1024;
/// How long an answer is waited for before it is asked for again: the kernel asks three times, a second
/// apart.
const ASK_AGAIN: Duration = Duration::from_secs(3);
/// Neighbours that are remembered.
const MOST: usize = 4096;
/// Lookups that wait for the kernel.
const MOST_LOOKUPS: usize = 256;

/// The neighbour table of the switch.
#[derive(Debug, Default)]
pub struct Neighbours {
    states: BTreeMap<(u32, IpAddr), NeighbourState>,
    lookups: VecDeque<Lookup>,
    /// Frames that wait.
    waiting: usize,
}

#[derive(Debug)]
enum NeighbourState {
    Known {
        mac: [u8; 6],
        next: IpAddr,
        /// Something changed on its interface: to be asked about again when it is next used, and good until
        /// the answer.
        doubtful: bool,
    },
    /// Somebody asks the kernel, or the kernel asks on the link; not before `again` anew.
    Asked {
        again: Instant,
        /// Where packets go next, once that is known.
        next: Option<IpAddr>,
        waiting: Vec<Waiting>,
    },
}

/// A frame with room for the address at its front.
#[derive(Debug)]
struct Waiting {
    routed: bool,
    frame: Vec<u8>,
}

/// Finds the hardware address on the path from our address `from` to `to`, by interface `ifindex`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lookup {
    pub ifindex: u32,
    pub from: IpAddr,
    pub to: IpAddr,
}

/// The result of a lookup for a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Send it there.
    Known([u8; 6]),
    /// It waits: give it to [`Neighbours::wait`].
    Asked,
    /// It cannot be sent.
    Unreachable,
}

/// Frames that wait no longer.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Released {
    /// To be sent by the interface.
    pub ready: Vec<Vec<u8>>,
    /// So many cannot be sent.
    pub lost: usize,
}

impl Neighbours {
    /// Looks for the hardware address of `to` on interface `ifindex`, seen from our address `from`; with
    /// `routed` that of the router if it is on another link. Never waits: what is not known becomes a
    /// [`Lookup`].
    pub fn find(&mut self, now: Instant, ifindex: u32, from: IpAddr, to: IpAddr, routed: bool) -> Found {
        let reaches = |next: IpAddr| routed || next == to;
        let (found, ask) = match self.states.get_mut(&(ifindex, to)) {
            Some(NeighbourState::Known { mac, next, doubtful }) => {
                let found = if reaches(*next) { Found::Known(*mac) } else { Found::Unreachable };
                (found, std::mem::take(doubtful))
            }
            Some(NeighbourState::Asked { again, next, .. }) => {
                let ask = *again <= now;
                if ask {
                    *again = now + ASK_AGAIN;
                }
                let gone = next.is_some_and(|next| !reaches(next));
                (if gone { Found::Unreachable } else { Found::Asked }, ask)
            }
            None => {
                if self.states.len() >= MOST {
                    self.states.clear();
                    self.waiting = 0;
                }
                let asked = NeighbourState::Asked { again: now + ASK_AGAIN, next: None, waiting: Vec::new() };
                self.states.insert((ifindex, to), asked);
                (Found::Asked, true)
            }
        };
        let lookup = Lookup { ifindex, from, to };
        if ask && self.lookups.len() < MOST_LOOKUPS && !self.lookups.contains(&lookup) {
            self.lookups.push_back(lookup);
        }
        found
    }

    /// Keeps a frame whose first six octets are to be filled in. `false`: too many wait already.
    pub fn wait(&mut self, ifindex: u32, to: IpAddr, routed: bool, frame: &[u8]) -> bool {
        let Some(NeighbourState::Asked { waiting, .. }) = self.states.get_mut(&(ifindex, to)) else {
            return false;
        };
        let room = waiting.len() < WAITING && self.waiting < WAITING_IN_ALL;
        if room {
            self.waiting += 1;
            waiting.push(Waiting { routed, frame: frame.to_vec() });
        }
        room
    }

    pub fn next_lookup(&mut self) -> Option<Lookup> {
        self.lookups.pop_front()
    }

    pub fn has_lookups(&self) -> bool {
        !self.lookups.is_empty()
    }

    /// Notes the answer of a lookup: its packets leave over `next`, or are lost if there is no next hop.
    /// Later changes of the neighbour `next` apply to them.
    pub fn found_next(&mut self, now: Instant, lookup: Lookup, next: Option<IpAddr>) -> Released {
        let Lookup { ifindex, to, .. } = lookup;
        let mut released = Released::default();
        let Some(next) = next else {
            if let Some(NeighbourState::Asked { waiting, .. }) = self.states.remove(&(ifindex, to)) {
                released.lost = waiting.len();
                self.waiting -= released.lost;
            }
            return released;
        };
        match self.states.get_mut(&(ifindex, to)) {
            Some(NeighbourState::Known { next: known, .. }) if *known == next => {}
            Some(state @ NeighbourState::Known { .. }) => {
                *state =
                    NeighbourState::Asked { again: now + ASK_AGAIN, next: Some(next), waiting: Vec::new() };
            }
            Some(NeighbourState::Asked { next: known, waiting, .. }) => {
                *known = Some(next);
                let before = waiting.len();
                waiting.retain(|waiting| waiting.routed || next == to);
                released.lost = before - waiting.len();
                self.waiting -= released.lost;
            }
            None => {}
        }
        released
    }

    /// The kernel's table says, or has changed to, this.
    pub fn changed(&mut self, neighbour: &Neighbour) -> Released {
        let Neighbour { ifindex, ip, mac } = *neighbour;
        let mut released = Released::default();
        let Some(mac) = mac else {
            let gone =
                |state: &NeighbourState| matches!(state, NeighbourState::Known { next, .. } if *next == ip);
            self.states.retain(|(of, _), state| *of != ifindex || !gone(state));
            return released;
        };
        for ((of, _), state) in &mut self.states {
            match state {
                NeighbourState::Known { mac: known, next, .. } if *of == ifindex && *next == ip => {
                    *known = mac
                }
                NeighbourState::Asked { next, waiting, .. } if *of == ifindex && *next == Some(ip) => {
                    released.ready.extend(waiting.drain(..).map(|waiting| waiting.frame));
                    *state = NeighbourState::Known { mac, next: ip, doubtful: false };
                }
                _ => {}
            }
        }
        self.waiting -= released.ready.len();
        for frame in &mut released.ready {
            if let Some(to) = frame.first_chunk_mut() {
                *to = mac;
            }
        }
        released
    }

    /// Asks the kernel again about all neighbours on these interfaces. Until it answers, the known ones stay
    /// in use.
    pub fn doubt(&mut self, which: impl Fn(u32) -> bool) {
        for ((ifindex, _), state) in &mut self.states {
            match state {
                _ if !which(*ifindex) => {}
                NeighbourState::Known { doubtful, .. } => *doubtful = true,
                NeighbourState::Asked { again, .. } => *again = Instant::now(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASKED: Found = Found::Asked;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn from() -> IpAddr {
        ip("10.0.0.2")
    }

    fn neighbour(ifindex: u32, ip: IpAddr, mac: u8) -> Neighbour {
        Neighbour { ifindex, ip, mac: Some([mac; 6]) }
    }

    /// Finds and answers that the next one on the way is `next`.
    fn ask(all: &mut Neighbours, now: Instant, ifindex: u32, to: IpAddr, next: IpAddr) {
        assert_eq!(all.find(now, ifindex, from(), to, true), ASKED);
        let lookup = all.next_lookup().unwrap();
        assert_eq!(lookup, Lookup { ifindex, from: from(), to });
        assert_eq!(all.found_next(now, lookup, Some(next)), Released::default());
    }

    #[test]
    fn frames_wait_for_their_neighbour() {
        let (to, router) = (ip("10.0.0.9"), ip("10.0.0.1"));
        let now = Instant::now();
        let mut all = Neighbours::default();
        ask(&mut all, now, 2, to, to);
        ask(&mut all, now, 3, to, router);
        assert!(!all.wait(4, to, true, &[0; 20]), "nobody asked");
        for _ in 0..WAITING {
            assert!(all.wait(2, to, false, &[0; 20]));
        }
        assert!(!all.wait(2, to, true, &[0; 20]), "too many");
        assert_eq!(all.waiting, WAITING);
        assert!(all.wait(3, to, true, &[7; 20]));
        assert_eq!(all.changed(&neighbour(3, to, 1)), Released::default(), "its router is asked for");
        let sent = all.changed(&neighbour(3, router, 2));
        assert_eq!(sent.ready, [[[2; 6].as_slice(), &[7; 14]].concat()]);
        assert_eq!(all.changed(&neighbour(2, to, 3)).ready.len(), WAITING);
        assert_eq!(all.waiting, 0);
        assert_eq!(all.find(now, 2, from(), to, false), Found::Known([3; 6]));
        all.changed(&neighbour(2, to, 4));
        assert_eq!(all.find(now, 2, from(), to, false), Found::Known([4; 6]), "it moved");
        all.changed(&Neighbour { ifindex: 2, ip: to, mac: None });
        assert_eq!(all.find(now, 2, from(), to, false), ASKED, "it is gone");
    }

    #[test]
    fn one_is_asked_for_once_and_again_when_nobody_answered() {
        let (now, to) = (Instant::now(), ip("10.0.0.9"));
        let mut all = Neighbours::default();
        for _ in 0..3 {
            assert_eq!(all.find(now, 2, from(), to, true), ASKED);
        }
        assert!(all.has_lookups() && all.next_lookup().is_some());
        assert_eq!(all.next_lookup(), None);
        assert_eq!(all.find(now + ASK_AGAIN, 2, from(), to, true), ASKED);
        assert!(all.next_lookup().is_some());
        for host in 0..=255 {
            for net in 0..4 {
                all.find(now, 2, from(), IpAddr::from([10, 1, net, host]), true);
            }
        }
        assert_eq!(std::iter::from_fn(|| all.next_lookup()).count(), MOST_LOOKUPS);
    }

    #[test]
    fn what_has_no_way_is_lost() {
        let (now, to, router) = (Instant::now(), ip("10.1.0.9"), ip("10.0.0.1"));
        let mut all = Neighbours::default();
        assert_eq!(all.find(now, 2, from(), to, true), ASKED);
        assert!(all.wait(2, to, true, &[0; 20]));
        let lookup = all.next_lookup().unwrap();
        assert_eq!(all.found_next(now, lookup, None), Released { ready: Vec::new(), lost: 1 });
        assert_eq!(all.find(now, 2, from(), to, true), ASKED, "it may have one by now");
        let lookup = all.next_lookup().unwrap();
        assert!(all.wait(2, to, true, &[1; 20]) && all.wait(2, to, false, &[2; 20]));
        let released = all.found_next(now, lookup, Some(router));
        assert_eq!(released.lost, 1, "of RoCE v1, which goes by no router");
        assert_eq!(all.find(now, 2, from(), to, false), Found::Unreachable);
        assert_eq!(all.changed(&neighbour(2, router, 1)).ready, [[[1; 6].as_slice(), &[1; 14]].concat()]);
        assert_eq!(all.find(now, 2, from(), to, false), Found::Unreachable);
        assert_eq!(all.find(now, 2, from(), to, true), Found::Known([1; 6]));
        assert_eq!(all.waiting, 0);
    }

    #[test]
    fn frames_that_wait_are_few_in_all() {
        let now = Instant::now();
        let mut all = Neighbours::default();
        let mut wait = |host| {
            let to = IpAddr::from([10, 1, 1, host]);
            assert_eq!(all.find(now, 2, from(), to, true), ASKED);
            (0..WAITING).filter(|_| all.wait(2, to, true, &[0; 20])).count()
        };
        assert_eq!((0..20).map(&mut wait).sum::<usize>(), WAITING_IN_ALL);
    }

    #[test]
    fn the_old_answer_holds_until_there_is_a_new_one() {
        let (now, to, other) = (Instant::now(), ip("10.0.0.9"), ip("10.0.0.1"));
        let mut all = Neighbours::default();
        ask(&mut all, now, 2, to, to);
        all.changed(&neighbour(2, to, 1));
        all.doubt(|ifindex| ifindex == 3);
        assert_eq!(all.find(now, 2, from(), to, true), Found::Known([1; 6]));
        assert!(!all.has_lookups());
        all.doubt(|ifindex| ifindex == 2);
        for _ in 0..2 {
            assert_eq!(all.find(now, 2, from(), to, true), Found::Known([1; 6]));
        }
        let lookup = all.next_lookup().unwrap();
        assert!(!all.has_lookups());
        all.found_next(now, lookup, Some(to));
        assert_eq!(all.find(now, 2, from(), to, true), Found::Known([1; 6]), "the same");
        all.found_next(now, lookup, Some(other));
        assert_eq!(all.find(now, 2, from(), to, true), ASKED, "by another");
        all.doubt(|_| true);
        assert_eq!(all.find(Instant::now(), 2, from(), to, true), ASKED);
        assert!(all.has_lookups(), "an answer may have been lost");
    }
}
