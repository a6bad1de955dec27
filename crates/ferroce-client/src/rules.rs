//! The rules for management datagrams, as each broker gets them.

use ferroce_ipc::Message;

/// The rules, for this broker and the next one.
#[derive(Clone, Default, Debug)]
pub(super) struct Rules {
    /// Grows each time that a broker is to begin anew with the rules.
    pub(super) generation: u32,
    /// The seed and the rules in lines; empty for none.
    pub(super) text: String,
    /// The request that gave them to the present broker, while it is not answered.
    pub(super) asked: Option<u32>,
}

impl Rules {
    pub(super) fn message(&self) -> Message {
        Message::MadFaults { generation: self.generation, rules: self.text.clone() }
    }
}
