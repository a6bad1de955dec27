//! Results from the output of `cargo test`: one line for each set of tests counts, and tests that could not
//! be tried are skips.

use std::collections::BTreeMap;

/// The results of the sets of tests in the output of one `cargo test -- --show-output`, whose two streams are
/// one.
#[derive(Default, Debug, PartialEq, Eq)]
pub struct Results {
    pub passed: u32,
    pub failed: u32,
    /// Tests that were not tried, with the reason.
    pub skips: Vec<(String, String)>,
    /// Tests of which a part was not tried, with the reason.
    pub parts: Vec<(String, String)>,
}

impl Results {
    /// A test may start its program again, in a namespace or as another user, and so print lines of a set of
    /// tests of its own. Only the last result between two sets that cargo starts is that of the set.
    pub fn of(text: &str) -> Self {
        let mut all = Self::default();
        let mut set = Set::default();
        for line in text.lines() {
            let start = line.trim_start();
            if line.starts_with(' ') && (start.starts_with("Running ") || start.starts_with("Doc-tests ")) {
                std::mem::take(&mut set).add_to(&mut all);
            } else {
                set.line(line);
            }
        }
        set.add_to(&mut all);
        all
    }
}

/// A set of tests.
#[derive(Default)]
struct Set {
    /// Passed and failed, by the last line that says so.
    result: (u32, u32),
    /// The test whose output follows: cargo's "---- NAME stdout ----".
    test: Option<String>,
    /// Reasons of a program that a test started, before the name of the test.
    unnamed: Vec<(bool, String)>,
    /// Skipped tests: whether each was skipped as a whole, and why.
    skips: BTreeMap<String, (bool, String)>,
    ignored: Vec<(String, String)>,
}

impl Set {
    fn line(&mut self, line: &str) {
        if let Some(result) = line.strip_prefix("test result:") {
            let number = |word: &str| {
                let before = result.split(word).next().unwrap_or_default();
                before.split_whitespace().last().and_then(|n| n.parse().ok()).unwrap_or(0)
            };
            self.result = (number(" passed"), number(" failed"));
            self.test = None;
        } else if let Some(header) = line.strip_prefix("---- ") {
            self.test = header.strip_suffix(" stdout ----").map(str::to_owned);
        } else if let Some((name, rest)) =
            line.strip_prefix("test ").and_then(|rest| rest.split_once(" ... "))
        {
            match rest.strip_prefix("ignored") {
                Some(why) => {
                    let why = why.trim_start_matches([',', ' ']);
                    let why = if why.is_empty() { "ignored without a reason" } else { why };
                    self.ignored.push((name.to_owned(), why.to_owned()));
                }
                None => {
                    if let Some((whole, why)) = skip_in(rest, Some(name)) {
                        self.skip(name.to_owned(), whole, why);
                    }
                    for (whole, why) in std::mem::take(&mut self.unnamed) {
                        self.skip(name.to_owned(), whole, why);
                    }
                }
            }
        } else if let Some((whole, why)) = skip_in(line, self.test.as_deref()) {
            match self.test.clone() {
                Some(test) => self.skip(test, whole, why),
                None => self.unnamed.push((whole, why)),
            }
        }
    }

    fn skip(&mut self, test: String, whole: bool, why: String) {
        let old = self.skips.entry(test).or_insert((whole, why));
        old.0 |= whole;
    }

    fn add_to(mut self, all: &mut Results) {
        let unnamed = std::mem::take(&mut self.unnamed).into_iter().enumerate();
        self.skips.extend(unnamed.map(|(n, (_, why))| (format!("a test ({n})"), (false, why))));
        for (test, (whole, why)) in self.skips {
            let to = if whole { &mut all.skips } else { &mut all.parts };
            to.push((test, why));
            // The skipped test returned, and so counts as passed.
            self.result.0 = self.result.0.saturating_sub(u32::from(whole));
        }
        all.skips.append(&mut self.ignored);
        all.passed += self.result.0;
        all.failed += self.result.1;
    }
}

/// The reason in `skipped: WHY` or `skipped TEST: WHY`, with true; or in `skipped WHAT: WHY` for a part of a
/// test, with false.
fn skip_in(line: &str, test: Option<&str>) -> Option<(bool, String)> {
    let rest = line.strip_prefix("skipped")?;
    let (what, why) = rest.split_once(": ")?;
    let what = what.trim();
    let last = |name: &str| name.rsplit("::").next().map(str::to_owned);
    let whole = what.is_empty() || test.is_some_and(|test| last(test) == last(what));
    let named = what.contains('_') && !what.contains(' ');
    match (whole || named, what) {
        (true, _) => Some((true, why.to_owned())),
        (false, what) => Some((false, format!("{what}: {why}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::Results;

    fn pair(test: &str, why: &str) -> (String, String) {
        (test.to_owned(), why.to_owned())
    }

    #[test]
    fn only_the_outermost_result_of_a_set_counts() {
        let text = "     Running tests/users.rs (target/debug/deps/users-1)

running 2 tests

running 1 test
test a ... ok

test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 1 filtered out; finished in 0.1s

running 1 test
test b ... FAILED

test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 1 filtered out; finished in 0.1s

test a ... ok
test b ... FAILED

test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.1s

   Doc-tests ferroce

running 3 tests
test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.1s
";
        assert_eq!(Results::of(text), Results { passed: 4, failed: 1, ..Results::default() });
    }

    #[test]
    fn tests_that_were_not_tried_are_skips_with_their_reason() {
        let text = "     Running tests/a.rs (target/debug/deps/a-1)
running 7 tests
test good ... ok
test whole ... ok
test m::named ... ok
test part ... ok
test slow ... ignored, takes a minute
test other ... ignored
skipped within_a_namespace: no namespace
test within_a_namespace ... ok
test within_one ... skipped: no root
ok
test result: ok. 1 passed; 0 failed; 0 ignored

successes:

---- whole stdout ----
skipped: no rdma-core to link with

---- m::named stdout ----
skipped named: it needs root

---- part stdout ----
skipped the rest: no ip
more

successes:
    good
    whole
    named
    part

test result: ok. 6 passed; 0 failed; 2 ignored; 0 measured; 0 filtered out
";
        let skips = vec![
            pair("m::named", "it needs root"),
            pair("whole", "no rdma-core to link with"),
            pair("within_a_namespace", "no namespace"),
            pair("within_one", "no root"),
            pair("slow", "takes a minute"),
            pair("other", "ignored without a reason"),
        ];
        let parts = vec![pair("part", "the rest: no ip")];
        assert_eq!(Results::of(text), Results { passed: 2, failed: 0, skips, parts });
    }
}
