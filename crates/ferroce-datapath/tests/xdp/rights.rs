//! Rights that the broker and the programs need, and descriptors that are refused.

use std::collections::BTreeMap;
use std::io;
use std::net::UdpSocket;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use ferroce_datapath::xdp::{AttachError, Mode, Uplink, join};
use ferroce_wire::RoceVersion;
use nix::net::if_::if_nametoindex;
use nix::sched::{CloneFlags, unshare};

use crate::bed::{
    DESCRIPTORS, HOST, PEER, SLOT, attach, drops, duplicate, expect, in_namespaces, pair, part,
};
use crate::packets::{Made, back};

/// Leaves this thread these capabilities, by number.
fn keep_capabilities(kept: &[u32]) {
    let mut data = [[0u32; 3]; 2];
    for number in kept {
        let word = &mut data[*number as usize / 32];
        for set in &mut word[..2] {
            *set |= 1 << (number % 32);
        }
    }
    let header = [0x2008_0522u32, 0];
    // SAFETY: a header of version 3, and two elements of three words.
    let rc = unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), data.as_ptr()) };
    assert_eq!(rc, 0, "{}", io::Error::last_os_error());
}

const NET_ADMIN: u32 = 12;
const NET_RAW: u32 = 13;
const BPF: u32 = 39;

#[test]
fn three_capabilities_are_needed_and_enough() {
    in_namespaces(1500, |_| {
        let pair = pair(0);
        let all = [NET_ADMIN, NET_RAW, BPF];
        for missing in all {
            let attach = move || {
                keep_capabilities(&all.into_iter().filter(|one| *one != missing).collect::<Vec<_>>());
                Uplink::attach(if_nametoindex("net0").unwrap()).map(drop)
            };
            let result = std::thread::spawn(attach).join().unwrap();
            assert!(matches!(result, Err(AttachError::Permission(_))), "{missing}: {result:?}");
        }
        let work = move || {
            keep_capabilities(&all);
            let mut uplink = attach();
            assert_eq!(uplink.mode(), Mode::Native);
            let port = uplink.open(pair, &[SLOT]).unwrap();
            uplink.drops().unwrap();
            drop(port);
        };
        std::thread::spawn(work).join().unwrap();
    });
}

#[test]
fn a_process_without_privileges_receives_and_sends() {
    in_namespaces(1500, |world| {
        let mut uplink = attach();
        let port = uplink.open(pair(0), &[SLOT]).unwrap();
        let inherited = [port.socket(), port.memory()].map(|fd| {
            let fd = duplicate(fd);
            // SAFETY: no memory is involved.
            assert_eq!(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFD, 0) }, 0);
            fd
        });
        let mut child =
            part("rights::part_echo", &format!("{} {}", inherited[0].as_raw_fd(), inherited[1].as_raw_fd()));
        drop(inherited);
        let mut wire = world.wire();
        for number in 0..100 {
            let made = back(&Made::new("10.9.0.1", "10.9.0.2").mark(number));
            wire.send(&made.frame(HOST, PEER));
            assert_eq!(wire.expect("an echo"), back(&made).frame(PEER, HOST));
        }
        assert!(child.wait().unwrap().success());
        assert_eq!(drops(&uplink), BTreeMap::from([("foreign_source", 1)]));
    });
}

#[test]
#[ignore = "a part of another test"]
fn part_echo() {
    let Ok(value) = std::env::var(DESCRIPTORS) else { return };
    let descriptors: Vec<i32> = value.split_whitespace().map(|word| word.parse().unwrap()).collect();
    unshare(CloneFlags::CLONE_NEWNET).unwrap();
    let nobody = 65_534;
    nix::unistd::setgroups(&[]).unwrap();
    nix::unistd::setresgid(nobody.into(), nobody.into(), nobody.into()).unwrap();
    nix::unistd::setresuid(nobody.into(), nobody.into(), nobody.into()).unwrap();
    // SAFETY: no memory is involved.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, 0);
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel reads one `rlimit`.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const none) }, 0);
    assert!(
        std::fs::read_to_string("/proc/thread-self/status").unwrap().contains("CapEff:\t0000000000000000")
    );
    // SAFETY: the parent passed these descriptors, and nothing else here owns them.
    let [socket, memory] = [0, 1].map(|n| unsafe { OwnedFd::from_raw_fd(descriptors[n]) });
    let (mut rx, mut tx) = join(socket, memory).unwrap();
    Made::new("10.9.0.99", "10.9.0.2").send(&mut tx);
    for number in 0..100 {
        use std::os::fd::AsFd;
        let mut wait = [rustix::event::PollFd::from_borrowed_fd(rx.as_fd(), rustix::event::PollFlags::IN)];
        let limit = rustix::event::Timespec { tv_sec: 10, tv_nsec: 0 };
        assert_eq!(rustix::event::poll(&mut wait, Some(&limit)).unwrap(), 1, "a packet wakes");
        let (version, packet) = expect(&mut rx, "a packet");
        let made = Made::new("10.9.0.1", "10.9.0.2").mark(number);
        assert_eq!((version, packet), (RoceVersion::V2, back(&made).packet()));
        made.send(&mut tx);
    }
}

#[test]
fn memory_that_is_no_ports_is_refused() {
    let socket = || OwnedFd::from(UdpSocket::bind("127.0.0.1:0").unwrap());
    let memory = |len, seals| {
        let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING;
        let memory = rustix::fs::memfd_create("test", flags).unwrap();
        rustix::fs::ftruncate(&memory, len).unwrap();
        rustix::fs::fcntl_add_seals(&memory, seals).unwrap();
        memory
    };
    let (shrink, none) = (rustix::fs::SealFlags::SHRINK, rustix::fs::SealFlags::empty());
    for (len, seals) in [(4 << 20, none), ((4 << 20) - 1, shrink), (0, shrink)] {
        assert_eq!(
            join(socket(), memory(len, seals)).unwrap_err().kind(),
            io::ErrorKind::InvalidData,
            "{len}"
        );
    }
    // The memory is right, but the socket is another one.
    assert!(join(socket(), memory(4 << 20, shrink)).is_err());
}
