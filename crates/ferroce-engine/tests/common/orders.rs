//! Orders about faults that this process gets, as by `ferroce fault`.

use ferroce_engine::{SendOp, WcOpcode};
use ferroce_ipc::{BROKER_NAME, Client, ClientError, FaultOrder, FaultReport, Message};

use super::{End, PATIENCE};

/// Gives this process an order, as `ferroce fault` does.
pub fn order(order: FaultOrder) -> Result<FaultReport, ClientError> {
    let mut client = Client::connect(BROKER_NAME, "", PATIENCE).unwrap();
    let pid = std::process::id();
    let Message::Status(status) = client.request(&Message::GetStatus, PATIENCE).unwrap().0 else { panic!() };
    let program = status.programs.iter().find(|program| program.pid == pid).unwrap();
    let request = Message::FaultRequest { slot: program.slots[0], pid, order };
    match client.request(&request, PATIENCE)? {
        (Message::FaultReport { result, .. }, _) => Ok(result.unwrap()),
        other => panic!("{other:?}"),
    }
}

pub fn apply(rules: &str) -> Result<FaultReport, ClientError> {
    order(FaultOrder::Apply { rules: rules.to_owned(), seed: None })
}

pub fn hits() -> Vec<u64> {
    order(FaultOrder::Show).unwrap().rules.iter().map(|rule| rule.hits).collect()
}

/// The last counts of the plan that ends.
pub fn clear() -> Vec<u64> {
    order(FaultOrder::Clear).unwrap().rules.iter().map(|rule| rule.hits).collect()
}

/// Posts a SEND of `a`, for rules to act on, and waits for its completions at both ends.
pub fn exchange(a: &End, b: &End) {
    b.receive(1, b.sge(0, 4096));
    a.post(2, SendOp::Send, a.sge(0, 64));
    a.expect(2, WcOpcode::Send);
    b.expect(1, WcOpcode::Recv);
}
