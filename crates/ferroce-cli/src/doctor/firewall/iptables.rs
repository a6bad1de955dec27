//! The rules of iptables, as `iptables-save` prints them.

use ferroce_wire::ROCE_UDP_PORT;

use super::{About, Chain, Verdict};

/// The chains of all tables of one family.
pub fn chains(text: &str, tool: &str) -> Vec<Chain> {
    let tool = tool.trim_end_matches("-save");
    let mut found: Vec<Chain> = Vec::new();
    let mut table = "";
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let called = |name: &str| format!("{tool}, {table} {name}");
        match words.as_slice() {
            [name] if name.starts_with('*') => table = name.trim_start_matches('*'),
            [name, policy, ..] if name.starts_with(':') => {
                let name = name.trim_start_matches(':');
                found.push(Chain {
                    name: called(name),
                    shown_by: format!("{tool} -t {table} -S {name}"),
                    base: matches!(name, "INPUT" | "OUTPUT" | "PREROUTING"),
                    policy: if *policy == "DROP" { Verdict::Drop } else { Verdict::Accept },
                    rules: Vec::new(),
                });
            }
            // Forwarded packets belong to other hosts.
            ["-A", "FORWARD" | "POSTROUTING", ..] => {}
            ["-A", name, rest @ ..] => {
                let name = called(name);
                if let Some(chain) = found.iter_mut().find(|chain| chain.name == name) {
                    chain.rules.push(rule(rest));
                }
            }
            _ => {}
        }
    }
    found
}

fn rule(words: &[&str]) -> (About, Verdict) {
    let (mut about, mut verdict, mut not) = (About::All, Verdict::Other, false);
    let mut words = words.iter().copied();
    while let Some(word) = words.next() {
        let negated = std::mem::replace(&mut not, false);
        let now = match word {
            "!" => {
                not = true;
                continue;
            }
            "-j" => {
                verdict = match words.next() {
                    Some("ACCEPT") => Verdict::Accept,
                    Some("DROP" | "REJECT") => Verdict::Drop,
                    _ => Verdict::Other,
                };
                // The words behind the target are its options.
                break;
            }
            "-p" => match words.next() == Some("udp") {
                udp if udp != negated => About::All,
                _ => About::Other,
            },
            "--dport" | "--dports" => match words.next().is_some_and(covers) {
                here if here != negated => About::Port,
                _ => About::Other,
            },
            "-m" => match words.next() {
                Some("udp" | "multiport" | "comment") => About::All,
                _ => About::Some,
            },
            "--comment" => {
                // A comment of several words stands in quotation marks.
                let first = words.next().unwrap_or_default();
                if first.starts_with('"') && !(first.len() > 1 && first.ends_with('"')) {
                    words.by_ref().find(|word| word.ends_with('"'));
                }
                About::All
            }
            _ => About::Some,
        };
        about = about.max(now);
    }
    (about, verdict)
}

/// Whether a list of ports and ranges (`53,4000:5000`) has the port.
fn covers(list: &str) -> bool {
    let number = |text: &str, open: u16| if text.is_empty() { Some(open) } else { text.parse().ok() };
    list.split(',').any(|part| {
        let (from, to) = part.split_once(':').unwrap_or((part, part));
        number(from, 0)
            .zip(number(to, u16::MAX))
            .is_some_and(|(from, to)| (from..=to).contains(&ROCE_UDP_PORT))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(lines: &str) -> Vec<(About, Verdict)> {
        let text = format!(
            "# Generated\n*filter\n:INPUT DROP [0:0]\n:FORWARD DROP [0:0]\n:own - [0:0]\n{lines}\nCOMMIT\n"
        );
        let mut chains = chains(&text, "iptables-save");
        assert_eq!(
            chains.iter().map(|chain| (chain.base, chain.policy)).collect::<Vec<_>>(),
            [(true, Verdict::Drop), (false, Verdict::Drop), (false, Verdict::Accept)]
        );
        assert_eq!(
            (&*chains[0].name, &*chains[0].shown_by),
            ("iptables, filter INPUT", "iptables -t filter -S INPUT")
        );
        chains.swap_remove(0).rules
    }

    #[test]
    fn the_port_is_found_in_numbers_and_lists() {
        for ports in [
            "-m udp --dport 4791",
            "-m udp --dport 4000:5000",
            "-m multiport --dports 53,4791",
            "-m udp ! --dport 53",
        ] {
            for target in ["DROP", "REJECT --reject-with icmp-port-unreachable"] {
                let line =
                    format!("-A INPUT -p udp {ports} -m comment --comment \"not -j here\" -j {target}");
                assert_eq!(rules(&line), [(About::Port, Verdict::Drop)], "{line}");
            }
        }
        assert_eq!(rules("-A INPUT -p udp -m udp --dport 4791 -j ACCEPT"), [(About::Port, Verdict::Accept)]);
    }

    #[test]
    fn rules_for_other_packets_are_none() {
        for line in [
            "-A INPUT -p udp -m udp --dport 53 -j DROP",
            "-A INPUT -p udp -m udp ! --dport 4791 -j DROP",
            "-A INPUT -p tcp -m tcp --dport 4791 -j DROP",
        ] {
            assert_eq!(rules(line), [(About::Other, Verdict::Drop)], "{line}");
        }
        assert_eq!(rules("-A INPUT -i eth1 -j DROP"), [(About::Some, Verdict::Drop)]);
        let one = "-A INPUT -s 10.0.0.0/8 -p udp -m udp --dport 4791 -j DROP";
        assert_eq!(rules(one), [(About::Port, Verdict::Drop)], "with a further condition");
        assert_eq!(
            rules("-A INPUT -j DROP\n-A INPUT -p udp -j ACCEPT"),
            [(About::All, Verdict::Drop), (About::All, Verdict::Accept)]
        );
        assert_eq!(rules("-A FORWARD -p udp -m udp --dport 4791 -j DROP"), []);
        assert_eq!(rules("-A INPUT -p udp -m udp --dport 4791 -j own"), [(About::Port, Verdict::Other)]);
    }
}
