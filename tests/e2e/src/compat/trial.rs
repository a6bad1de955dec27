//! One trial: what is run, and what must come of it.

use super::figures::Figure;
use super::software::Software;

/// The command lines of server and client, or of one program that starts its other ends itself.
///
/// `{host}` is the server's address, `{port}` a port of this run, `{bin}` the folder of the software's compiled programs,
/// `{wheels}` that of its wheels, `{files}` that of our scripts, `{home}` an empty folder of this run that both ends may
/// write to.
pub type Ends = &'static [&'static str];
/// Variables of the environment; the placeholders of [`Ends`] are replaced.
pub type Variables = &'static [(&'static str, &'static str)];

/// Where the two ends run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// At 127.0.0.1, on `fr0`.
    Loopback,
    /// At an address of one end of a veth pair, on `fr1`: libfabric uses no loopback interface.
    Link,
}

/// When the client starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Start {
    /// As soon as somebody listens at the TCP port of the run.
    Listening,
    /// After a pause, because nothing outside of the server shows that it listens.
    Pause,
}

/// One run of a program between two processes or more.
pub struct Trial {
    /// The program.
    pub of: &'static Software,
    /// The command as the page shows it.
    pub what: &'static str,
    pub place: Place,
    pub start: Start,
    /// Options of `ferroce run`.
    pub options: &'static str,
    /// Variables for all ends on ferroce.
    pub variables: Variables,
    pub ends: Ends,
    /// The same over the program's own TCP transport, with its variables.
    pub tcp: Option<(Ends, Variables)>,
    pub figure: Option<Figure>,
    /// The server serves until it is ended.
    pub endless: bool,
    /// The program compares the data, and fails if they differ.
    pub verified: bool,
    /// The client prints this if all is well; empty if its exit status tells.
    pub says: &'static str,
    /// Octets that ferroce counts at least: fewer mean that the program took another transport. 0 for a program that asks a
    /// device and sends nothing.
    pub octets: u64,
    /// For each end, in seconds.
    pub seconds: u64,
    /// Part of the stage `compat`: from Debian alone, and quick.
    pub quick: bool,
    /// Why it fails, and whose fault that is. A run that passes nevertheless is reported.
    pub fails: Option<&'static str>,
    /// A limit that users meet, for the page.
    pub limit: &'static str,
}

/// A run on loopback without options, variables, figure or TCP.
pub const fn plain(of: &'static Software, what: &'static str, ends: Ends) -> Trial {
    Trial {
        of,
        what,
        place: Place::Loopback,
        start: Start::Pause,
        options: "",
        variables: &[],
        ends,
        tcp: None,
        figure: None,
        endless: false,
        verified: false,
        says: "",
        octets: 1,
        seconds: 90,
        quick: false,
        fails: None,
        limit: "",
    }
}
