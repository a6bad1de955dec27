//! A ping-pong by bare AF_XDP sockets, without queue pairs: what the kernel alone takes for half a round trip of one frame, and of two,
//! which an answer and an acknowledgement are.
//!
//! Each end is a process of root's with an interface of its own: `xdp_pingpong { serve | ask } INTERFACE IP MAC PEER-IP PEER-MAC FRAMES
//! ROUNDS`. The end that asks prints the least and the median over all rounds, in microseconds, as perftest does.

use std::collections::BTreeSet;
use std::error::Error;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use ferroce_datapath::xdp::{HARDWARE, Rx, Tx, Uplink, join};
use ferroce_wire::{Flow, LinkLayer, RoceVersion};

const SLOT: u16 = 5;
/// The end that serves waits this long for the other one to start.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOKS_PER_CLOCK: u32 = 1 << 16;
/// BTH of a SEND, 8 octets, and an ICRC that nobody checks.
const SEND: [u8; 24] = [4, 0, 0xff, 0xff, 0, 0, 0x50, 1, 0, 0, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0];

struct End {
    rx: Rx,
    tx: Tx,
    headers: Vec<u8>,
    frames: u32,
}

impl End {
    fn send(&mut self) -> Result<(), Box<dyn Error>> {
        for _ in 0..self.frames {
            self.tx.push(RoceVersion::V2, &self.headers, &SEND).map_err(|error| format!("{error:?}"))?;
        }
        Ok(self.tx.flush()?)
    }

    /// Spins until the frames of one half have arrived; a frame that is lost ends the run.
    fn receive(&mut self) -> Result<(), Box<dyn Error>> {
        for _ in 0..self.frames {
            let mut looks = 0u32;
            let mut began = None;
            while self.rx.next().is_none() {
                std::hint::spin_loop();
                looks += 1;
                if looks.is_multiple_of(LOOKS_PER_CLOCK)
                    && began.get_or_insert_with(Instant::now).elapsed() > PATIENCE
                {
                    return Err("no frame came for seconds".into());
                }
            }
        }
        Ok(())
    }
}

fn mac(text: &str) -> Result<Vec<u8>, std::num::ParseIntError> {
    text.split(':').map(|octet| u8::from_str_radix(octet, 16)).collect()
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [role, interface, own, own_mac, peer, peer_mac, frames, rounds] = words.as_slice() else {
        return Err("expected: { serve | ask } INTERFACE IP MAC PEER-IP PEER-MAC FRAMES ROUNDS".into());
    };
    let (source, destination): (IpAddr, IpAddr) = (own.parse()?, peer.parse()?);
    let (frames, rounds): (u32, usize) = (frames.parse()?, rounds.parse()?);
    let mut uplink = Uplink::attach(nix::net::if_::if_nametoindex(interface.as_str())?)?;
    uplink.set_addresses(&BTreeSet::from([source]))?;
    let port = uplink.open_direct(&[SLOT])?;
    let (rx, mut tx) = join(port.socket().try_clone_to_owned()?, port.memory().try_clone_to_owned()?)?;
    let addresses = [mac(peer_mac)?, mac(own_mac)?].concat();
    tx.set_hardware(<[u8; HARDWARE]>::try_from(addresses.as_slice())?);
    let flow = Flow {
        source,
        destination,
        source_port: 49_152,
        traffic_class: 0,
        hop_limit: 64,
        link: LinkLayer::UDP,
    };
    let mut headers = [0; 48];
    let len = flow.write_headers(0, SEND.len(), &mut headers);
    let headers = headers[..len].to_vec();
    let mut end = End { rx, tx, headers, frames };
    if role == "serve" {
        println!("{:?}", uplink.mode());
        for _ in 0..rounds {
            end.receive()?;
            end.send()?;
        }
        return Ok(());
    }
    let mut halves = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        let began = Instant::now();
        end.send()?;
        end.receive()?;
        halves.push(began.elapsed().as_secs_f64() * 1e6 / 2.0);
    }
    halves.sort_by(f64::total_cmp);
    let (least, middle) = (halves.first(), halves.get(halves.len() / 2));
    println!("{frames} frames: {:.2} {:.2}", least.ok_or("no round")?, middle.ok_or("no round")?);
    Ok(())
}
