//! Rules of the kernel's packet filter that drop packets to the port: those of nftables, and of iptables.
//!
//! The programs `nft` and `iptables-save` tell them, to who has CAP_NET_ADMIN. Whether a rule applies to a
//! packet depends on addresses and interfaces that nobody names here, so what is found may be in the way, and
//! is shown with its place.

mod iptables;
mod nft;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::program;

/// The effect of the packet filter on packets to UDP port 4791.
#[derive(Debug, PartialEq, Eq)]
pub enum Firewall {
    /// The rules cannot be read, for this reason.
    Unknown(String),
    /// The places that drop them.
    Known(Vec<Obstacle>),
}

impl Default for Firewall {
    fn default() -> Self {
        Self::Known(Vec::new())
    }
}

/// A chain that drops packets to the port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Obstacle {
    /// The chain: `nftables, inet filter input`.
    pub chain: String,
    /// Whether a rule for the port does it. Otherwise the chain drops what no rule accepts, and no rule names
    /// the port.
    pub by_name: bool,
    /// The command that shows the chain.
    pub shown_by: String,
}

/// The fate of a packet that a rule matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Accept,
    /// Also with an answer of ICMP.
    Drop,
    /// The packet goes on, here or in another chain.
    Other,
}

/// The part of the packets to UDP port 4791 that a rule concerns. The greatest of several conditions holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum About {
    /// The rule is for all packets, or for all of UDP.
    All,
    /// The rule is for some packets, by conditions that say nothing of the port.
    Some,
    /// The rule names the port, perhaps with further conditions.
    Port,
    /// The rule is for packets of other ports or protocols.
    Other,
}

/// A chain of the filter, of either tool.
#[derive(Debug)]
struct Chain {
    name: String,
    shown_by: String,
    /// Whether the kernel passes it the packets that this host sends or receives; otherwise only rules do.
    base: bool,
    policy: Verdict,
    rules: Vec<(About, Verdict)>,
}

/// The chains that drop packets to the port. A rule that accepts the port, in any chain, is taken for an
/// exception to what drops all packets.
fn obstacles(chains: &[Chain]) -> Vec<Obstacle> {
    let accepted =
        chains.iter().flat_map(|chain| &chain.rules).any(|rule| *rule == (About::Port, Verdict::Accept));
    let obstacle = |chain: &Chain| {
        let by_name = chain.rules.contains(&(About::Port, Verdict::Drop));
        let last =
            chain.rules.iter().find(|(about, verdict)| *about == About::All && *verdict != Verdict::Other);
        let rest = last.map_or(chain.policy, |(_, verdict)| *verdict);
        let by_rest = chain.base && rest == Verdict::Drop && !accepted;
        let Chain { name, shown_by, .. } = chain;
        (by_name || by_rest).then(|| Obstacle { chain: name.clone(), by_name, shown_by: shown_by.clone() })
    };
    chains.iter().filter_map(obstacle).collect()
}

/// Asks the tools. `may` is whether the kernel answers them.
pub fn look(may: bool) -> Firewall {
    if !may {
        return Firewall::Unknown("root alone can read the rules of the packet filter".to_owned());
    }
    let mut chains = Vec::new();
    let mut known = false;
    // Without the tool of iptables, nft shows its tables as well, though not every match.
    let mut tables = Vec::new();
    for (tool, family) in [("iptables-save", "ip"), ("ip6tables-save", "ip6")] {
        if let Some(text) = output(tool, &[]) {
            chains.extend(iptables::chains(&text, tool));
            tables.push(family);
            known = true;
        }
    }
    if let Some(text) = output("nft", &["-j", "list", "ruleset"])
        && let Some(found) = nft::chains(&text, &tables)
    {
        chains.extend(found);
        known = true;
    }
    if known {
        Firewall::Known(obstacles(&chains))
    } else {
        Firewall::Unknown("neither nft nor iptables-save tells the rules of the packet filter".to_owned())
    }
}

/// The standard output of a tool; `None` if the tool is missing or fails.
fn output(tool: &str, words: &[&str]) -> Option<String> {
    let folders = ["/usr/sbin", "/sbin"].map(|folder| Path::new(folder).join(tool));
    let file: PathBuf =
        program::find(Path::new(tool)).or_else(|| folders.into_iter().find(|file| file.exists()))?;
    let output = Command::new(file).args(words).stdin(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(base: bool, policy: Verdict, rules: &[(About, Verdict)]) -> Chain {
        Chain { name: "c".to_owned(), shown_by: String::new(), base, policy, rules: rules.to_vec() }
    }

    fn found(chains: &[Chain]) -> Vec<bool> {
        obstacles(chains).iter().map(|obstacle| obstacle.by_name).collect()
    }

    #[test]
    fn what_drops_the_port_is_found() {
        use About::{All, Other, Port};
        use Verdict::{Accept, Drop};
        assert!(found(&[chain(true, Accept, &[(Other, Drop), (All, Verdict::Other)])]).is_empty());
        assert_eq!(found(&[chain(false, Accept, &[(Port, Drop)])]), [true]);
        assert_eq!(found(&[chain(true, Drop, &[(Other, Accept)])]), [false]);
        assert_eq!(found(&[chain(true, Accept, &[(All, Drop)])]), [false]);
        // The first rule for all packets decides, before the policy.
        assert!(found(&[chain(true, Drop, &[(All, Accept), (All, Drop)])]).is_empty());
        // Another chain may be for few packets, and an exception for the port may be anywhere.
        assert!(found(&[chain(false, Accept, &[(All, Drop)])]).is_empty());
        assert!(found(&[chain(true, Drop, &[]), chain(false, Accept, &[(Port, Accept)])]).is_empty());
    }

    #[test]
    fn who_may_not_look_is_told() {
        assert!(matches!(look(false), Firewall::Unknown(why) if why.contains("root")));
    }
}
