//! Exchanges of Debian's librdmacm programs, for the stages that run both ends on ferroce and those with the
//! kernel at one end.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::job::Ended;

/// A server, a client, and what both must have printed. `{host}` in the arguments is the server's address, `{port}` a port
/// of this dialogue.
#[derive(Clone, Debug)]
pub struct Dialogue {
    /// Program and arguments.
    pub server: (&'static str, String),
    /// Program and arguments.
    pub client: (&'static str, String),
    /// Beside exit codes of 0.
    pub wanted: Wanted,
}

/// The text that the output of both ends must contain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wanted {
    /// Exit codes say enough.
    Nothing,
    /// So many pings at either end of rping.
    Pings(usize),
    /// These words at each end.
    Words(&'static [&'static str]),
    /// The table of cmtime at the client, and no error at the server, which serves until it is ended.
    Times,
    /// These words at the client; the server serves until it is ended.
    Served(&'static str),
}

/// The line of [`fails_at_its_end`].
const TOO_LATE: &str = "rdma_get_cm_event: Bad file descriptor\n";

/// Lines that rping writes to standard error in a successful run.
const ASIDES: [&str; 5] = [
    TOO_LATE,
    "client DISCONNECT EVENT...\n",
    "server DISCONNECT EVENT...\n",
    "wait for RDMA_READ_ADV state 10\n",
    "wait for RDMA_WRITE_ADV state 10\n",
];

impl Dialogue {
    fn new(program: &'static str, server: &str, client: &str, wanted: Wanted) -> Self {
        Self { server: (program, server.to_owned()), client: (program, client.to_owned()), wanted }
    }

    /// For messages.
    pub fn name(&self) -> String {
        let ((server, server_args), (client, client_args)) = (&self.server, &self.client);
        format!("{server} {server_args}, {client} {client_args}")
    }

    /// cmtime's server fails itself when a client is refused in part and gives up the rest.
    pub fn patience(&self) -> Option<Duration> {
        (self.wanted == Wanted::Times).then_some(Duration::from_millis(500))
    }

    /// Whether it does not matter which end is faster. `rstream -T a` takes the hang-up of a peer that was faster for an
    /// error and ends with 16, which is POLLHUP. So it does with the kernel's siw at both ends: 12 of 12 times if two busy
    /// processes share the client's core, 0 of 8 times without them (Linux 6.1, rdma-core 44).
    pub fn is_even(&self) -> bool {
        self.client.0 != "rstream" || !self.client.1.contains("-T a")
    }

    /// Whether the server has to be told to end.
    pub fn is_endless(&self) -> bool {
        matches!(self.wanted, Wanted::Times | Wanted::Served(_))
    }

    /// The words of one end's command line.
    pub fn words((program, args): &(&'static str, String), host: &str, port: u16) -> Vec<String> {
        let args = args.replace("{host}", host).replace("{port}", &port.to_string());
        std::iter::once(*program).chain(args.split_whitespace()).map(str::to_owned).collect()
    }

    /// Judges both outputs.
    pub fn judge(&self, client: &Ended, server: &Ended) -> Result<()> {
        match self.wanted {
            Wanted::Nothing => {}
            Wanted::Pings(count) => {
                for (end, words) in
                    [(client, "ping data: rdma-ping-"), (server, "server ping data: rdma-ping-")]
                {
                    // Text of standard error may interrupt a line of standard output.
                    let output =
                        ASIDES.iter().fold(end.output.clone(), |text, aside| text.replace(aside, ""));
                    let lines = output.lines().filter(|line| line.starts_with(words)).count();
                    ensure!(lines == count, "{lines} pings instead of {count}");
                }
            }
            Wanted::Words(words) => {
                for (end, word) in [client, server].iter().flat_map(|end| words.iter().map(move |w| (end, w)))
                {
                    ensure!(end.output.contains(word), "`{word}` is not printed");
                }
            }
            Wanted::Served(word) => ensure!(client.output.contains(word), "`{word}` is not printed"),
            Wanted::Times => {
                ensure!(client.output.contains("destroy "), "the client prints no times");
                ensure!(
                    !client.output.contains("error") && !server.output.contains("error"),
                    "there were errors"
                );
            }
        }
        Ok(())
    }
}

/// Whether rping did all that it was told to, and then lost a race against itself. Before rdma-core 59 its main thread destroys the
/// event channel and returns, while its other thread, which has handled the disconnect, asks the same channel for a further event. If
/// that comes first to its end, the exit code is 255 and this line the last one. rdma-core's commit f3ae6534a ends the
/// race in rping, and says that it makes successful runs fail there as well.
pub fn fails_at_its_end(ended: &Ended) -> bool {
    is_rping(ended)
        && ended.status.is_some_and(|status| status.code() == Some(255))
        && ended.output.contains(" DISCONNECT EVENT...\n")
        && ended.output.contains(TOO_LATE)
}

/// Whether rping's server was told that its client is gone, and then forgot it. Its thread of connection events sets the
/// state to "disconnected", and its thread of completions overwrites that with "READ complete" (7) or "WRITE complete" (9),
/// if the completion comes just then. The main thread then finds neither the next message nor the end, and exits with 255.
pub fn forgets_the_end(ended: &Ended) -> bool {
    const OVERWRITTEN: [&str; 2] = ["wait for RDMA_WRITE_ADV state 7\n", "wait for RDMA_READ_ADV state 9\n"];
    is_rping(ended)
        && ended.status.is_some_and(|status| status.code() == Some(255))
        && ended.output.contains("server DISCONNECT EVENT...\n")
        && OVERWRITTEN.iter().any(|words| ended.output.contains(words))
}

fn is_rping(ended: &Ended) -> bool {
    ended.line.split(' ').any(|word| Path::new(word).file_name().is_some_and(|name| name == "rping"))
}

/// How much is said.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Amount {
    /// Every kind of dialogue, not only one of each program.
    pub all: bool,
    /// Messages of a dialogue.
    pub messages: usize,
    /// Connections that cmtime makes.
    pub connections: usize,
}

/// rping: every size, validated by the client; its lines tell that each ping went both ways. With `-q` the programs set up
/// their queue pairs themselves.
///
/// ucmatose: several connections at once, ids that move to another channel, a type of service, an ACK timeout, the other
/// port space.
pub fn dialogues(amount: Amount) -> Vec<Dialogue> {
    let Amount { all, messages, connections } = amount;
    let mut list = Vec::new();
    let sizes: &[u32] = if all { &[17, 100, 1024, 4097, 65_535] } else { &[100, 65_535] };
    for size in sizes {
        let common = format!("-v -C {messages} -S {size} -a {{host}} -p {{port}}");
        let (server, client) = (format!("-s {common}"), format!("-c -V {common}"));
        list.push(Dialogue::new("rping", &server, &client, Wanted::Pings(messages)));
    }
    let own = format!("-q -C {messages} -a {{host}} -p {{port}}");
    list.push(Dialogue::new("rping", &format!("-s {own}"), &format!("-c -V {own}"), Wanted::Nothing));
    let kinds =
        [("-c 4 -C 10 -S 1000", ""), ("-C 50 -S 4096", "-t 32 -a 14"), ("-m -c 3", ""), ("-P ib -c 2", "")];
    for (common, client) in kinds.iter().take(if all { 4 } else { 2 }) {
        list.push(Dialogue::new(
            "ucmatose",
            &format!("{common} -b {{host}} -p {{port}}"),
            &format!("{common} {client} -s {{host}} -p {{port}}"),
            Wanted::Words(&["data transfers complete", "return status 0"]),
        ));
    }
    let args = "-s {host} -p {port}".to_owned();
    list.push(Dialogue {
        server: ("rdma_server", args.clone()),
        client: ("rdma_client", args),
        wanted: Wanted::Words(&[": end 0"]),
    });
    // udaddy has a port of its own, and room for no other.
    for common in ["-c 2 -C 20 -S 500", "-p 2"].iter().take(if all { 2 } else { 1 }) {
        list.push(Dialogue::new(
            "udaddy",
            &format!("{common} -b {{host}}"),
            &format!("{common} -s {{host}}"),
            Wanted::Words(&["data transfers complete", "return status 0"]),
        ));
    }
    let args = format!("-c {connections} -p {{port}}");
    let (server, client) = (format!("{args} -b {{host}}"), format!("{args} -s {{host}}"));
    list.push(Dialogue::new("cmtime", &server, &client, Wanted::Times));
    list
}

/// rdma_xserver takes IPv4's wildcard address only. `-c x` is XRC, which crashes a kernel that lacks rxe's fix of 2026.
pub fn transports(kinds: &[&str]) -> Vec<Dialogue> {
    let dialogue = |kind: &&str| Dialogue {
        server: ("rdma_xserver", format!("-p {{port}} -c {kind}")),
        client: ("rdma_xclient", format!("-s {{host}} -p {{port}} -c {kind}")),
        wanted: Wanted::Nothing,
    };
    kinds.iter().map(dialogue).collect()
}

/// The start of the first result line of the rsocket programs.
const RESULT: &str = "custom ";

/// Options of rstream besides sizes: blocking, with poll, without waiting, addresses of librdmacm, every octet checked,
/// keepalives, nothing inline, small buffers.
const RSTREAM: &[&str] = &["-T b -T v", "-T a", "-T n", "-T r -T v", "-k 1", "-i 0 -T v", "-B 10000 -T v"];

/// rsockets: streams, memory opened to the peer (`riostream`), datagrams (`udpong`).
pub fn rsockets(amount: Amount) -> Vec<Dialogue> {
    let Amount { all, messages, .. } = amount;
    let mut list = Vec::new();
    let mut add = |program, kind: &str, wanted| {
        let common = format!("-p {{port}} {kind} -C {messages} -S 30000");
        let (server, client) = (format!("-b {{host}} {common}"), format!("-s {{host}} {common}"));
        list.push(Dialogue::new(program, &server, &client, wanted));
    };
    let streams = Wanted::Words(&[RESULT]);
    for kind in RSTREAM.iter().take(if all { usize::MAX } else { 2 }) {
        add("rstream", &format!("{kind} -I 5"), streams);
    }
    for kind in ["-T v", "-T b"].iter().take(if all { 2 } else { 1 }) {
        add("riostream", &format!("{kind} -I 5"), streams);
    }
    for kind in ["-T b", "-T a"].iter().take(if all { 2 } else { 1 }) {
        let common = format!("-p {{port}} {kind} -C {messages} -S 1000");
        let (server, client) = (format!("-b {{host}} {common}"), format!("-s {{host}} {common}"));
        list.push(Dialogue::new("udpong", &server, &client, Wanted::Served(RESULT)));
    }
    list
}

/// perftest with `-R`, by which it connects and also exchanges what its ends must know. Debian's has neither UC nor IPv6
/// there.
pub fn perftests(all: bool, messages: usize) -> Vec<Dialogue> {
    let quick = [("ib_send_lat", ""), ("ib_write_bw", "-s 65536"), ("ib_send_lat", "-c UD -s 1000")];
    let more = [
        ("ib_send_bw", "-q 4 -s 8000"),
        ("ib_send_bw", "-b"),
        ("ib_write_lat", "-s 4096"),
        ("ib_read_bw", "-s 65536"),
        ("ib_read_lat", ""),
        ("ib_atomic_bw", ""),
        ("ib_atomic_lat", "-A CMP_AND_SWAP"),
        ("ib_send_lat", "-T 32"),
    ];
    let list = quick.iter().chain(&more[..if all { more.len() } else { 0 }]);
    list.map(|(program, args)| {
        let args = format!("-F -R -n {messages} -p {{port}} {args}");
        Dialogue::new(program, &args, &format!("{args} {{host}}"), Wanted::Words(&["rdma_cm QPs\t : ON"]))
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    use super::*;

    fn ended(line: &str, code: i32, output: &str) -> Ended {
        Ended {
            line: line.to_owned(),
            status: Some(ExitStatus::from_raw(code << 8)),
            output: output.to_owned(),
            elapsed: Duration::ZERO,
        }
    }

    #[test]
    fn only_a_state_that_was_overwritten_is_forgotten() {
        const LINES: &str =
            "server DISCONNECT EVENT...\nwait for RDMA_WRITE_ADV state 7\nrping server failed: -1\n";
        assert!(forgets_the_end(&ended("/usr/bin/rping -s", 255, LINES)));
        for (line, code, output) in [
            ("/usr/bin/ucmatose", 255, LINES),
            ("/usr/bin/rping -s", 1, LINES),
            ("/usr/bin/rping -s", 255, "wait for RDMA_WRITE_ADV state 7\n"),
            ("/usr/bin/rping -s", 255, "server DISCONNECT EVENT...\nwait for RDMA_READ_ADV state 11\n"),
        ] {
            assert!(!forgets_the_end(&ended(line, code, output)), "{line} {code} {output}");
        }
    }

    #[test]
    fn only_the_race_of_rping_is_tolerated() {
        const LINES: &str = "server DISCONNECT EVENT...\nrdma_get_cm_event: Bad file descriptor\n";
        assert!(fails_at_its_end(&ended("ferroce run -- /usr/bin/rping -s", 255, LINES)));
        for (line, code, output) in [
            ("/usr/bin/ucmatose", 255, LINES),
            ("/usr/bin/rping -s", 1, LINES),
            ("/usr/bin/rping -s", 255, "rdma_get_cm_event: Bad file descriptor\n"),
            ("/usr/bin/rping -s", 255, "server DISCONNECT EVENT...\n"),
            ("/usr/bin/rping -s", 255, "server DISCONNECT EVENT...\nrdma_get_cm_event: Invalid argument\n"),
        ] {
            assert!(!fails_at_its_end(&ended(line, code, output)), "{line} {code} {output}");
        }
    }

    #[test]
    fn every_dialogue_has_a_host_and_a_port() {
        let amount = Amount { all: true, messages: 10, connections: 100 };
        let lists = [dialogues(amount), transports(&["r", "x"]), perftests(true, 10), rsockets(amount)];
        for dialogue in lists.into_iter().flatten() {
            let [server, client] =
                [&dialogue.server, &dialogue.client].map(|end| Dialogue::words(end, "h", 9));
            for words in [&server, &client] {
                assert!(words[0] == "udaddy" || words.iter().any(|word| word == "9"), "{words:?}");
                assert!(words.iter().all(|word| !word.contains('{')), "{words:?}");
            }
            assert!(client.iter().any(|word| word == "h"), "{client:?}");
        }
        let few = Amount { all: false, ..amount };
        assert!(dialogues(few).len() < dialogues(amount).len());
    }
}
