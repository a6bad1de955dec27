//! The program `ferroce`, which shows and configures devices.
//!
//! The grammar is that of rdma(8). Data is written to standard output, everything else to standard error. The
//! exit status is 0 for success, 1 for failure, 2 for wrong usage. `ferroce run` replaces itself by the given
//! command and so has its status. Under the name of a vendor's script for RoCE cards, the program does what
//! that script does.
#![forbid(unsafe_code)]

/// In place of the macro of the standard library, which panics where standard error takes nothing, and waits
/// for a pipe that is full.
macro_rules! eprintln {
    ($($line:tt)*) => { ferroce_host::output::line_of(format_args!($($line)*)) };
}

/// As [`eprintln`], without the end of the line.
macro_rules! eprint {
    ($($text:tt)*) => { ferroce_host::output::write(ferroce_host::output::stderr(), format!($($text)*).as_bytes()) };
}

mod args;
mod broker;
mod capture;
mod doctor;
mod explain;
mod fault;
mod finding;
mod gids;
mod link;
mod look;
mod metrics;
mod ping;
mod plan;
mod ports;
mod program;
mod resource;
mod row;
mod rows;
mod run;
mod scripts;
mod select;
mod settings;
mod sim;
mod statistic;
mod status;
mod stop;
mod sweep;
mod system;
mod tc;
mod top;
mod usage;

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Result;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, FromArgMatches};

use doctor::Taken;
use usage::Usage;

use args::{
    Args, DevCommand, GidCommand, LinkCommand, Object, ResourceCommand, StatisticCommand, Style,
    SystemCommand,
};

fn main() -> ExitCode {
    // The kernel's name of a program that was started by its descriptor, or as /proc/self/exe, is "exe".
    let _ = nix::sys::prctl::set_name(if run::is_sysfs_keeper() { c"ferroce-sysfs" } else { c"ferroce" });
    if run::is_sysfs_keeper() {
        return ended(run::keep_sysfs(), args::SysfsKeeper::command());
    }
    if let Some(script) = scripts::called() {
        return ended(scripts::run(script), script.command());
    }
    let (args, mut command) = match parse(std::env::args_os()) {
        Ok(parsed) => parsed,
        Err(error) => error.exit(),
    };
    let done = match args.object {
        Object::Run(run) => return run::run(&run),
        Object::Sim(sim) => return sim::run(&sim, args.style),
        Object::Sweep(sweep) => return sweep::run(&sweep, args.style),
        Object::Link { command } => link(command.unwrap_or(LinkCommand::Show { link: None }), args.style),
        Object::Dev { command } => dev(command.unwrap_or(DevCommand::Show { device: None }), args.style),
        Object::System { command } => match command.unwrap_or(SystemCommand::Show) {
            SystemCommand::Show => system::show(args.style),
            SystemCommand::On { force } => system::on(force, args.style),
            SystemCommand::Off => system::off(args.style),
            SystemCommand::Status => system::status(args.style),
        },
        Object::Gid { command: Some(GidCommand::Show { link }) } => gid(link.as_deref(), args.style),
        Object::Gid { command: None } => gid(None, args.style),
        Object::Resource { command } => {
            let ResourceCommand::Show { words } =
                command.unwrap_or(ResourceCommand::Show { words: Vec::new() });
            resource::show(&words, args.style)
        }
        Object::Statistic { command, watch } => {
            let all = StatisticCommand::Show { words: Vec::new() };
            statistic::run(&command.unwrap_or(all), watch, args.style)
        }
        Object::Doctor { strict, pid, program } => {
            match doctor::run(program.as_deref(), pid, strict, args.style) {
                Ok(status) => return status,
                Err(error) => Err(error),
            }
        }
        Object::Explain { of, all, save } => explain::run(of.as_deref(), all, save.as_deref(), args.style),
        Object::Metrics(metrics) => metrics::run(&metrics, args.style),
        Object::Top(top) => top::run(&top, args.style),
        Object::Ping(ping) => match ping::run(&ping, args.style) {
            Ok(status) => return status,
            Err(error) => {
                let devices = broker::devices().unwrap_or_default();
                doctor::TakenPort::find(&rows::find(&devices, None).unwrap_or_default());
                Err(error)
            }
        },
        Object::Capture(capture) => capture::run(&capture),
        Object::Fault { command } => fault::run(command.unwrap_or_default(), args.style),
        Object::Stop { force } => stop::run(force, args.style),
        Object::Status => {
            broker::status().and_then(|(found, devices)| status::print(found, &devices, args.style))
        }
    };
    match done {
        Err(error) if error.is::<Usage>() => {
            let _ = command.error(ErrorKind::InvalidValue, error).print();
            ExitCode::from(2)
        }
        done => ended(done, Args::command()),
    }
}

/// The arguments, and the subcommand whose usage an error of them shows.
fn parse(
    words: impl IntoIterator<Item = impl Into<OsString> + Clone>,
) -> Result<(Args, clap::Command), clap::Error> {
    let mut command = Args::command();
    let matches = command.try_get_matches_from_mut(words).map_err(without_abbreviations)?;
    let args = Args::from_arg_matches(&matches)?;
    let (mut asked, mut matches) = (&mut command, &matches);
    while let Some((name, inner)) = matches.subcommand() {
        asked = asked.find_subcommand_mut(name).expect("a command that was parsed");
        matches = inner;
    }
    let mut asked = asked.clone();
    let Style { json, pretty, details } = args.style;
    if matches!(args.object, Object::Run(_)) && (json || pretty || details) {
        let why = "`ferroce run` has no option -d, -j or -p; options of the program go behind `--`";
        return Err(asked.error(ErrorKind::UnknownArgument, why));
    }
    Ok((args, asked))
}

/// An error that proposes no name of one letter.
fn without_abbreviations(mut error: clap::Error) -> clap::Error {
    if let Some(ContextValue::Strings(mut names)) = error.remove(ContextKind::SuggestedSubcommand) {
        names.retain(|name| name.len() > 1);
        if !names.is_empty() {
            error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(names));
        }
    }
    error
}

/// Prints an error, and returns the exit status.
fn ended(done: Result<()>, mut command: clap::Command) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is::<Usage>() => {
            let _ = command.error(ErrorKind::InvalidValue, error).print();
            ExitCode::from(2)
        }
        Err(error) => {
            eprintln!("{}: {error:#}", command.get_name());
            ExitCode::FAILURE
        }
    }
}

fn link(command: LinkCommand, style: Style) -> Result<()> {
    match command {
        LinkCommand::Show { link } => {
            let which = link.as_deref().map(rows::port_of).transpose()?;
            let devices = broker::devices()?;
            let found = rows::find(&devices, which)?;
            let taken = doctor::TakenPort::find(&found);
            let mut links = rows::links(found.clone(), style.details.then_some(&rows::flow_control));
            if style.details {
                let ports = ports::Ports::of_all(&devices);
                links.iter_mut().for_each(|link| link.set_ports(&ports));
            }
            for (link, (_, device)) in links.iter_mut().zip(&found) {
                let state = taken.as_ref().map(|port| (port.of(device), &port.held));
                if let Some((state, holders)) = state.filter(|(state, _)| *state != Taken::None) {
                    link.set_taken(holders, state == Taken::All);
                }
            }
            rows::print(&links, style)
        }
        LinkCommand::Add { name, words, no_persist } => link::add(&name, &words, no_persist),
        LinkCommand::Set { link, words, no_persist, force } => {
            settings::set(rows::port_of(&link)?, &words, no_persist, force)
        }
        LinkCommand::Tc { link, words, no_persist } => {
            tc::run(rows::port_of(&link)?, &words, no_persist, style)
        }
        LinkCommand::Delete { name, no_persist } => link::delete(&name, no_persist),
    }
}

fn dev(command: DevCommand, style: Style) -> Result<()> {
    match command {
        DevCommand::Show { device } => {
            let devices = broker::devices()?;
            rows::print(&rows::devs(rows::find(&devices, device.as_deref())?, style.details), style)
        }
        DevCommand::Set { device, words, no_persist } => settings::set_dev(&device, &words, no_persist),
    }
}

fn gid(link: Option<&str>, style: Style) -> Result<()> {
    let which = link.map(rows::port_of).transpose()?;
    let devices = broker::devices()?;
    let found = rows::find(&devices, which)?;
    doctor::TakenPort::find(&found);
    rows::print(&gids::rows(&found, gids::netdev_name), style)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[test]
    fn the_definition_is_sound() {
        Args::command().debug_assert();
    }

    #[test]
    fn what_follows_the_program_is_the_programs() {
        for line in [
            &["ferroce", "run", "--", "ibv_devinfo", "-d", "fr0", "-j"][..],
            &["ferroce", "run", "ibv_devinfo", "-d", "fr0", "-j"],
            &["ferroce", "ru", "--netdev", "eth0", "ibv_devinfo", "-d", "fr0", "-j"],
        ] {
            let args = Args::try_parse_from(line).unwrap();
            assert!(!args.style.json);
            let Object::Run(run) = args.object else { panic!("{line:?}") };
            assert_eq!(run.command, ["ibv_devinfo", "-d", "fr0", "-j"]);
        }
    }

    #[test]
    fn options_before_the_program_are_not_the_programs() {
        for line in ["run -d fr0 -- ibv_devinfo", "-j run ibv_devinfo", "run -p -- x"] {
            let error = parse(std::iter::once("ferroce").chain(line.split(' '))).err().unwrap();
            let text = error.to_string();
            assert!(text.contains("go behind `--`") && text.contains("ferroce run"), "{line}: {text}");
        }
    }

    #[test]
    fn the_usage_is_that_of_the_command() {
        let words = ["ferroce", "link", "add", "fr1", "typ", "roce"];
        let (_, mut command) = parse(words).unwrap();
        let text = command.error(ErrorKind::InvalidValue, "no").to_string();
        assert!(text.contains("Usage: ferroce link add NAME type"), "{text}");
    }

    #[test]
    fn names_of_one_letter_are_not_proposed() {
        for word in ["rn", "nosuch", "monitor"] {
            let text = parse(["ferroce", word]).err().unwrap().to_string();
            assert!(!["'r'", "'s'", "'d'"].iter().any(|name| text.contains(name)), "{text}");
        }
    }

    #[test]
    fn objects_and_commands_may_be_abbreviated() {
        for line in [
            "l",
            "link",
            "link show",
            "lin s fr0/1",
            "-j l s",
            "link show -j -d",
            "d",
            "dev s fr0",
            "dev set fr0 roce off",
            "dev set fr0 name rxe0",
            "link set fr0 tclass -1",
            "link tc fr0",
            "link tc fr0 add -1",
            "link tc fr0 add tclass=-1,src_ip=1.1.1.1 --no-persist",
            "sys",
            "sys s",
            "system st",
            "system on --force",
            "sys of",
            "g",
            "gid s fr0/1",
            "res",
            "res sh qp link fr0/1 type RC",
            "stat",
            "stati sh link fr0/1",
            "stat qp show",
            "-j status",
            "stop",
            "-j stop --force",
            "doctor",
            "-j doc",
            "doctor /usr/bin/ibv_devinfo",
            "doctor --strict",
            "run -q ibv_devinfo",
            "run --quiet -- ibv_devinfo -q",
            "sim file.toml --seed 7 --pcap out.pcap",
            "-j si file.toml --seeds 9",
            "sim --print-example all",
            "pi",
            "-j ping --device fr0/1 --gid 1",
            "ping 192.0.2.1 --port 7",
            "ping --serve --device fr0",
        ] {
            let words = std::iter::once("ferroce").chain(line.split(' '));
            assert!(Args::try_parse_from(words).is_ok(), "{line}");
        }
        for line in [
            "",
            "x",
            "link bogus",
            "link add fr1",
            "dev set fr0 roce",
            "link del",
            "run",
            "sim",
            "sim --print-example other",
            "ping --serve 192.0.2.1",
            "ping --port 0 192.0.2.1",
            "sim file.toml --seeds 0",
            "sim file.toml --seeds 2 --trace x",
        ] {
            let words = std::iter::once("ferroce").chain(line.split(' ')).filter(|w| !w.is_empty());
            assert_eq!(Args::try_parse_from(words).unwrap_err().exit_code(), 2, "{line}");
        }
    }
}
