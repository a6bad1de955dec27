//! Network interfaces: a table of rows.

use ferroce_host::netdev::Vlan;

use super::netdev_name;
use crate::codec::{MessageError, Reader, Table, Writer};
use crate::netdev::{NetdevInfo, Pause};

const ROW: u16 = 144;

// Bits of an interface's flags.
const UP: u8 = 1;
const RUNNING: u8 = 2;
const ETHERNET: u8 = 4;
const IPV4: u8 = 8;
const PFC: u8 = 16;
const VLAN: u8 = 32;
// Bits of its pause settings.
const PAUSE: u8 = 1;
const AUTONEG: u8 = 2;
const RX: u8 = 4;
const TX: u8 = 8;

/// The bits whose condition holds.
fn bits(all: &[(u8, bool)]) -> u8 {
    all.iter().filter(|(_, set)| *set).fold(0, |sum, (bit, _)| sum | bit)
}

pub(super) fn encode(netdevs: &[NetdevInfo], mut w: Writer<'_>) -> Result<usize, MessageError> {
    w.table("netdevs", netdevs.len(), ROW)?;
    let end = w.0.len();
    for netdev in netdevs {
        w.padded::<16>("name", &netdev.name)?;
        w.padded::<32>("driver", &netdev.driver)?;
        w.padded::<64>("configured", &netdev.configured)?;
        w.u32(netdev.ifindex);
        w.u32(netdev.mtu);
        w.u32(netdev.speed.unwrap_or(0));
        w.bytes(&netdev.ipv4.map_or([0; 4], |ip| ip.octets()));
        w.u8(bits(&[
            (UP, netdev.up),
            (RUNNING, netdev.running),
            (ETHERNET, netdev.ethernet),
            (IPV4, netdev.ipv4.is_some()),
            (PFC, netdev.pfc.is_some()),
            (VLAN, netdev.vlan.is_some()),
        ]));
        let pause = netdev.pause.unwrap_or_default();
        let known = netdev.pause.is_some();
        w.u8(bits(&[(PAUSE, known), (AUTONEG, pause.autoneg), (RX, pause.rx), (TX, pause.tx)]));
        w.u8(netdev.pfc.unwrap_or(0));
        w.u8(0);
        let vlan = netdev.vlan.unwrap_or_default();
        w.u16(vlan.id);
        w.u16(0);
        w.bytes(&vlan.egress);
    }
    Ok(end)
}

pub(super) fn decode(mut body: Reader<'_>, mut tail: Reader<'_>) -> Result<Vec<NetdevInfo>, MessageError> {
    let table = Table::read(&mut body)?;
    tail.rows(table, |row| {
        let name = netdev_name(row.padded::<16>("name")?)?;
        let driver = row.padded::<32>("driver")?;
        let configured = row.padded::<64>("configured")?;
        let (ifindex, mtu, speed) = (row.u32()?, row.u32()?, row.u32()?);
        let ipv4: [u8; 4] = row.array()?;
        let (flags, pause, pfc) = (row.u8()?, row.u8()?, row.u8()?);
        row.u8()?;
        let id = row.u16()?;
        row.u16()?;
        let vlan = Vlan { id, egress: row.array()? };
        let is = |bit| flags & bit != 0;
        let told = Pause { autoneg: pause & AUTONEG != 0, rx: pause & RX != 0, tx: pause & TX != 0 };
        Ok(NetdevInfo {
            name,
            ifindex,
            mtu,
            up: is(UP),
            running: is(RUNNING),
            ethernet: is(ETHERNET),
            driver,
            speed: (speed != 0).then_some(speed),
            ipv4: is(IPV4).then(|| ipv4.into()),
            pause: (pause & PAUSE != 0).then_some(told),
            pfc: is(PFC).then_some(pfc),
            vlan: is(VLAN).then_some(vlan),
            configured,
        })
    })
}
