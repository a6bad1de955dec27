//! Multicast between ferroce and the kernel's rxe.

use anyhow::Result;

use super::matrix::{Case, Tool};
use super::{Interop, Side, seconds};
use ferroce_harness::exchange::Exchange;
use ferroce_harness::report::Checks;

/// A group of either family: as perftest wants its GID, and as an address.
const GROUPS: [(bool, &str, &str); 2] = [
    (false, "0:0:0:0:0:0:0:0:0:0:255:255:239:1:2:3", "239.1.2.3/32"),
    (true, "255:21:0:0:0:0:0:0:0:0:0:1:0:2:0:3", "ff15::1:2:3/128"),
];

impl Interop<'_> {
    /// Each end receives from the other what it sends to a group. rxe opens the card's filter for a group and joins no
    /// group, so the guest's IP stack would drop IPv4's and IPv6's datagrams: its administrator joins.
    pub(super) fn multicast(&self, checks: &mut Checks) -> Result<()> {
        self.guest.inside("ip route replace 239.0.0.0/8 dev eth0")?;
        for (ipv6, gid, address) in GROUPS {
            let case = Case::new(
                Tool::Perftest,
                "ib_send_bw",
                &format!("-c UD -n 20 -s 512 -g -M {gid}"),
                ipv6,
                1024,
                seconds(60),
            );
            for (server, client) in [(Side::Kernel, Side::Ours), (Side::Ours, Side::Kernel)] {
                if server == Side::Kernel {
                    self.guest.inside(&format!("ip addr add {address} dev eth0 autojoin; sleep 1"))?;
                }
                let port = self.next_port.replace(self.next_port.get() + 1);
                let exchange = Exchange {
                    name: format!("{} server, {} client: {}", server.name(), client.name(), case.name()),
                    server: self.end(&case, server, port, None),
                    client: self.end(&case, client, port, Some(server.address())),
                    ready: Box::new(move || self.listens(server, port)),
                    limit: case.limit,
                };
                exchange.run(&self.logs, checks)?;
                if server == Side::Kernel {
                    self.guest.inside(&format!("ip addr del {address} dev eth0"))?;
                }
            }
        }
        Ok(())
    }
}
