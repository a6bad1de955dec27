//! Many short programs at once without `ferroced`: each may host the broker, and ends a moment later.

mod common;

use common::{brokers, chain, isolated, program};
use ferroce_client::{BrokerClient, BrokerMode, embed_with};

/// Programs at once, and how often.
const AT_ONCE: usize = 8;
const ROUNDS: usize = 12;

/// The broker of a program ends with the program, so it ends while others greet it, list devices or lease.
#[test]
fn the_broker_may_end_at_any_step_of_opening() {
    const NAME: &str = "the_broker_may_end_at_any_step_of_opening";
    if std::env::var_os("FERROCE_TEST_ROLE").is_some() {
        embed_with(ferroce_broker::start_embedded);
        match BrokerClient::connect(BrokerMode::Embedded).and_then(|client| client.lease(1)) {
            Ok(lease) => assert_eq!(lease.members().len(), 1),
            Err(e) => panic!("{}", chain(&e)),
        }
        return;
    }
    isolated(NAME, || {
        for round in 0..ROUNDS {
            let programs: Vec<_> = (0..AT_ONCE).map(|_| program(NAME, "short")).collect();
            for child in programs {
                let output = child.wait_with_output().unwrap();
                assert!(
                    output.status.success(),
                    "round {round}:\n{}",
                    String::from_utf8_lossy(&output.stdout)
                );
            }
        }
        assert!(brokers().is_empty(), "no ferroced took part");
    });
}
