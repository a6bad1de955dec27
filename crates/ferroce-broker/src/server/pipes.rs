//! The memory of pipes: made here, and handed to both programs. The data does not pass through the broker.

use std::io;

use ferroce_ipc::pipe::Pipe;
use ferroce_ipc::{Message, RefusalCode, Strange};

use super::Server;
use crate::logic::PipeEnd;
use crate::refusal;

impl Server {
    /// Sends each of the two programs the pipe and the offer of the other one.
    pub(super) fn open_pipe(&mut self, id: u32, [first, second]: [PipeEnd; 2]) {
        let client = first.client;
        match self.descriptors_of_pipe(&first, &second) {
            Ok([to_first, to_second]) => {
                let pipe = |first: bool, other: &PipeEnd| Message::Pipe {
                    first,
                    direct: other.offered.len() > 1,
                    slots: other.slots.clone(),
                };
                let (answer, news) = (pipe(true, &second), pipe(false, &first));
                // The other program learns of it first: the one that asked waits for it.
                self.send(second.client, 0, news, to_second);
                self.send(client, id, answer, to_first);
            }
            Err(e) => {
                let sentence = format!("ferroced cannot make a pipe: {e}");
                self.send(client, id, Message::Refused(refusal(RefusalCode::Failed, sentence)), Vec::new());
            }
        }
    }

    /// For each of the two: the memory, and the other one's doorbell, pidfd and offer.
    fn descriptors_of_pipe(&self, first: &PipeEnd, second: &PipeEnd) -> io::Result<[Vec<Strange>; 2]> {
        let memory = Pipe::create()?;
        let of = |other: &PipeEnd| -> io::Result<Vec<Strange>> {
            let pidfd = self.processes.get(&other.process).ok_or(io::ErrorKind::NotFound)?;
            let mut descriptors = vec![Strange::from(memory.try_clone()?)];
            let mut offered = other.offered.iter();
            descriptors.extend(offered.next().map(Strange::try_clone).transpose()?);
            descriptors.push(pidfd.try_clone()?.into());
            descriptors.extend(offered.next().map(Strange::try_clone).transpose()?);
            Ok(descriptors)
        };
        Ok([of(second)?, of(first)?])
    }
}
