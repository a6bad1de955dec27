//! From nothing to a lease: what the first program of a network namespace meets.

mod common;

use common::{brokers, connect, eventually, isolated};
use ferroce_client::{BrokerClient, BrokerMode, embed_with};

#[test]
fn the_first_program_starts_the_broker_and_leases_slot_1() {
    isolated("the_first_program_starts_the_broker_and_leases_slot_1", || {
        let first = connect();
        let devices = first.devices().unwrap();
        assert_eq!(devices.len(), 1);
        let fr0 = &devices[0];
        assert_eq!((fr0.name.as_str(), fr0.dev_name.as_str(), fr0.netdev.as_str()), ("fr0", "uverbs0", "lo"));
        assert!(fr0.port_active, "lo was down, the broker may raise it here");
        assert_ne!(fr0.node_guid, [0; 8]);
        let gids: Vec<String> = fr0.gids.iter().map(|e| format!("{} {}", e.index, e.gid.to_ip())).collect();
        assert_eq!(gids, ["0 127.0.0.1", "1 ::1"]);

        let lease = first.lease(1).unwrap();
        assert_eq!(lease.members(), [1]);
        let ips: Vec<String> = lease.addresses.iter().map(|a| format!("{} {}", a.member, a.ip)).collect();
        assert_eq!(ips, ["1 127.0.0.1", "1 ::1"]);
        assert_eq!(lease.notice, "");

        let second = connect();
        assert_eq!(second.lease(2).unwrap().members(), [2, 3]);
        drop(first);
        eventually("slot 1 is free again", || second.lease(1).is_ok_and(|lease| lease.members() == [1]));
        assert_eq!(brokers().len(), 1, "one broker serves all");
    });
}

#[test]
fn a_broker_within_the_program() {
    isolated("a_broker_within_the_program", || {
        embed_with(ferroce_broker::start_embedded);
        let client = BrokerClient::connect(BrokerMode::Embedded).unwrap();
        assert_eq!(client.lease(1).unwrap().members(), [1]);
        assert!(brokers().is_empty());
    });
}

#[test]
fn no_broker_is_started_when_none_is_wanted() {
    isolated("no_broker_is_started_when_none_is_wanted", || {
        let error = BrokerClient::connect(BrokerMode::None).unwrap_err();
        assert!(common::chain(&error).contains("no ferroced runs in this network namespace"), "{error:?}");
        assert!(brokers().is_empty());
    });
}

#[test]
fn a_root_without_device_nodes() {
    isolated("a_root_without_device_nodes", || {
        let hidden = std::process::Command::new("mount").args(["-t", "tmpfs", "none", "/dev"]).status();
        assert!(hidden.unwrap().success() && !std::path::Path::new("/dev/null").exists());
        let client = connect();
        let devices = || client.devices().map(|devices| devices.len());
        assert_eq!(devices().unwrap(), 1);
        // The broker that follows one that died is started in the background, with no output at all.
        let first = brokers();
        assert_eq!(first.len(), 1);
        common::kill(first[0]);
        eventually("another broker", || devices().is_ok_and(|count| count == 1) && brokers() != first);
    });
}
