//! The exchanges with the kernel's rxe.

use std::time::Duration;

use super::seconds;
use crate::probe;

/// A program and how it takes its arguments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tool {
    /// Debian's ibv_rc_pingpong, ibv_uc_pingpong or ibv_ud_pingpong.
    Pingpong,
    /// One of perftest's.
    Perftest,
    /// The peer's own probe.
    Vprobe,
}

/// One exchange, for either direction.
#[derive(Clone, Debug)]
pub struct Case {
    /// Which command line.
    pub tool: Tool,
    /// The program, or the probe's scenario.
    program: &'static str,
    args: String,
    /// Over IPv6 instead of IPv4.
    pub ipv6: bool,
    path_mtu: u32,
    /// The exchange is meant to end in an error, so error counters may move.
    pub error: bool,
    /// For each end.
    pub limit: Duration,
}

const PERFTEST: [&str; 6] =
    ["ib_send_bw", "ib_send_lat", "ib_write_bw", "ib_write_lat", "ib_read_bw", "ib_read_lat"];

/// The cases for one address family and path MTU. The quick part has every program and scenario once
/// (IPv4, 1024) and a sample of the rest.
pub fn cases(all: bool, ipv6: bool, path_mtu: u32) -> Vec<Case> {
    let full = all || (!ipv6 && path_mtu == 1024);
    if !full && (ipv6 != (path_mtu == 4096)) {
        return Vec::new(); // the quick sample has IPv6 with 4096 and IPv4 with 1024
    }
    let case = |tool, program, args: &str, limit| Case {
        error: tool == Tool::Vprobe && probe::ERRORS.contains(&program),
        ..Case::new(tool, program, args, ipv6, path_mtu, seconds(limit))
    };
    let mut cases = vec![case(Tool::Pingpong, "ibv_rc_pingpong", "-n 100 -c", 60)];
    if full {
        cases.push(case(Tool::Pingpong, "ibv_rc_pingpong", "-n 50 -s 65536 -c -e", 60));
    }
    cases.push(case(Tool::Pingpong, "ibv_uc_pingpong", "-n 100 -s 5000 -c", 60));
    cases.push(case(Tool::Pingpong, "ibv_ud_pingpong", "-n 100 -s 1000 -c", 60));
    // Never XRC: its opcodes crash a kernel that lacks rxe's fix of 2026.
    cases.push(case(Tool::Pingpong, "ibv_srq_pingpong", "-n 50 -q 2 -s 5000", 60));
    if full {
        cases.push(case(Tool::Perftest, "ib_send_lat", "--use-srq -n 20 -s 8000", 60));
        cases.push(case(Tool::Perftest, "ib_send_lat", "-c UC -n 20 -s 8000", 60));
        cases.push(case(Tool::Perftest, "ib_send_lat", "-c UD -n 20 -s 1000", 60));
        cases.push(case(Tool::Perftest, "ib_write_lat", "-c UC -n 20 -s 8000", 60));
    }
    if full {
        for program in ["ib_atomic_bw", "ib_atomic_lat"] {
            for kind in ["CMP_AND_SWAP", "FETCH_AND_ADD"] {
                cases.push(case(Tool::Perftest, program, &format!("-A {kind} -n 20"), 60));
            }
        }
    }
    for program in PERFTEST {
        if full {
            cases.push(case(Tool::Perftest, program, "-n 20 -s 8000", 60));
        }
        if all {
            cases.push(case(Tool::Perftest, program, "-n 5 -s 1048576 -u 20", 120));
        }
    }
    let sample = ["send", "write", "read", "atomic", "rnr"];
    let scenarios = probe::RC.iter().filter(|s| full || sample.contains(s));
    cases.extend(scenarios.chain(probe::UNRELIABLE).map(|scenario| case(Tool::Vprobe, *scenario, "", 60)));
    cases
}

impl Case {
    /// An exchange that must succeed.
    pub fn new(
        tool: Tool,
        program: &'static str,
        args: &str,
        ipv6: bool,
        path_mtu: u32,
        limit: Duration,
    ) -> Self {
        Self { tool, program, args: args.to_owned(), ipv6, path_mtu, error: false, limit }
    }

    /// Whether the quick part has it in this direction: `forth` is with the first of two servers. Programs of
    /// perftest, each of which takes seconds to start in the guest, have one direction there; the probe's
    /// scenarios, which look at more, have both.
    pub fn is_quick(&self, forth: bool) -> bool {
        let is_first = self.program.ends_with("_bw")
            || ["-c ", "--use-srq"].iter().any(|flag| self.args.starts_with(flag));
        self.tool != Tool::Perftest || forth == is_first
    }

    /// For messages.
    pub fn name(&self) -> String {
        let family = if self.ipv6 { "IPv6" } else { "IPv4" };
        let probe = if self.tool == Tool::Vprobe { "vprobe " } else { "" };
        let text = format!("{probe}{} {} {family} mtu {}", self.program, self.args, self.path_mtu);
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// The command line of one end; `server` is None at the server itself. GID 1 is IPv4 and GID 2 is IPv6
    /// at both ends.
    pub fn words(&self, device: Option<&str>, port: u16, server: Option<&str>) -> Vec<String> {
        let gid = if self.ipv6 { "2" } else { "1" };
        let (program, gid_flag, port_flag) = match self.tool {
            Tool::Pingpong => (self.program, "-g", "-p"),
            Tool::Perftest => (self.program, "-x", "-p"),
            Tool::Vprobe => ("vprobe", "-g", "-t"),
        };
        let mut words = vec![program.to_owned()];
        let mut add = |text: &[&str]| words.extend(text.iter().map(|t| (*t).to_owned()));
        if let Some(device) = device {
            add(&["-d", device]);
        }
        add(&[gid_flag, gid, port_flag, &port.to_string()]);
        if self.program != "ibv_ud_pingpong" {
            // Datagrams have the port's MTU.
            add(&["-m", &self.path_mtu.to_string()]);
        }
        match self.tool {
            Tool::Perftest => add(&["-F"]),
            Tool::Vprobe => add(&[self.program]),
            Tool::Pingpong => {}
        }
        add(&self.args.split_whitespace().collect::<Vec<_>>());
        if let Some(server) = server {
            add(&[server]);
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quick_part_holds_every_scenario_once() {
        let quick: Vec<Case> = [(false, 1024), (false, 4096), (true, 1024), (true, 4096)]
            .into_iter()
            .flat_map(|(ipv6, mtu)| cases(false, ipv6, mtu))
            .collect();
        for scenario in probe::RC {
            assert!(quick.iter().any(|c| c.program == *scenario), "{scenario}");
        }
        for case in &quick {
            assert!([true, false].iter().any(|forth| case.is_quick(*forth)), "{}", case.name());
        }
        for verb in ["send", "write", "read", "atomic"] {
            let is_of = |case: &&Case| case.tool == Tool::Perftest && case.program.contains(verb);
            let both = [true, false].map(|forth| quick.iter().filter(is_of).any(|case| case.is_quick(forth)));
            assert_eq!(both, [true, true], "perftest has {verb} in both directions");
        }
        assert!(quick.iter().any(|c| c.ipv6 && c.path_mtu == 4096));
        assert!(quick.len() * 6 < cases(true, false, 1024).len() * 4 * 4);
    }

    #[test]
    fn command_lines() {
        let words = |case: &Case, device, server| case.words(device, 9, server).join(" ");
        let all = cases(true, true, 4096);
        assert_eq!(words(&all[0], Some("rxe0"), None), "ibv_rc_pingpong -d rxe0 -g 2 -p 9 -m 4096 -n 100 -c");
        assert_eq!(words(all.last().unwrap(), None, Some("h")), "vprobe -g 2 -t 9 -m 4096 ud_send h");
    }
}
