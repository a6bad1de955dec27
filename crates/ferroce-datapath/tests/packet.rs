//! Frames over packet sockets, on links of a network namespace of this test's own.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ferroce_datapath::packet::{FrameBuffer, PacketSocket};
use nix::net::if_::if_nametoindex;
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{Uid, setresuid};

fn frame(destination: [u8; 6], mark: u8, len: usize) -> Vec<u8> {
    let mut frame = [&destination[..], &[2, 0, 0, 0, 0, 0x99], &[0x88, 0xb5]].concat();
    frame.resize(len, mark);
    frame
}

/// Frames that are queued or arrive within a moment, of the experimental EtherType only, since the kernel sends others.
fn received(socket: &PacketSocket, count: usize) -> Vec<(Vec<u8>, bool)> {
    let mut buffer = FrameBuffer::new();
    let mut all = Vec::new();
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        match socket.recv(&mut buffer).unwrap() {
            Some(frame) if frame.bytes.windows(2).skip(12).take(5).any(|pair| pair == [0x88, 0xb5]) => {
                all.push((frame.bytes.to_vec(), frame.outgoing));
            }
            Some(_) => {}
            None if all.len() >= count || Instant::now() > deadline => return all,
            None => std::thread::yield_now(),
        }
    }
}

fn run(command: &str) {
    let mut words = command.split_whitespace();
    let status = Command::new(words.next().unwrap()).args(words).stdout(Stdio::null()).status();
    assert!(status.is_ok_and(|status| status.success()), "{command}");
}

fn in_namespace(body: fn()) {
    if !Uid::effective().is_root() || Command::new("ip").arg("-V").output().is_err() {
        eprintln!("skipped: packet sockets and namespaces need root, links the program ip");
        return;
    }
    let thread = std::thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        run("ip link set lo up");
        run("ip link add va type veth peer name vb");
        for name in ["va", "vb"] {
            run(&format!("ip link set {name} up"));
        }
        // The kernel passes frames a moment after that.
        let up = |name| {
            let shown = Command::new("ip").args(["link", "show", name]).output().unwrap();
            String::from_utf8_lossy(&shown.stdout).contains("state UP")
        };
        for name in ["va", "vb"] {
            assert!(
                (0..500).any(|_| up(name) || {
                    std::thread::sleep(Duration::from_millis(10));
                    false
                }),
                "{name}"
            );
        }
        body();
    });
    thread.join().unwrap();
}

#[test]
fn frames_cross_a_link() {
    in_namespace(|| {
        let [va, vb] = ["va", "vb"].map(|name| PacketSocket::open(if_nametoindex(name).unwrap()).unwrap());
        let other = [2, 0, 0, 0, 0, 7];
        va.send(&frame(other, 1, 60)).unwrap();
        vb.listen(true, false).unwrap();
        assert_eq!(received(&vb, 0), [], "earlier frames are not received");
        vb.accept(None, true).unwrap();
        va.send(&frame(other, 2, 60)).unwrap();
        va.send(&frame(other, 3, 1514)).unwrap();
        assert_eq!(received(&vb, 2), [(frame(other, 2, 60), false), (frame(other, 3, 1514), false)]);
        // With its tag, wherever the kernel stores it meanwhile.
        let mut tagged = frame(other, 4, 60);
        tagged.splice(12..12, [0x81, 0, 0x61, 0x23]);
        va.send(&tagged).unwrap();
        assert_eq!(received(&vb, 1), [(tagged, false)]);
        // Leaving frames are received by sockets that requested them, but not by their sender.
        vb.listen(true, true).unwrap();
        va.listen(true, true).unwrap();
        let witness = PacketSocket::open(if_nametoindex("va").unwrap()).unwrap();
        witness.listen(true, true).unwrap();
        va.send(&frame(other, 5, 60)).unwrap();
        assert_eq!(received(&vb, 1), [(frame(other, 5, 60), false)]);
        assert_eq!(received(&witness, 1), [(frame(other, 5, 60), true)]);
        assert_eq!(received(&va, 0), []);
        vb.listen(false, false).unwrap();
        vb.accept(None, false).unwrap();
        va.send(&frame(other, 6, 60)).unwrap();
        assert_eq!(received(&vb, 0), []);
    });
}

#[test]
fn what_is_sent_over_lo_arrives_once() {
    in_namespace(|| {
        let lo = if_nametoindex("lo").unwrap();
        let [a, b] = [(); 2].map(|()| PacketSocket::open(lo).unwrap());
        b.listen(true, true).unwrap();
        a.send(&frame([2, 0, 0, 0, 0, 1], 9, 100)).unwrap();
        assert_eq!(received(&b, 1), [(frame([2, 0, 0, 0, 0, 1], 9, 100), false)]);
        assert_eq!(received(&a, 0), []);
        let big = frame([2, 0, 0, 0, 0, 1], 9, 65_550);
        a.send(&big).unwrap();
        assert_eq!(received(&b, 1), [(big, false)]);
    });
}

#[test]
fn what_cannot_be_sent_or_opened_is_an_error() {
    in_namespace(|| {
        let va = PacketSocket::open(if_nametoindex("va").unwrap()).unwrap();
        assert_eq!(va.send(&[0; 13]).unwrap_err().raw_os_error(), Some(libc::EINVAL));
        assert_eq!(va.send(&[0; 9000]).unwrap_err().raw_os_error(), Some(libc::EMSGSIZE));
        assert_eq!(PacketSocket::open(0x7fff_ffff).unwrap_err().raw_os_error(), Some(libc::ENODEV));
        // Changing this thread alone would do, but glibc changes the whole process: so in a child.
        let nobody = 65_534.into();
        // SAFETY: the child makes only system calls and exits.
        match unsafe { nix::unistd::fork() }.unwrap() {
            nix::unistd::ForkResult::Child => {
                setresuid(nobody, nobody, nobody).unwrap();
                let refused = PacketSocket::open(1).is_err_and(|e| e.raw_os_error() == Some(libc::EPERM));
                // SAFETY: ends the child without its parent's exit handlers.
                unsafe { libc::_exit(i32::from(!refused)) };
            }
            nix::unistd::ForkResult::Parent { child } => {
                let status = nix::sys::wait::waitpid(child, None).unwrap();
                assert_eq!(status, nix::sys::wait::WaitStatus::Exited(child, 0));
            }
        }
    });
}
