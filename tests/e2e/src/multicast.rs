//! Multicast: three receivers in three processes hear one group, and three senders at once talk to it.

use std::time::Duration;

use anyhow::Result;

use super::Bed;
use ferroce_harness::exchange::{Exchange, listening};
use ferroce_harness::netns;
use ferroce_harness::report::Checks;

const LIMIT: Duration = Duration::from_secs(60);
const PAIRS: usize = 3;

/// perftest over an IPv4 group and over the IPv6 one that it chooses itself.
pub fn check(bed: &Bed, checks: &mut Checks) -> Result<()> {
    let routed = netns::route_ipv6_groups(&bed.programs)?;
    let v4 = "-x 0 -g -M 0:0:0:0:0:0:0:0:0:0:255:255:239:1:2:3";
    for (group, flags) in [(v4, "-s 1024 -n 2000"), (v4, "-s 8 -n 2000 -e"), ("-x 1 -g", "-s 1024 -n 2000")] {
        if group == "-x 1 -g" && !routed {
            checks.skip("multicast over IPv6 on lo", netns::UNROUTED);
            continue;
        }
        let mut running = Vec::new();
        for pair in 0..PAIRS {
            let port = bed.port();
            let end = |host: Option<&str>| {
                let mut command = bed.ours("ib_send_bw");
                command.args(["-d", "fr0", "-F", "-c", "UD", "-p", &port.to_string()]);
                command.args(group.split_whitespace()).args(flags.split_whitespace()).args(host);
                command
            };
            let exchange = Exchange {
                name: format!("ib_send_bw -c UD {group} {flags}, pair {pair}"),
                server: end(None),
                client: end(Some("127.0.0.1")),
                ready: Box::new(move || listening(port)),
                limit: LIMIT,
            };
            running.push(exchange.start(&bed.logs)?);
        }
        for exchange in running {
            exchange.finish(checks)?;
        }
    }
    Ok(())
}
