//! Numbers with units, as plans and other files of tests have them. An error is the sentence that says what
//! would be right.

use std::time::Duration;

/// A probability in parts per billion, 0 to 1,000,000,000.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Probability(pub u32);

impl Probability {
    /// Always.
    pub const ONE: Self = Self(1_000_000_000);
    /// Never.
    pub const ZERO: Self = Self(0);
}

/// The longest time of a plan: a day.
pub(crate) const LONGEST: Duration = Duration::from_secs(86_400);

/// A time such as `20ms` or `1.5s`: ns, us, ms, s. At most a day.
///
/// # Errors
/// If the text is no time.
pub fn time(text: &str) -> Result<Duration, &'static str> {
    const WANT: &str = "a time is a number with ns, us, ms or s, at most a day";
    let nanos = scaled(text, &[("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9)]).ok_or(WANT)?;
    if nanos > 86_400e9 { Err(WANT) } else { Ok(Duration::from_nanos(nanos.round() as u64)) }
}

/// A probability such as `1%` or `20ppm`.
///
/// # Errors
/// If the text is no probability.
pub fn probability(text: &str) -> Result<Probability, &'static str> {
    const WANT: &str = "a probability is a number with % or ppm, from 0 to 100%";
    let parts = scaled(text, &[("%", 1e7), ("ppm", 1e3)]).ok_or(WANT)?;
    if parts > 1e9 { Err(WANT) } else { Ok(Probability(parts.round() as u32)) }
}

/// A rate such as `1gbit`: bit, kbit, mbit, gbit a second, by powers of 1000.
///
/// # Errors
/// If the text is no rate.
pub fn bits(text: &str) -> Result<u64, &'static str> {
    const WANT: &str = "a rate is a number with bit, kbit, mbit or gbit, from 1 bit to 1000 gbit a second";
    let bits = scaled(text, &[("bit", 1.0), ("kbit", 1e3), ("mbit", 1e6), ("gbit", 1e9)]).ok_or(WANT)?;
    if (1.0..=1e12).contains(&bits) { Ok(bits as u64) } else { Err(WANT) }
}

/// An amount such as `256k`: octets, or k, m, g by powers of 1024.
///
/// # Errors
/// If the text is no amount.
pub fn octets(text: &str) -> Result<u64, &'static str> {
    const WANT: &str = "an amount is a number of octets, also with k, m or g, below 1024g";
    let units = [("", 1.0), ("k", 1024.0), ("m", 1_048_576.0), ("g", 1_073_741_824.0)];
    let octets = scaled(text, &units).ok_or(WANT)?;
    if octets < 1_099_511_627_776.0 { Ok(octets as u64) } else { Err(WANT) }
}

/// A number that is not negative, times the value of its unit.
fn scaled(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let (_, scale) = units.iter().find(|(known, _)| *known == unit)?;
    Some(number.parse::<f64>().ok()? * scale)
}

/// A time in the largest unit that leaves no fraction.
pub(crate) fn show_time(time: Duration) -> String {
    let nanos = time.as_nanos();
    match nanos {
        n if n % 1_000_000_000 == 0 => format!("{}s", n / 1_000_000_000),
        n if n % 1_000_000 == 0 => format!("{}ms", n / 1_000_000),
        n if n % 1_000 == 0 => format!("{}us", n / 1_000),
        n => format!("{n}ns"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_with_units() {
        assert_eq!(time("20ms"), Ok(Duration::from_millis(20)));
        assert_eq!(time("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(time("0ns"), Ok(Duration::ZERO));
        assert_eq!(probability("0.5%"), Ok(Probability(5_000_000)));
        assert_eq!(probability("20ppm"), Ok(Probability(20_000)));
        assert_eq!(probability("100%"), Ok(Probability::ONE));
        assert_eq!(bits("1gbit"), Ok(1_000_000_000));
        assert_eq!(octets("256k"), Ok(262_144));
        assert_eq!(octets("7"), Ok(7));
        for text in ["", "ms", "-1ms", "1", "1m", "1e9s", "90000s", "NaNs", "1.2.3ms"] {
            assert!(time(text).is_err(), "{text}");
        }
        for text in ["1", "101%", "-1%", "%", "inf%"] {
            assert!(probability(text).is_err(), "{text}");
        }
        assert!(bits("0bit").is_err() && bits("1").is_err() && octets("1kb").is_err());
    }

    #[test]
    fn a_time_is_shown_as_it_is_read() {
        for nanos in [0, 1, 1_500, 20_000_000, 3_000_000_000, 1_234_567_891] {
            let duration = Duration::from_nanos(nanos);
            assert_eq!(time(&show_time(duration)), Ok(duration));
        }
    }
}
