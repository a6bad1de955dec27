//! The actions that the logic leaves to the server.

use std::os::fd::OwnedFd;

use ferroce_cm::Transmit;
use ferroce_ipc::{Message, Strange};

use crate::{ClientId, ProcessId};

/// An action for the server to perform.
#[derive(Debug)]
pub enum Output {
    /// Send a message.
    Send {
        /// To whom.
        client: ClientId,
        /// The request it answers, or 0.
        id: u32,
        message: Message,
        /// Descriptors that the message carries.
        descriptors: Vec<OwnedFd>,
    },
    /// Close a connection, after what was sent. The broker has forgotten the client already.
    Close(ClientId),
    /// Send a MAD from queue pair 1.
    Mad(Transmit),
    /// Open rings to a client, and send them as the answer to its request.
    OpenRings {
        /// To whom.
        client: ClientId,
        /// Id of the client's request.
        id: u32,
        /// Wakes the program.
        bell: Strange,
    },
    /// Move the packets that are in rings and in sockets, and answer the request then.
    SettleRings {
        /// The program that asked.
        client: ClientId,
        /// Id of the client's request.
        id: u32,
    },
    /// Make the memory of a pipe, and send it to both ends with what the other end offers; to the first one
    /// as the answer to its request.
    OpenPipe {
        /// The request of the first end.
        id: u32,
        /// The program that asked, and the other one.
        ends: [PipeEnd; 2],
    },
}

/// A program at one end of a pipe, with the descriptors that the program at the other end receives.
#[derive(Debug)]
pub struct PipeEnd {
    pub client: ClientId,
    pub process: ProcessId,
    /// Slots of the program.
    pub slots: Vec<u16>,
    /// Its doorbell, and the file about its memory if others may copy to and from that.
    pub offered: Vec<Strange>,
}
