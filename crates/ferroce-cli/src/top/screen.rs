//! The tables on a terminal.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use nix::sys::signal::{SigSet, Signal};
use ratatui::backend::Backend;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Alignment, Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Cell, Row, Table as Drawn, TableState};
use ratatui::{DefaultTerminal, Frame};

use super::table::{self, Column, ProgramRow, QpRow, Table};
use crate::args::TopArgs;
use crate::look::{Look, Watch};

/// The state of the screen.
struct Screen {
    programs: Vec<ProgramRow>,
    /// The queue pairs of the selected program, if they are shown.
    queue_pairs: Option<Vec<QpRow>>,
    /// The slot and the device of the selected row: the order changes with each look.
    selected: Option<(u16, String)>,
    state: TableState,
}

enum Step {
    Go,
    Redraw,
    End,
}

pub fn run(args: &TopArgs, watch: Watch) -> Result<()> {
    let mut ends = SigSet::empty();
    [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().for_each(|signal| ends.add(signal));
    ends.thread_block()?;
    let terminal = ratatui::try_init()?;
    thread::spawn(move || {
        if let Ok(signal) = ends.wait() {
            ratatui::restore();
            // As shells have it.
            std::process::exit(128 + signal as i32);
        }
    });
    let done = show(args, watch, terminal);
    ratatui::restore();
    done
}

fn show(args: &TopArgs, mut watch: Watch, mut terminal: DefaultTerminal) -> Result<()> {
    let mut before = watch.ask(Look::at)?;
    // Rates need two looks; the first table comes soon.
    thread::sleep(args.every.min(Duration::from_millis(200)));
    let mut screen =
        Screen { programs: Vec::new(), queue_pairs: None, selected: None, state: TableState::default() };
    let mut turns = 0;
    loop {
        let now = watch.ask(Look::at)?;
        turns += 1;
        let next = Instant::now() + args.every;
        screen.take(&before, &now);
        loop {
            terminal.draw(|frame| screen.draw(frame))?;
            let left = next.saturating_duration_since(Instant::now());
            if !event::poll(left)? {
                break;
            }
            let step = match event::read()? {
                Event::Key(key) if key.kind != KeyEventKind::Release => screen.key(key),
                _ => Step::Go,
            };
            match step {
                Step::Go => {}
                Step::Redraw => {
                    // `Terminal::clear` would ask the terminal for the place of its cursor, and wait.
                    terminal.backend_mut().clear()?;
                    terminal.swap_buffers();
                    screen.take(&before, &now);
                }
                Step::End => return Ok(()),
            }
        }
        if args.count.is_some_and(|count| turns >= count) {
            return Ok(());
        }
        before = now;
    }
}

impl Screen {
    /// Takes the rates between two looks.
    fn take(&mut self, before: &Look, now: &Look) {
        self.programs = table::programs(before, now);
        let place = self.place();
        if place.is_none() {
            // The program has ended; its queue pairs are no other's.
            self.queue_pairs = None;
        }
        let place = place.unwrap_or(0);
        self.select(place);
        if self.queue_pairs.is_some() {
            let row = self.programs.get(place);
            self.queue_pairs = row.map(|row| table::queue_pairs(before, now, row));
        }
    }

    /// The place of the selected row.
    fn place(&self) -> Option<usize> {
        let (slot, device) = self.selected.as_ref()?;
        self.programs.iter().position(|row| row.slot == *slot && row.ifname == *device)
    }

    fn select(&mut self, place: usize) {
        let place = place.min(self.programs.len().saturating_sub(1));
        let row = self.programs.get(place);
        self.selected = row.map(|row| (row.slot, row.ifname.clone()));
        self.state.select(row.map(|_| place));
    }

    fn key(&mut self, key: KeyEvent) -> Step {
        let place = self.place().unwrap_or(0);
        match key.code {
            KeyCode::Char('q') => Step::End,
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => Step::End,
            KeyCode::Up => self.moved(place.saturating_sub(1)),
            KeyCode::Down => self.moved(place + 1),
            KeyCode::Enter if self.queue_pairs.is_none() && !self.programs.is_empty() => {
                self.queue_pairs = Some(Vec::new());
                Step::Redraw
            }
            KeyCode::Enter | KeyCode::Esc | KeyCode::Backspace if self.queue_pairs.take().is_some() => {
                Step::Redraw
            }
            _ => Step::Go,
        }
    }

    /// Arrows select a program also while its queue pairs are shown.
    fn moved(&mut self, place: usize) -> Step {
        self.select(place);
        if self.queue_pairs.is_some() { Step::Redraw } else { Step::Go }
    }

    fn draw(&mut self, frame: &mut Frame<'_>) {
        let [head, body, foot] =
            Layout::vertical([Constraint::Length(1), Constraint::Min(1), Constraint::Length(1)])
                .areas(frame.area());
        let selected = self.place().and_then(|place| self.programs.get(place));
        let (title, keys) = match (&self.queue_pairs, selected) {
            (Some(pairs), Some(row)) => (
                format!("queue pairs of {} {} on {}: {}", row.comm, row.pid, row.ifname, pairs.len()),
                "Esc back  q end",
            ),
            _ => (
                format!("ferroce: {} programs", self.programs.len()),
                "Up Down select  Enter queue pairs  q end",
            ),
        };
        frame.render_widget(Line::from(title), head);
        match &self.queue_pairs {
            Some(pairs) => frame.render_widget(drawn(pairs), body),
            None => frame.render_stateful_widget(drawn(&self.programs), body, &mut self.state),
        }
        frame.render_widget(Line::from(keys), foot);
    }
}

fn drawn<T: Table>(rows: &[T]) -> Drawn<'static> {
    let cell = |(column, text): (&Column, String)| {
        let side = if column.is_text { Alignment::Left } else { Alignment::Right };
        Cell::from(Text::from(text).alignment(side))
    };
    let row = |cells: Vec<String>| Row::new(T::COLUMNS.iter().zip(cells).map(cell));
    let widths = T::COLUMNS.iter().map(|column| Constraint::Length(column.width as u16));
    Drawn::new(rows.iter().map(|one| row(one.cells())), widths)
        .header(row(T::header()).style(Style::new().add_modifier(Modifier::BOLD)))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED))
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;

    fn row(slot: u16, comm: &str) -> ProgramRow {
        ProgramRow {
            pid: u32::from(slot) + 1000,
            comm: comm.to_owned(),
            ifname: "fr0".to_owned(),
            slot,
            qp: 2,
            sent_octets: 2_500_000.0,
            rcvd_octets: 0.0,
            direct_octets: 0.0,
            sent_pkts: 12.0,
            rcvd_pkts: 0.0,
            direct_ops: 0.0,
            resent_pkts: 1.0,
            cpu: None,
        }
    }

    #[test]
    fn keys_select_a_program_and_show_its_queue_pairs() {
        let mut screen = Screen {
            programs: vec![row(16, "first"), row(17, "second")],
            queue_pairs: None,
            selected: None,
            state: TableState::default(),
        };
        screen.select(0);
        let key = |screen: &mut Screen, code| screen.key(KeyEvent::new(code, KeyModifiers::NONE));
        key(&mut screen, KeyCode::Down);
        key(&mut screen, KeyCode::Down);
        assert_eq!(screen.place(), Some(1));
        // The busiest is first now, and the selected one stays selected.
        screen.programs.reverse();
        assert_eq!(screen.place(), Some(0));
        let mut terminal = Terminal::new(TestBackend::new(120, 6)).unwrap();
        terminal.draw(|frame| screen.draw(frame)).unwrap();
        let text = terminal.backend().to_string();
        for part in ["ferroce: 2 programs", "OUT-MB/s", "1017 second", "2.50", "q end"] {
            assert!(text.contains(part), "no {part} in\n{text}");
        }
        assert!(matches!(key(&mut screen, KeyCode::Enter), Step::Redraw));
        terminal.draw(|frame| screen.draw(frame)).unwrap();
        let text = terminal.backend().to_string();
        assert!(text.contains("queue pairs of second 1017 on fr0: 0") && text.contains("LQPN"), "{text}");
        assert!(matches!(key(&mut screen, KeyCode::Esc), Step::Redraw) && screen.queue_pairs.is_none());
        assert!(matches!(key(&mut screen, KeyCode::Char('q')), Step::End));
    }
}
