//! Log output: to stderr, or the file of `VERBS_LOG_FILE`; down to the level of `VERBS_LOG_LEVEL` (0
//! none, 1 errors, 2 warnings, 3 what an operator does, 4 debug) or of `FERROCE_LOG` (a word: error, warn,
//! info, debug, trace, off). Without either only errors are told, for they say what to do.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::{Arc, Once};

use ferroce_host::environment;
use ferroce_host::output::{self, LogWriter};

use tracing::level_filters::LevelFilter;
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::FmtContext;
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::registry::LookupSpan;

/// Installs the subscriber of this library, at the first call of a program that touches a device.
pub(crate) fn install() {
    static INSTALL: Once = Once::new();
    INSTALL.call_once(|| {
        // The harness of unit tests has a hook of its own.
        if !cfg!(test) {
            output::report_panics();
        }
        let level = level(variable("FERROCE_LOG").as_deref(), variable("VERBS_LOG_LEVEL").as_deref());
        if level == LevelFilter::OFF {
            return;
        }
        let lines = tracing_subscriber::fmt()
            .with_max_level(level)
            .with_ansi(false)
            .log_internal_errors(false)
            .event_format(Line);
        let file = variable("VERBS_LOG_FILE").map(|path| {
            // The program must not wait for the reader of a pipe.
            let file =
                OpenOptions::new().append(true).create(true).custom_flags(libc::O_NONBLOCK).open(&path);
            file.map_err(|error| (path, error))
        });
        let stderr = || LogWriter(output::stderr());
        // A subscriber that is already there is the program's own, and stays.
        let _ = match file {
            Some(Ok(file)) => {
                let file = Arc::new(file);
                lines.with_writer(move || LogWriter(Arc::clone(&file))).try_init()
            }
            Some(Err((path, error))) => {
                let installed = lines.with_writer(stderr).try_init();
                tracing::error!("VERBS_LOG_FILE {path}: {error}; logging to stderr");
                installed
            }
            None => lines.with_writer(stderr).try_init(),
        };
    });
}

/// `ferroce: level: message fields`, with the spans it happened in.
struct Line;

impl<S, N> FormatEvent<S, N> for Line
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> std::fmt::Result {
        let level = event.metadata().level().as_str().to_ascii_lowercase();
        write!(writer, "ferroce: {level}: ")?;
        for span in context.event_scope().into_iter().flat_map(|scope| scope.from_root()) {
            write!(writer, "{} ", span.name())?;
        }
        context.format_fields(writer.by_ref(), event)?;
        writeln!(writer)
    }
}

fn level(ours: Option<&str>, verbs: Option<&str>) -> LevelFilter {
    if let Some(level) = ours.and_then(|word| word.parse().ok()) {
        return level;
    }
    match verbs.and_then(|number| number.trim().parse::<u32>().ok()) {
        None | Some(1) => LevelFilter::ERROR,
        Some(0) => LevelFilter::OFF,
        Some(2) => LevelFilter::WARN,
        Some(3) => LevelFilter::INFO,
        Some(_) => LevelFilter::DEBUG,
    }
}

fn variable(name: &str) -> Option<String> {
    environment::text(name).filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_those_of_rdma_core() {
        for (ours, verbs, want) in [
            (None, None, LevelFilter::ERROR),
            (None, Some("0"), LevelFilter::OFF),
            (None, Some("2"), LevelFilter::WARN),
            (None, Some("4"), LevelFilter::DEBUG),
            (None, Some("many"), LevelFilter::ERROR),
            (Some("info"), Some("0"), LevelFilter::INFO),
            (Some("nonsense"), Some("3"), LevelFilter::INFO),
            (Some("off"), Some("4"), LevelFilter::OFF),
        ] {
            assert_eq!(level(ours, verbs), want, "{ours:?} {verbs:?}");
        }
    }
}
