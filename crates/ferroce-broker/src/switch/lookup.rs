//! The thread that asks the kernel for neighbours, and may have to wait for it.

use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6, UdpSocket};
use std::time::Instant;

use parking_lot::MutexGuard;
use tracing::debug;

use super::neighbours::Lookup;
use super::{Shared, Table};
use ferroce_host::rtnetlink::{Neighbour, Resolver};

/// Port of the service `discard`: a datagram there has the kernel look for its receiver, and nothing else
/// happens.
const DISCARD: u16 = 9;

/// The kernel's answers about routes and neighbours. Each call may take long.
pub trait Kernel {
    /// Returns the address of the next hop.
    fn next_hop(&self, lookup: Lookup) -> io::Result<IpAddr>;
    /// The hardware address of that one, if it is known.
    fn neighbour(&self, ifindex: u32, next: IpAddr) -> Option<[u8; 6]>;
    /// Has it looked for; the table of neighbours will say what came of it.
    fn look_for(&self, lookup: Lookup) -> io::Result<()>;
}

/// This one.
pub struct Here;

impl Kernel for Here {
    fn next_hop(&self, Lookup { ifindex, from, to }: Lookup) -> io::Result<IpAddr> {
        Resolver::open()?.next_hop(ifindex, from, to)
    }

    fn neighbour(&self, ifindex: u32, next: IpAddr) -> Option<[u8; 6]> {
        Resolver::open().and_then(|mut kernel| kernel.neighbour(ifindex, next)).ok()
    }

    fn look_for(&self, Lookup { ifindex, from, to }: Lookup) -> io::Result<()> {
        let scoped = |ip: IpAddr, port| match ip {
            IpAddr::V6(v6) if v6.is_unicast_link_local() => SocketAddrV6::new(v6, port, 0, ifindex).into(),
            ip => SocketAddr::new(ip, port),
        };
        let socket = UdpSocket::bind(scoped(from, 0))?;
        socket.set_nonblocking(true)?;
        socket.send_to(&[], scoped(to, DISCARD)).map(drop)
    }
}

/// Looks up neighbours for the switch until it ends. The switch is locked only while a result is stored.
pub fn run(shared: &Shared, kernel: &impl Kernel) {
    let mut table = shared.table.lock();
    while !table.ended {
        match table.neighbours.next_lookup() {
            Some(lookup) => answer(&mut table, kernel, lookup),
            None => shared.asked.wait(&mut table),
        }
    }
}

fn answer(table: &mut MutexGuard<'_, Table>, kernel: &impl Kernel, lookup: Lookup) {
    let Lookup { ifindex, to, .. } = lookup;
    let next = MutexGuard::unlocked(table, || kernel.next_hop(lookup))
        .inspect_err(|e| debug!(%to, ifindex, "there is no way: {e}"))
        .ok();
    // Said before the neighbour is looked at: what the kernel learns after that is not missed.
    let released = table.neighbours.found_next(Instant::now(), lookup, next);
    table.send_released(ifindex, released);
    let Some(next) = next else { return };
    let mac = MutexGuard::unlocked(table, || {
        let mac = kernel.neighbour(ifindex, next);
        if mac.is_none()
            && let Err(e) = kernel.look_for(lookup)
        {
            debug!(%to, "no neighbour can be looked for: {e}");
        }
        mac
    });
    if mac.is_some() {
        let released = table.neighbours.changed(&Neighbour { ifindex, ip: next, mac });
        table.send_released(ifindex, released);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Duration;

    use parking_lot::Mutex;

    use super::super::Switch;
    use super::super::neighbours::Found;
    use super::*;

    const LONG: Duration = Duration::from_secs(20);
    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];

    /// A kernel that says what it was asked, and answers when it is told to.
    struct Slow {
        asked: Sender<IpAddr>,
        go_on: Mutex<Receiver<()>>,
    }

    impl Kernel for Slow {
        fn next_hop(&self, lookup: Lookup) -> io::Result<IpAddr> {
            self.asked.send(lookup.to).unwrap();
            self.go_on.lock().recv_timeout(LONG).map_err(io::Error::other)?;
            Ok(lookup.to)
        }

        fn neighbour(&self, _: u32, _: IpAddr) -> Option<[u8; 6]> {
            Some(MAC)
        }

        fn look_for(&self, _: Lookup) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn nobody_waits_for_a_kernel_that_does_not_answer() {
        let switch = Switch::new(Arc::new(crate::dpdk::Ports::new(true))).unwrap();
        let shared = Arc::clone(&switch.shared);
        let ((asked, was_asked), (go, go_on)) = (channel(), channel());
        let thread = std::thread::spawn({
            let shared = Arc::clone(&shared);
            move || run(&shared, &Slow { asked, go_on: Mutex::new(go_on) })
        });
        let (from, to) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 9]));
        let find = || {
            let mut table =
                shared.table.try_lock_for(LONG).expect("the lock is held while the kernel is asked");
            let found = table.neighbours.find(Instant::now(), 2, from, to, true);
            shared.pass_on(&mut table);
            found
        };
        assert_eq!(find(), Found::Asked);
        assert_eq!(was_asked.recv_timeout(LONG), Ok(to));
        assert_eq!(find(), Found::Asked, "while the kernel is busy");
        go.send(()).unwrap();
        let deadline = Instant::now() + LONG;
        while find() != Found::Known(MAC) {
            assert!(Instant::now() < deadline);
            std::thread::yield_now();
        }
        drop(switch);
        thread.join().unwrap();
    }
}
