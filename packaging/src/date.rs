//! Times of the calendar, in UTC.

/// A time in seconds of the epoch, in parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Date {
    pub year: u64,
    /// 1 to 12.
    pub month: u64,
    /// 1 to 31.
    pub day: u64,
    pub hour: u64,
    pub minute: u64,
    pub second: u64,
}

impl Date {
    /// The parts of `stamp`.
    pub fn of(stamp: u64) -> Self {
        let (mut year, mut day) = (1970, stamp / 86_400);
        let is_leap =
            |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
        while day >= 365 + u64::from(is_leap(year)) {
            day -= 365 + u64::from(is_leap(year));
            year += 1;
        }
        let february = 28 + u64::from(is_leap(year));
        let mut month = 1;
        for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
            if day < length {
                break;
            }
            day -= length;
            month += 1;
        }
        let second = stamp % 86_400;
        Self { year, month, day: day + 1, hour: second / 3600, minute: second / 60 % 60, second: second % 60 }
    }
}

/// As `Mon, 23 Nov 2026 06:05:20 +0000`.
pub fn rfc_2822(stamp: u64) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let Date { year, month, day, hour, minute, second } = Date::of(stamp);
    // The epoch began on a Thursday.
    let weekday = DAYS[(stamp / 86_400 % 7) as usize];
    let month = MONTHS[month as usize - 1];
    format!("{weekday}, {day:02} {month} {year} {hour:02}:{minute:02}:{second:02} +0000")
}

#[cfg(test)]
mod tests {
    use super::rfc_2822;

    #[test]
    fn times_are_those_of_the_calendar() {
        for (stamp, want) in [
            (0, "Thu, 01 Jan 1970 00:00:00 +0000"),
            (951_782_400, "Tue, 29 Feb 2000 00:00:00 +0000"),
            (1_709_210_096, "Thu, 29 Feb 2024 12:34:56 +0000"),
            (1_795_413_920, "Mon, 23 Nov 2026 06:05:20 +0000"),
            (1_798_761_599, "Thu, 31 Dec 2026 23:59:59 +0000"),
        ] {
            assert_eq!(rfc_2822(stamp), want);
        }
    }
}
