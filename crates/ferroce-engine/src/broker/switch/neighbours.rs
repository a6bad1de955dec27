//! Hardware addresses of peers, from the kernel's neighbour table.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, SocketAddrV6, UdpSocket};
use std::time::{Duration, Instant};

use tracing::debug;

use crate::broker::rtnetlink::{self, Neighbour};

/// Frames that wait for one neighbour: a window's worth would only be too late.
const WAITING: usize = 16;
/// How long an answer is waited for before it is asked for again: the kernel asks three times, a second apart.
const ASK_AGAIN: Duration = Duration::from_secs(3);
/// Neighbours that are remembered.
const MOST: usize = 4096;
/// Of the service `discard`: a datagram there has the kernel look for its receiver, and nothing else happens.
const DISCARD: u16 = 9;

/// What is known of whom.
#[derive(Debug, Default)]
pub struct Neighbours(BTreeMap<(u32, IpAddr), State>);

#[derive(Debug)]
enum State {
    Known {
        mac: [u8; 6],
        next: IpAddr,
    },
    /// The kernel was made to look, not before `again` anew; these frames wait, with room for the address at their front.
    Asked {
        again: Instant,
        next: IpAddr,
        waiting: Vec<Vec<u8>>,
    },
    /// By a router: RoCE v1 does not cross one.
    Routed,
}

/// What becomes of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Send it there.
    Known([u8; 6]),
    /// It waits: give it to [`Neighbours::wait`].
    Asked,
    /// It cannot be sent.
    Unreachable,
}

impl Neighbours {
    /// Looks for the hardware address of `to` on interface `ifindex`, seen from our address `from`; with `routed` that of
    /// the router if it is on another link.
    pub fn find(&mut self, now: Instant, ifindex: u32, from: IpAddr, to: IpAddr, routed: bool) -> Found {
        match self.0.get(&(ifindex, to)) {
            Some(State::Known { mac, .. }) => return Found::Known(*mac),
            Some(State::Asked { again, .. }) if now < *again => return Found::Asked,
            Some(State::Routed) if !routed => return Found::Unreachable,
            _ => {}
        }
        if self.0.len() >= MOST {
            self.0.clear();
        }
        let Ok(next) = rtnetlink::next_hop(ifindex, from, to) else { return Found::Unreachable };
        if next != to && !routed {
            self.0.insert((ifindex, to), State::Routed);
            return Found::Unreachable;
        }
        if let Ok(Some(mac)) = rtnetlink::neighbour(ifindex, next) {
            self.0.insert((ifindex, to), State::Known { mac, next });
            return Found::Known(mac);
        }
        if let Err(e) = provoke(ifindex, from, to) {
            debug!(%to, "no neighbour can be looked for: {e}");
        }
        let waiting = match self.0.remove(&(ifindex, to)) {
            Some(State::Asked { waiting, .. }) => waiting,
            _ => Vec::new(),
        };
        self.0.insert((ifindex, to), State::Asked { again: now + ASK_AGAIN, next, waiting });
        Found::Asked
    }

    /// Keeps a frame whose first six octets are to be filled in. `false`: too many wait already.
    pub fn wait(&mut self, ifindex: u32, to: IpAddr, frame: &[u8]) -> bool {
        let Some(State::Asked { waiting, .. }) = self.0.get_mut(&(ifindex, to)) else { return false };
        let room = waiting.len() < WAITING;
        if room {
            waiting.push(frame.to_vec());
        }
        room
    }

    /// The kernel's table changed. Returns the frames that can be sent by that interface now.
    pub fn changed(&mut self, neighbour: &Neighbour) -> Vec<Vec<u8>> {
        let Neighbour { ifindex, ip, mac } = *neighbour;
        let mut ready = Vec::new();
        let Some(mac) = mac else {
            let gone = |state: &State| matches!(state, State::Known { next, .. } if *next == ip);
            self.0.retain(|(of, _), state| *of != ifindex || !gone(state));
            return ready;
        };
        for ((of, _), state) in &mut self.0 {
            match state {
                State::Known { mac: known, next } if *of == ifindex && *next == ip => *known = mac,
                State::Asked { next, waiting, .. } if *of == ifindex && *next == ip => {
                    ready.append(waiting);
                    *state = State::Known { mac, next: ip };
                }
                _ => {}
            }
        }
        for frame in &mut ready {
            if let Some(to) = frame.first_chunk_mut() {
                *to = mac;
            }
        }
        ready
    }

    /// All may be different now on these interfaces. Of the others nothing is asked again: the kernel answers at once as a
    /// rule, but not while somebody holds its lock of interfaces, and packets wait meanwhile.
    pub fn forget(&mut self, which: impl Fn(u32) -> bool) {
        self.0.retain(|(ifindex, _), state| matches!(state, State::Asked { .. }) || !which(*ifindex));
    }
}

/// Has the kernel look for a neighbour.
fn provoke(ifindex: u32, from: IpAddr, to: IpAddr) -> std::io::Result<()> {
    let scoped = |ip: IpAddr, port| match ip {
        IpAddr::V6(v6) if v6.is_unicast_link_local() => SocketAddrV6::new(v6, port, 0, ifindex).into(),
        ip => SocketAddr::new(ip, port),
    };
    let socket = UdpSocket::bind(scoped(from, 0))?;
    socket.set_nonblocking(true)?;
    socket.send_to(&[], scoped(to, DISCARD)).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_wait_for_their_neighbour() {
        let (to, router) = ("10.0.0.9".parse().unwrap(), "10.0.0.1".parse().unwrap());
        let mut all = Neighbours::default();
        let asked = |next| State::Asked { again: Instant::now(), next, waiting: Vec::new() };
        all.0.insert((2, to), asked(to));
        all.0.insert((3, to), asked(router));
        assert!(!all.wait(4, to, &[0; 20]), "nobody asked");
        for _ in 0..WAITING {
            assert!(all.wait(2, to, &[0; 20]));
        }
        assert!(!all.wait(2, to, &[0; 20]), "too many");
        assert!(all.wait(3, to, &[7; 20]));
        let known = |ifindex, ip, mac| Neighbour { ifindex, ip, mac };
        assert_eq!(all.changed(&known(3, to, Some([1; 6]))).len(), 0, "its router is asked for");
        let sent = all.changed(&known(3, router, Some([2; 6])));
        assert_eq!(sent, [[[2; 6].as_slice(), &[7; 14]].concat()]);
        assert_eq!(all.changed(&known(2, to, Some([3; 6]))).len(), WAITING);
        let now = Instant::now();
        assert_eq!(all.find(now, 2, router, to, false), Found::Known([3; 6]));
        all.changed(&known(2, to, Some([4; 6])));
        assert_eq!(all.find(now, 2, router, to, false), Found::Known([4; 6]), "it moved");
        all.forget(|ifindex| ifindex == 3);
        assert_eq!(all.find(now, 2, router, to, false), Found::Known([4; 6]));
        assert!(!all.0.contains_key(&(3, to)));
        all.changed(&known(2, to, None));
        assert!(!all.0.contains_key(&(2, to)), "it is gone");
    }
}
