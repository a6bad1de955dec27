//! Memory windows: keys to parts of regions, bound and ended while the region stays.
//!
//! Type 2 windows are of kind 2B (IBTA 10.6.7.2.3): once bound, only the peer of the queue pair that bound it
//! may use it, and that queue pair must be of the window's domain.

use ferroce_proto::{Bind, MemoryError};
use ferroce_wire::{Qpn, Rkey};

use crate::access::{Access, PdId};
use crate::key::Key;
use crate::slots::{Bound, Control, Kind, MwType, Region, Role, Slot, Slots, Window};

/// Binds a window as a queue pair of `pd` asks for it (IBTA 10.6.7.2, C10-72 to C10-75). `true` if it is
/// bound to that queue pair alone.
pub(crate) fn bind(slots: &Slots, pd: PdId, qpn: Option<Qpn>, bind: &Bind) -> Result<bool, MemoryError> {
    let (index, slot) = slots.named(bind.window.value()).ok_or(MemoryError::BadKey)?;
    let mut control = slot.control();
    let Role::Window(window) = &control.role else { return Err(MemoryError::BadKey) };
    if window.key.place() != bind.window.value() >> 8 {
        return Err(MemoryError::BadKey);
    }
    if window.pd != pd {
        return Err(MemoryError::WrongPd);
    }
    let (key, kind) = (window.key.with_octet_of(bind.rkey.value()), window.kind);
    let qpn = match kind {
        MwType::One if bind.length == 0 => {
            unbind(slots, slot, &mut control);
            return Ok(false);
        }
        MwType::One => None,
        // Bound to nothing, or although it is bound: only an invalidate makes it free (o10-37.2.30,
        // o10-37.2.40).
        MwType::Two if bind.length == 0 || window.bound.is_some() => return Err(MemoryError::NoPermission),
        MwType::Two => Some(qpn.ok_or(MemoryError::WrongPd)?),
    };
    let (region_index, region_slot) = slots.named(bind.region.value()).ok_or(MemoryError::BadKey)?;
    // The window's own slot holds no region, and its lock is held.
    if region_index == index {
        return Err(MemoryError::BadKey);
    }
    let (region, new) = {
        let mut control = region_slot.control();
        let region = match control.role {
            Role::Region { key, .. } if key.value() == bind.region.value() => key,
            _ => return Err(MemoryError::BadKey),
        };
        let whole = region_slot.current(&control).ok_or(MemoryError::BadKey)?;
        let new = part(&whole, pd, qpn, bind)?;
        if let Role::Region { windows, .. } = &mut control.role {
            *windows += 1;
        }
        (region, new)
    };
    unbind(slots, slot, &mut control);
    slots.publish(slot, &mut control, key, new);
    if let Role::Window(window) = &mut control.role {
        window.bound = Some(Bound { key, region, qpn });
    }
    Ok(qpn.is_some())
}

/// The part of a region that a window opens.
fn part(whole: &Region, pd: PdId, qpn: Option<Qpn>, bind: &Bind) -> Result<Region, MemoryError> {
    if whole.pd != pd {
        return Err(MemoryError::WrongPd);
    }
    // A zero based region has no addresses to bind to (as rxe), a null region no memory.
    if whole.kind != Kind::Memory || whole.access.contains(Access::ZERO_BASED) {
        return Err(MemoryError::BadKey);
    }
    let asked = Access::from_bits_retain(bind.access.bits());
    // Meaningless for a window, but programs pass it.
    let access = asked.difference(Access::LOCAL_WRITE);
    let flushes = Access::FLUSH_GLOBAL.union(Access::FLUSH_PERSISTENT);
    let possible = Access::REMOTE_READ
        .union(Access::REMOTE_WRITE)
        .union(Access::REMOTE_ATOMIC)
        .union(Access::ZERO_BASED)
        .union(whole.access & flushes);
    if !whole.access.contains(Access::MW_BIND)
        || !possible.contains(access)
        || access.intersects(Access::WRITING) && !whole.access.contains(Access::LOCAL_WRITE)
    {
        return Err(MemoryError::NoPermission);
    }
    let addr = whole.place(bind.addr, bind.length)?;
    let iova = if access.contains(Access::ZERO_BASED) { 0 } else { bind.addr };
    let (kind, backing) = (Kind::Window { qpn }, whole.backing);
    Ok(Region { pd, addr, len: bind.length, iova, access, kind, backing })
}

/// Ends the binding of a window, if it has one.
pub(crate) fn unbind(slots: &Slots, slot: &Slot, control: &mut Control) {
    let Role::Window(window) = &mut control.role else { return };
    let Some(Bound { region, .. }) = window.bound.take() else { return };
    slots.retract(slot, control);
    let Some((_, slot)) = slots.named(region.value()) else { return };
    if let Role::Region { windows, .. } = &mut slot.control().role {
        *windows -= 1;
    }
}

/// Ends the binding of a type 2 window, as a queue pair's work request or its peer's asks for it.
pub(crate) fn invalidate(slots: &Slots, pd: PdId, qpn: Option<Qpn>, rkey: Rkey) -> Result<(), MemoryError> {
    let (_, slot) = slots.named(rkey.value()).ok_or(MemoryError::BadKey)?;
    let mut control = slot.control();
    match &control.role {
        Role::Window(Window { bound: Some(bound), pd: domain, kind, .. })
            if bound.key.value() == rkey.value() =>
        {
            if *domain != pd || (bound.qpn.is_some() && bound.qpn != qpn) {
                return Err(MemoryError::WrongPd);
            }
            if *kind == MwType::One {
                return Err(MemoryError::NoPermission);
            }
        }
        // A region's key does not end by a work request: it was not made by one.
        Role::Region { key, .. } if key.value() == rkey.value() => {
            let domain = slot.current(&control).map(|region| region.pd);
            let here = domain == Some(pd);
            return Err(if here { MemoryError::NoPermission } else { MemoryError::WrongPd });
        }
        Role::Region { .. } | Role::Window(_) | Role::Free => return Err(MemoryError::BadKey),
    }
    unbind(slots, slot, &mut control);
    Ok(())
}

/// Ends the bindings to a region.
pub(crate) fn end_those_on(slots: &Slots, region: Key) {
    end_those(slots, |bound| bound.region == region);
}

/// Ends the bindings that only the peer of this queue pair could use.
pub(crate) fn end_those_of(slots: &Slots, qpn: Qpn) {
    end_those(slots, |bound| bound.qpn == Some(qpn));
}

fn end_those(slots: &Slots, which: impl Fn(&Bound) -> bool) {
    for slot in slots.all() {
        let mut control = slot.control();
        if matches!(&control.role, Role::Window(Window { bound: Some(bound), .. }) if which(bound)) {
            unbind(slots, slot, &mut control);
        }
    }
}
