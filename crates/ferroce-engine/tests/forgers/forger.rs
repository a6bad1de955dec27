//! The forgers: processes without privileges that send packets at the queue pairs, and MADs at the broker.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use ferroce_datapath::udp::TxSocket;
use ferroce_engine::cm::{ConnectParams, Route};
use ferroce_wire::cm::{
    About, CommId, Dreq, Info, IpCmHeader, Mad, Message, PortSpace, PrivateData, Rej, RejReason, Rtu,
};
use ferroce_wire::{Flow, Psn, Qkey, Qpn, icrc};

use super::{FIRST_PSN, HERE, REGION, USED_PSNS};

/// The words that tell a forger its task.
pub const TASK: &str = "FORGERS_TEST_TASK";
/// Packets of each forger, and as many MADs.
pub const FORGED: u32 = 34_000;

/// A socket of an ordinary user, and the address and port that it sends from.
pub struct Sender {
    socket: TxSocket,
    flow: Flow,
}

impl Sender {
    pub fn new(source: &str, port: &str) -> Self {
        let source: IpAddr = source.parse().unwrap();
        let socket = TxSocket::bind(source, 0, port.parse().unwrap()).unwrap();
        let flow = Flow {
            source,
            destination: HERE.into(),
            source_port: socket.port(),
            traffic_class: 0,
            hop_limit: 0,
            link: Default::default(),
        };
        Self { socket, flow }
    }

    /// Adds the ICRC, or four octets that are none, and sends.
    pub fn send(&self, packet: &[u8], seal: bool) {
        let mut octets = [packet, &[0; 4]].concat();
        if seal {
            icrc::seal(&self.flow, 0, &mut octets);
        }
        // The network may refuse a packet, as it may lose one.
        let _ = self.socket.send_datagram(&self.flow, &octets);
    }
}

/// A BTH with the default partition key.
pub fn bth(opcode: u8, qpn: u32, psn: u32, ack_req: bool) -> Vec<u8> {
    let mut octets = vec![opcode, 0, 0xff, 0xff];
    octets.extend((qpn & 0x00ff_ffff).to_be_bytes());
    octets.extend((psn & 0x00ff_ffff).to_be_bytes());
    octets[8] = u8::from(ack_req) << 7;
    octets
}

/// A sender of packets as the peer would send them, which does not know all that the peer knows.
pub struct Forger {
    sender: Sender,
    rng: u64,
    /// It knows the PSNs, and has another address than the peer. Otherwise it has the peer's address and does not know the PSNs.
    knows_psns: bool,
    /// The start and the key of the region at the responder.
    addr: u64,
    rkey: u32,
    qpns: [u32; 2],
}

impl Forger {
    /// The words of a task: source address, source port, whether the PSNs are known, and the peer's secrets.
    pub fn task(
        source: Ipv4Addr,
        port: u16,
        knows_psns: bool,
        addr: u64,
        rkey: u32,
        qpns: [u32; 2],
    ) -> String {
        format!("{source} {port} {} {addr} {rkey} {} {}", u8::from(knows_psns), qpns[0], qpns[1])
    }

    pub fn from_task() -> Self {
        let task = std::env::var(TASK).unwrap();
        let words: Vec<&str> = task.split(' ').collect();
        let numbers: Vec<u64> = words[1..].iter().map(|word| word.parse().unwrap()).collect();
        let [port, knows_psns, addr, rkey, a, b] = numbers[..] else { panic!("{task}") };
        let sender = Sender::new(words[0], words[1]);
        let qpns = [a as u32, b as u32];
        Self { sender, rng: port << 20 | 1, knows_psns: knows_psns == 1, addr, rkey: rkey as u32, qpns }
    }

    fn next(&mut self) -> u64 {
        self.rng ^= self.rng << 13;
        self.rng ^= self.rng >> 7;
        self.rng ^= self.rng << 17;
        self.rng
    }

    fn below(&mut self, limit: u32) -> u32 {
        (self.next() >> 8) as u32 % limit
    }

    pub fn forge(mut self) {
        for number in 0..FORGED {
            let packet = self.packet();
            self.send(&packet);
            let mad = self.mad();
            self.send(&mad);
            if number % 32 == 31 {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    /// Sends a packet, one of ten with a wrong ICRC.
    fn send(&mut self, packet: &[u8]) {
        let seal = self.below(10) > 0;
        self.sender.send(packet, seal);
    }

    /// An address of the region half of the time.
    fn address(&mut self) -> u64 {
        match self.below(2) {
            0 => self.addr + u64::from(self.below(REGION as u32 / 8)) * 8,
            _ => self.next(),
        }
    }

    /// A packet at a queue pair, or at none, or no packet at all.
    fn packet(&mut self) -> Vec<u8> {
        const OPCODES: [u8; 20] = [
            0x00, 0x01, 0x02, 0x03, 0x04, 0x06, 0x07, 0x08, 0x0a, 0x0b, 0x0c, 0x0d, 0x0e, 0x0f, 0x10, 0x11,
            0x12, 0x13, 0x14, 0x81,
        ];
        let kind = self.below(10);
        if kind == 0 {
            let length = self.below(1400);
            return (0..length).map(|_| self.next() as u8).collect();
        }
        let qpn = if kind == 1 { self.next() as u32 } else { self.qpns[self.below(2) as usize] };
        // A forger with the peer's address that guesses a PSN in use can do what the peer can, so this one never guesses right.
        let distance = match self.knows_psns {
            true => self.below(USED_PSNS),
            false => 2 * USED_PSNS + self.below((1 << 24) - 4 * USED_PSNS),
        };
        let random = self.next() as u8;
        let opcode = if kind == 2 { random } else { OPCODES[self.below(20) as usize] };
        let ack_req = self.below(2) == 0;
        let mut packet = bth(opcode, qpn, FIRST_PSN.wrapping_add(distance), ack_req);
        let key = if self.below(2) == 0 { self.rkey } else { self.next() as u32 };
        let payload = [0, 4, 64, 1024][self.below(4) as usize];
        match opcode {
            // RETH: address, key, length.
            0x06 | 0x0a | 0x0b | 0x0c => {
                packet.extend(self.address().to_be_bytes());
                packet.extend(key.to_be_bytes());
                packet.extend((if opcode == 0x0c { 4096 } else { payload as u32 }).to_be_bytes());
            }
            // AtomicETH.
            0x13 | 0x14 => {
                packet.extend(self.address().to_be_bytes());
                packet.extend(key.to_be_bytes());
                packet.extend([0xff; 16]);
                return packet;
            }
            // AETH: ACK, RNR NAK or NAK, and an MSN.
            0x0d | 0x0f..=0x12 => {
                let syndrome = [0x1f, 0x20, 0x60, 0x61, 0x62][self.below(5) as usize];
                packet.extend([syndrome, 0, 0, self.next() as u8]);
                if opcode == 0x12 {
                    packet.extend(self.next().to_be_bytes());
                }
                if opcode >= 0x11 {
                    return packet;
                }
            }
            0x81 => {
                packet.extend([0; 16]);
                return packet;
            }
            _ => {}
        }
        packet.extend((0..payload).map(|_| 0xee));
        packet
    }

    /// A message of connection management, of a connection that it guesses; in one of four, one octet is random.
    fn mad(&mut self) -> Vec<u8> {
        let (local_id, remote_id) = (CommId(self.next() as u32), CommId(self.next() as u32 & 0x01ff_ffff));
        let remote_qpn = Qpn::new(self.qpns[self.below(2) as usize]);
        let message = match self.below(4) {
            0 => Message::Dreq(Dreq { local_id, remote_id, remote_qpn, private: PrivateData::EMPTY }),
            1 => Message::Rtu(Rtu { local_id, remote_id, private: PrivateData::EMPTY }),
            2 => {
                let (about, reason, info) = (About::OTHER, RejReason::CONSUMER, Info::NONE);
                let private = PrivateData::EMPTY;
                Message::Rej(Rej { local_id, remote_id, about, reason, info, private })
            }
            _ => {
                let header =
                    IpCmHeader { source_port: 5, source: self.sender.flow.source, destination: HERE.into() };
                let route = Route { local: self.sender.flow.source, remote: HERE.into(), interface: 0 };
                let port = self.next() as u16;
                let params = ConnectParams {
                    private: PrivateData::new(&header.emit()).unwrap(),
                    ..ConnectParams::new(route, PortSpace::Tcp.service_id(port), 9, remote_qpn)
                };
                Message::Req(params.req(local_id, Psn::new(1)))
            }
        };
        let mut mad = Mad { transaction_id: self.next(), message }.emit();
        if self.below(4) == 0 {
            let at = self.below(mad.len() as u32) as usize;
            mad[at] = self.next() as u8;
        }
        let mut packet = bth(0x64, Qpn::GSI.value(), 0, false);
        packet.extend(Qkey::GSI.value().to_be_bytes());
        packet.extend(Qpn::GSI.value().to_be_bytes());
        packet.extend(mad);
        packet
    }
}
