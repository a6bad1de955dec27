//! Rules for management datagrams, which the broker applies for this program.

use std::time::{Duration, Instant};

use ferroce_ipc::{MAD_FAULTS_MINOR, MadFaultReport, Message};
use rustix::event::epoll::EventFlags;
use std::sync::atomic::Ordering;
use tracing::debug;

use super::link::{Guard, Inner, Link};
use super::{BrokerClient, BrokerEvent, watch_for};

/// How long the broker may take to take the rules.
const LIMIT: Duration = Duration::from_secs(2);

/// The rules, for this broker and the next one.
#[derive(Clone, Default, Debug)]
pub(super) struct Rules {
    /// Grows each time that a broker is to begin anew with the rules.
    generation: u32,
    text: String,
    /// The request that gave them to the present broker, while it is not answered.
    asked: Option<u32>,
}

impl Rules {
    fn message(&self) -> Message {
        Message::MadFaults { generation: self.generation, rules: self.text.clone() }
    }
}

impl BrokerClient {
    /// Gives the broker the rules in place of earlier ones; an empty text ends them. Later brokers get them as well. Returns the number
    /// that the broker's reports have from now on.
    ///
    /// # Errors
    /// A sentence: the broker is an older one, or refused the rules.
    pub(crate) fn give_mad_rules(&self, text: String) -> Result<u32, String> {
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
    pub(crate) fn repeat_mad_rules(&self) -> Result<u32, String> {
        let (minor, rules) = {
            let inner = &self.inner.lock();
            (inner.minor, inner.mad_rules.clone())
        };
        if rules.generation == 0 || rules.text.is_empty() && minor < MAD_FAULTS_MINOR {
            return Ok(rules.generation);
        }
        if minor < MAD_FAULTS_MINOR {
            return Err(older());
        }
        match self.ask(|client| client.request(&rules.message(), LIMIT).map(drop)) {
            Ok(_) => Ok(rules.generation),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Asks the broker what became of the rules, and waits for so long at most. Returns the reports in their order, also those that came
    /// before.
    pub(crate) fn ask_mad_faults(&self, limit: Duration) -> Option<Vec<MadFaultReport>> {
        let deadline = Instant::now() + limit;
        let inner = self.inner.try_lock_until(deadline)?;
        let mut guard = Guard::new(self, inner);
        guard.drain();
        if !guard.inner.is_ready() || guard.inner.minor < MAD_FAULTS_MINOR {
            return None;
        }
        let mut last = Vec::new();
        loop {
            let Link::Up { client, .. } = &mut guard.inner.link else { return None };
            watch_for(&self.epoll, client, EventFlags::empty());
            self.asking.store(true, Ordering::Relaxed);
            let left = deadline.saturating_duration_since(Instant::now());
            let answer = client.request(&Message::GetMadFaults, left);
            self.asking.store(false, Ordering::Relaxed);
            watch_for(&self.epoll, client, EventFlags::IN);
            match answer {
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
        if self.minor < MAD_FAULTS_MINOR {
            self.events.push_back(BrokerEvent::MadRules(Err(older())));
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

fn older() -> String {
    "the broker is of an older ferroce: `ferroce stop --force` ends it, and programs start the new one"
        .to_owned()
}
