//! How flows share a receiver or a link: the scenarios of the book's page about congestion.
//!
//! Each flow is a queue pair that writes 64 KiB messages without end, 16 outstanding, from a host of its own.
//! What is counted happens after a warm-up, since all flows start at once with windows that nothing has
//! adapted. The first link of the outcome is the one that the flows share, towards the receivers.

use crate::scenario::Scenario;

/// So many senders to one receiver whose socket has 208 KiB. `switch`: the last link has 10 Gbit/s, a queue
/// of 208 KiB and a threshold of marks, and the process takes packets at once. Otherwise the link is fast,
/// and the process takes 1 µs for a packet. `ecn`: senders understand marks and react to them (DCQCN).
/// `selective`: lost requests are repeated selectively.
pub fn incast(flows: usize, switch: bool, ecn: bool, selective: bool) -> Scenario {
    let per_packet = if switch { "0us" } else { "1us" };
    let line = match switch {
        true => "rate = \"10gbit\"\nqueue = \"208k\"\nmark = \"32k\"",
        false => "rate = \"100gbit\"\nqueue = \"16m\"",
    };
    let host = format!("{}selective_repeat = {:?}", host(ecn), if selective { "cm" } else { "off" });
    read(&format!(
        r#"
        end = "1050ms"
        warm_up = "50ms"
        [[host]]
        name = "sender"
        count = {flows}
        {host}
        buffer = "208k"
        batch = 32
        jitter = "2us"
        [[host]]
        name = "receiver"
        {host}
        buffer = "208k"
        batch = 32
        jitter = "2us"
        per_packet = "{per_packet}"
        [[switch]]
        name = "near"
        [[link]]
        ends = ["near", "receiver"]
        delay = "2us"
        {line}
        [[link]]
        ends = ["sender", "near"]
        rate = "100gbit"
        delay = "2us"
        queue = "16m"
        [[flow]]
        from = "sender"
        to = "receiver"
        op = "write"
        "#
    ))
}

/// Two flows over a link of 100 Mbit/s with a queue of 128 KiB (10 ms), perhaps beside a TCP flow (NewReno).
/// The round trip without a queue takes 2 ms. `ecn` as for [`incast`], and of TCP too.
pub fn shared_link(tcp: bool, ecn: bool) -> Scenario {
    let hosts = ["sender", "receiver"].map(|name| {
        let host = host(ecn);
        let near = if name == "sender" { "near" } else { "far" };
        format!(
            r#"
            [[host]]
            name = "{name}"
            count = 3
            {host}selective_repeat = "off"
            jitter = "100us"
            [[link]]
            ends = ["{name}", "{near}"]
            rate = "10gbit"
            delay = "2us"
            queue = "16m"
            "#
        )
    });
    let flow = |number: usize| {
        let op = if number < 2 { "op = \"write\"".to_owned() } else { format!("op = \"tcp\"\necn = {ecn}") };
        format!("[[flow]]\nfrom = \"sender{number}\"\nto = \"receiver{number}\"\n{op}\n")
    };
    let flows: String = (0..2 + usize::from(tcp)).map(flow).collect();
    read(&format!(
        r#"
        end = "25s"
        warm_up = "5s"
        [[switch]]
        name = "near"
        [[switch]]
        name = "far"
        [[link]]
        ends = ["near", "far"]
        rate = "100mbit"
        delay = "1ms"
        queue = "128k"
        mark = "20k"
        {}
        {flows}
        "#,
        hosts.concat()
    ))
}

fn host(ecn: bool) -> String {
    format!("congestion = {:?}\n", if ecn { "ecn" } else { "react" })
}

fn read(text: &str) -> Scenario {
    text.parse().unwrap_or_else(|error| panic!("{error}: {text}"))
}
