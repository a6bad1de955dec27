//! Rules for management datagrams, which the broker applies for this program.

use std::time::{Duration, Instant};

use ferroce_ipc::{MadFaultReport, Message};
use tracing::debug;

use super::link::{Guard, Inner, Link};
use super::rules::Rules;
use super::{BrokerClient, BrokerEvent};

/// How long the broker may take to take the rules.
const LIMIT: Duration = Duration::from_secs(2);

impl BrokerClient {
    /// Gives the broker the rules in place of earlier ones; an empty text ends them. Later brokers get them
    /// as well. Returns the number that the broker's reports have from now on.
    ///
    /// # Errors
    /// A sentence: the broker refused the rules.
    pub fn give_mad_rules(&self, text: String) -> Result<u32, String> {
        {
            let inner = &mut self.inner.lock();
            if text.is_empty() && inner.mad_rules.text.is_empty() {
                return Ok(inner.mad_rules.generation);
            }
            let generation = inner.mad_rules.generation.wrapping_add(1);
            inner.mad_rules = Rules { generation, text, asked: None };
        }
        self.repeat_mad_rules()
    }

    /// Gives the broker the same rules again, after another slot was leased. Their counts go on.
    ///
    /// # Errors
    /// As [`Self::give_mad_rules`].
    pub fn repeat_mad_rules(&self) -> Result<u32, String> {
        let rules = self.inner.lock().mad_rules.clone();
        if rules.generation == 0 {
            return Ok(0);
        }
        match self.ask(|client| client.request(&rules.message(), LIMIT).map(drop)) {
            Ok(_) => Ok(rules.generation),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Asks the broker what became of the rules, and waits for so long at most. Returns the reports in their
    /// order, also those that came before.
    pub fn ask_mad_faults(&self, limit: Duration) -> Option<Vec<MadFaultReport>> {
        let deadline = Instant::now() + limit;
        let inner = self.inner.try_lock_until(deadline)?;
        let mut guard = Guard::new(self, inner);
        guard.drain();
        if !guard.inner.is_ready() {
            return None;
        }
        let mut last = Vec::new();
        loop {
            let Link::Up { client, .. } = &mut guard.inner.link else { return None };
            let left = deadline.saturating_duration_since(Instant::now());
            match self.alone(client, |client| client.request(&Message::GetMadFaults, left)) {
                Ok((Message::MadFaultReport(report), _)) => {
                    let more = report.more;
                    last.push(report);
                    if !more {
                        break;
                    }
                }
                Ok(_) => return None,
                Err(error) => {
                    debug!("no counts of rules for management datagrams: {error}");
                    return None;
                }
            }
        }
        // Reports that were asked for earlier arrived before these answers.
        guard.drain();
        let mut reports = Vec::new();
        guard.inner.events.retain(|event| match event {
            BrokerEvent::MadFaults(report) => {
                reports.push(report.clone());
                false
            }
            _ => true,
        });
        reports.append(&mut last);
        Some(reports)
    }
}

impl Inner {
    /// A new broker took over: gives it the rules, with a new number because it begins anew.
    pub(super) fn hand_over_mad_rules(&mut self) {
        let Link::Up { client, .. } = &mut self.link else { return };
        let rules = &mut self.mad_rules;
        if rules.text.is_empty() {
            return;
        }
        rules.generation = rules.generation.wrapping_add(1);
        let given = match client.send(&rules.message(), &[]) {
            Ok(id) => {
                rules.asked = Some(id);
                Ok(rules.generation)
            }
            Err(error) => Err(error.to_string()),
        };
        self.events.push_back(BrokerEvent::MadRules(given));
    }

    /// Takes the refusal of the rules that were handed over; whether it is that.
    pub(super) fn mad_rules_refused(&mut self, id: u32, sentence: &str) -> bool {
        let refused = self.mad_rules.asked == Some(id);
        if refused {
            self.mad_rules.asked = None;
            self.events.push_back(BrokerEvent::MadRules(Err(sentence.to_owned())));
        }
        refused
    }

    /// There are hits at the broker: asks for them, when there is time.
    pub(super) fn ask_for_hits(&mut self) {
        self.reports.push_back(Message::GetMadFaults);
    }

    /// Takes a report that was asked for without waiting.
    pub(super) fn mad_faults(&mut self, report: MadFaultReport) {
        if report.more {
            self.ask_for_hits();
        }
        self.events.push_back(BrokerEvent::MadFaults(report));
    }
}

#[cfg(test)]
mod tests {
    use ferroce_ipc::{Hello, Listener, Refusal, RefusalCode};

    use super::*;
    use crate::{BrokerMode, ConnectOptions};

    const RULES: &str = "seed=1\ndrop if op=rep\n";

    /// A client of a broker that answers messages so until the client goes.
    fn with_broker(
        mut answer: impl FnMut(Message) -> Option<Message> + Send + 'static,
        test: impl FnOnce(&BrokerClient),
    ) {
        let name = format!("ferroce.test.mads.{}.{:?}", std::process::id(), std::thread::current().id());
        let listener = Listener::bind(&name).unwrap();
        let broker = std::thread::spawn(move || {
            let connection = loop {
                match listener.accept() {
                    Ok(connection) => break connection,
                    Err(_) => std::thread::sleep(Duration::from_millis(1)),
                }
            };
            connection.send(0, &Message::Hello(Hello::ours("")), &[]).unwrap();
            let mut buffer = Vec::new();
            loop {
                connection.wait_readable(Instant::now() + Duration::from_secs(60)).unwrap();
                let Ok(Some(received)) = connection.recv(&mut buffer) else { return };
                let (id, message) = received.message.unwrap();
                let answer = match message {
                    Message::Hello(_) => None,
                    Message::ListDevices => Some(Message::Devices(Vec::new())),
                    other => answer(other),
                };
                if let Some(answer) = answer {
                    connection.send(id, &answer, &[]).unwrap();
                }
            }
        });
        let options = ConnectOptions { name, ..ConnectOptions::new(BrokerMode::None) };
        let client = BrokerClient::connect_with(options).unwrap();
        test(&client);
        drop(client);
        broker.join().unwrap();
    }

    fn hits(place: u16, more: bool) -> MadFaultReport {
        MadFaultReport { generation: 1, more, hits: vec![(place, "drop".to_owned())], ..Default::default() }
    }

    #[test]
    fn rules_are_given_and_reports_come_in_their_order() {
        let mut left = 3;
        let answer = move |message| match message {
            Message::MadFaults { generation: 1, rules } if rules == RULES => Some(Message::Done),
            Message::MadFaults { generation: 2, .. } => Some(Message::Refused(Refusal {
                code: RefusalCode::BadRequest,
                sentence: "no such act".to_owned(),
            })),
            Message::GetMadFaults if left > 0 => {
                left -= 1;
                Some(Message::MadFaultReport(hits(3 - left, left > 0)))
            }
            _ => None,
        };
        with_broker(answer, |client| {
            assert_eq!(client.give_mad_rules(String::new()), Ok(0), "nobody asks for it");
            assert_eq!(client.give_mad_rules(RULES.to_owned()), Ok(1));
            assert_eq!(client.repeat_mad_rules(), Ok(1));
            // News, as an event: the background thread asks for the hits.
            client.inner.lock().ask_for_hits();
            let reports = client.ask_mad_faults(LIMIT).unwrap();
            let places: Vec<u16> = reports.iter().flat_map(|report| &report.hits).map(|hit| hit.0).collect();
            assert_eq!(places, [1, 2, 3]);
            let error = client.give_mad_rules("drop if op=req".to_owned()).unwrap_err();
            assert!(error.contains("no such act"), "{error}");
        });
    }

    #[test]
    fn a_broker_that_does_not_answer_is_not_waited_for() {
        let answer = |message| matches!(message, Message::MadFaults { .. }).then_some(Message::Done);
        with_broker(answer, |client| {
            assert_eq!(client.give_mad_rules(RULES.to_owned()), Ok(1));
            assert_eq!(client.ask_mad_faults(Duration::from_millis(20)), None);
        });
    }
}
