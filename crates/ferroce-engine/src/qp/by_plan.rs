//! Queue pairs in plans of faults.

use ferroce_paths::faults::{self, Moment, Verb, VerbFacts};

use super::Qp;

impl Qp {
    /// Judges a call of the program that is for this queue pair, see [`faults::verb`].
    #[inline]
    pub fn judge(&self, verb: Verb) -> Option<i32> {
        faults::verb(|| {
            let name = &self.endpoint.name;
            VerbFacts { verb, dev: Some(&name.dev), qp: Some(name.qp) }
        })
    }

    /// A plan of faults may kill a process at this moment.
    pub(super) fn reached(&self, at: Moment) {
        faults::moment(at, Some(&self.endpoint.name), None);
    }
}
