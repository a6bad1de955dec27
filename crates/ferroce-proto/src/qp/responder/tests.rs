use std::sync::Arc;

use ferroce_wire::{Lkey, Reth};

use super::super::receive_queue::ReceiveQueue;
use super::*;
use crate::{Budget, QpAccess, QpCaps, RemoteAccess, Service, Sge};

/// No memory at all.
struct Nothing;

const NONE: MemoryError = MemoryError::BadKey;

impl Memory for Nothing {
    fn check_local(&self, _: &Sge, _: bool) -> Result<(), MemoryError> {
        Err(NONE)
    }
    fn read_local(&self, _: Lkey, _: u64, _: &mut [u8]) -> Result<(), MemoryError> {
        Err(NONE)
    }
    fn write_local(&mut self, _: Lkey, _: u64, _: &[u8]) -> Result<(), MemoryError> {
        Err(NONE)
    }
    fn read_inline(&self, _: u64, _: &mut [u8]) -> Result<(), MemoryError> {
        Err(NONE)
    }
    fn check_remote(&self, _: Rkey, _: u64, _: u64, _: RemoteAccess) -> Result<(), MemoryError> {
        Err(NONE)
    }
    fn read_remote(&self, _: Rkey, _: u64, _: &mut [u8]) -> Result<(), MemoryError> {
        Err(NONE)
    }
    fn write_remote(&mut self, _: Rkey, _: u64, _: &[u8]) -> Result<(), MemoryError> {
        Err(NONE)
    }
    fn compare_swap(&mut self, _: Rkey, _: u64, _: u64, _: u64) -> Result<u64, MemoryError> {
        Err(NONE)
    }
    fn fetch_add(&mut self, _: Rkey, _: u64, _: u64) -> Result<u64, MemoryError> {
        Err(NONE)
    }
    fn invalidate(&mut self, _: Rkey) -> Result<(), MemoryError> {
        Err(NONE)
    }
    fn atomic_write(&mut self, _: Rkey, _: u64, _: [u8; 8]) -> Result<(), MemoryError> {
        Err(NONE)
    }
    fn flush(&mut self, _: Rkey, _: u64, _: u64, _: ferroce_wire::Feth) -> Result<(), MemoryError> {
        Err(NONE)
    }
    fn bind(&mut self, _: &crate::Bind) -> Result<(), MemoryError> {
        Err(NONE)
    }
}

/// The MSN is a counter of 24 bits (IBTA 9.7.7.1).
#[test]
fn b15_the_msn_wraps() {
    let caps = QpCaps::default();
    let mut shared = Shared::new(Qpn::new(1), Service::Rc, caps, Arc::new(Budget::new(0)), false);
    shared.attr.access = QpAccess::REMOTE_WRITE;
    let mut responder = Responder::new(0, 0);
    responder.begin(Psn::new(0xff_ffff), 0);
    responder.msn = Msn::new(0xff_fffe);
    let reth = Reth { va: 0, rkey: Rkey::new(0), dma_len: 0 };
    let write = Request::WriteOnly { reth, payload: &[], imm: None };
    for (psn, msn) in [(0xff_ffff, 0xff_ffff), (0, 0), (1, 1)] {
        let bth = Bth::new(Qpn::new(1), Psn::new(psn));
        let mut receives = ReceiveQueue::new(0, 0);
        assert_eq!(responder.handle_request(&mut shared, &bth, &write, &mut receives, &mut Nothing), Ok(()));
        assert_eq!(responder.msn, Msn::new(msn));
    }
}
