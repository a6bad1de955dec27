//! Memory for tests that touch none.

use ferroce_wire::{Feth, Lkey, Rkey};

use crate::{Bind, Memory, MemoryError, RemoteAccess, Sge};

pub(crate) struct Nothing;

const NONE: MemoryError = MemoryError::BadKey;

impl Memory for Nothing {
    fn check_local(&self, _: &Sge, _: bool) -> Result<(), MemoryError> {
        Err(NONE)
    }
    fn read_local(&self, _: Lkey, _: u64, _: &mut [u8], _: u64) -> Result<(), MemoryError> {
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
    fn read_remote(&self, _: Rkey, _: u64, _: &mut [u8], _: u64) -> Result<(), MemoryError> {
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
    fn flush(&mut self, _: Rkey, _: u64, _: u64, _: Feth) -> Result<(), MemoryError> {
        Err(NONE)
    }
    fn bind(&mut self, _: &Bind) -> Result<(), MemoryError> {
        Err(NONE)
    }
}
