//! Schedules of CronJobs: five fields or a descriptor, and the next moment they name.
//! Source: github.com/robfig/cron/v3 (parser and spec), as k/k pkg/controller/cronjob uses it.

use jiff::{SignedDuration, Timestamp, civil::DateTime, tz::TimeZone};

use crate::jiff;

/// A schedule that has been read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Schedule {
    /// Moments of the calendar.
    Calendar(Fields),
    /// `@every 1h30m`.
    Every(SignedDuration),
}

/// The five fields as sets of bits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fields {
    minute: u64,
    hour: u64,
    day: u64,
    month: u64,
    weekday: u64,
    /// With a star in either field both have to match, without one either.
    any_day: bool,
}

/// Why a schedule cannot be read, in the words of upstream's parser.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ScheduleError(String);

const MONTHS: [&str; 12] = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const DAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

/// How far a schedule is followed that may name no day at all (30 February).
const YEARS: i16 = 5;

fn fail<T>(text: String) -> Result<T, ScheduleError> {
    Err(ScheduleError(text))
}

struct Bounds {
    min: u32,
    max: u32,
    names: &'static [&'static str],
}

impl Bounds {
    fn number(&self, text: &str) -> Result<u32, ScheduleError> {
        if let Some(i) = self.names.iter().position(|n| text.eq_ignore_ascii_case(n)) {
            return Ok(self.min + u32::try_from(i).unwrap_or(0));
        }
        integer(text)
    }

    /// Bits of one part of a list, and whether it is a star.
    fn part(&self, part: &str) -> Result<(u64, bool), ScheduleError> {
        let pieces: Vec<&str> = part.split('/').collect();
        let ends: Vec<&str> = pieces[0].split('-').collect();
        let star = matches!(ends[0], "*" | "?");
        let (start, mut end) = match (star, ends.as_slice()) {
            (true, _) => (self.min, self.max),
            (false, [one]) => {
                let n = self.number(one)?;
                (n, n)
            }
            (false, [from, to]) => (self.number(from)?, self.number(to)?),
            _ => return fail(format!("too many hyphens: {part}")),
        };
        let step = match pieces.as_slice() {
            [_] => 1,
            [_, step] => {
                // `N/step` goes on to the end.
                if ends.len() == 1 && !star {
                    end = self.max;
                }
                integer(step)?
            }
            _ => return fail(format!("too many slashes: {part}")),
        };
        if start < self.min {
            return fail(format!("beginning of range ({start}) below minimum ({}): {part}", self.min));
        }
        if end > self.max {
            return fail(format!("end of range ({end}) above maximum ({}): {part}", self.max));
        }
        if start > end {
            return fail(format!("beginning of range ({start}) beyond end of range ({end}): {part}"));
        }
        if step == 0 {
            return fail(format!("step of range should be a positive number: {part}"));
        }
        let step = usize::try_from(step).unwrap_or(usize::MAX);
        Ok(((start..=end).step_by(step).fold(0, |bits, n| bits | 1 << n), star && step == 1))
    }

    fn field(&self, text: &str) -> Result<(u64, bool), ScheduleError> {
        let parts = text.split(',').filter(|p| !p.is_empty()).map(|p| self.part(p));
        let mut all = (0, false);
        for part in parts {
            let (bits, star) = part?;
            all = (all.0 | bits, all.1 || star);
        }
        Ok(all)
    }
}

fn integer(text: &str) -> Result<u32, ScheduleError> {
    let n: i64 = match text.parse() {
        Ok(n) => n,
        Err(_) => {
            return fail(format!("failed to parse int from {text}: strconv.Atoi: parsing {text:?}: invalid syntax"));
        }
    };
    u32::try_from(n).or_else(|_| fail(format!("negative number ({n}) not allowed: {text}")))
}

/// Reads a schedule: five fields, `@daily` and its like, or `@every DURATION`.
///
/// # Errors
/// [`ScheduleError`] in upstream's words.
pub fn parse(text: &str) -> Result<Schedule, ScheduleError> {
    if text.is_empty() {
        return fail("empty spec string".to_owned());
    }
    if text.starts_with('@') {
        return descriptor(text);
    }
    let fields: Vec<&str> = text.split_whitespace().collect();
    let [minute, hour, day, month, weekday] = fields.as_slice() else {
        return fail(format!("expected exactly 5 fields, found {}: [{}]", fields.len(), fields.join(" ")));
    };
    let field = |min, max, names, text: &str| Bounds { min, max, names }.field(text);
    let (minute, _) = field(0, 59, &[], minute)?;
    let (hour, _) = field(0, 23, &[], hour)?;
    let (day, star_day) = field(1, 31, &[], day)?;
    let (month, _) = field(1, 12, &MONTHS, month)?;
    let (weekday, star_weekday) = field(0, 6, &DAYS, weekday)?;
    Ok(Schedule::Calendar(Fields { minute, hour, day, month, weekday, any_day: star_day || star_weekday }))
}

fn descriptor(text: &str) -> Result<Schedule, ScheduleError> {
    if let Some(every) = text.strip_prefix("@every ") {
        let span: Result<SignedDuration, _> = every.trim().parse();
        return match span {
            // Less than a second is a second.
            Ok(d) if d.as_secs() > 0 => Ok(Schedule::Every(SignedDuration::from_secs(d.as_secs()))),
            Ok(_) => Ok(Schedule::Every(SignedDuration::from_secs(1))),
            Err(_) => fail(format!("failed to parse duration {text}: time: invalid duration {every:?}")),
        };
    }
    match text {
        "@yearly" | "@annually" => parse("0 0 1 1 *"),
        "@monthly" => parse("0 0 1 * *"),
        "@weekly" => parse("0 0 * * 0"),
        "@daily" | "@midnight" => parse("0 0 * * *"),
        "@hourly" => parse("0 * * * *"),
        _ => fail(format!("unrecognized descriptor: {text}")),
    }
}

impl Fields {
    fn has(bits: u64, n: i8) -> bool {
        u32::try_from(n).is_ok_and(|n| bits & (1 << n) != 0)
    }

    fn day_matches(&self, at: DateTime) -> bool {
        let day = Self::has(self.day, at.day());
        let weekday = Self::has(self.weekday, at.weekday().to_sunday_zero_offset());
        if self.any_day { day && weekday } else { day || weekday }
    }

    /// The next matching minute from `at` on, `at` included.
    fn from(&self, at: DateTime) -> Option<DateTime> {
        let (mut at, last) = (at, at.year().checked_add(YEARS)?);
        while at.year() <= last {
            if !Self::has(self.month, at.month()) {
                let first = at.date().first_of_month().checked_add(jiff::Span::new().months(1)).ok()?;
                at = first.to_datetime(jiff::civil::Time::midnight());
            } else if !self.day_matches(at) {
                at = at.date().tomorrow().ok()?.to_datetime(jiff::civil::Time::midnight());
            } else if !Self::has(self.hour, at.hour()) {
                at = at.date().at(at.hour(), 0, 0, 0).checked_add(jiff::Span::new().hours(1)).ok()?;
            } else if !Self::has(self.minute, at.minute()) {
                at = at.checked_add(jiff::Span::new().minutes(1)).ok()?;
            } else {
                return Some(at);
            }
        }
        None
    }
}

impl Schedule {
    /// The first moment after `after`; `None` when there is none within five years.
    pub fn next(&self, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        let fields = match self {
            Self::Every(every) => {
                let whole = Timestamp::from_second(after.as_second()).ok()?;
                return whole.checked_add(*every).ok();
            }
            Self::Calendar(fields) => fields,
        };
        let local = zone.to_datetime(after);
        let mut at =
            local.date().at(local.hour(), local.minute(), 0, 0).checked_add(jiff::Span::new().minutes(1)).ok()?;
        loop {
            let found = fields.from(at)?;
            let moment = zone.to_ambiguous_timestamp(found).compatible().ok()?;
            // A minute that comes twice in the night the clocks go back is named once.
            if moment > after {
                return Some(moment);
            }
            at = found.checked_add(jiff::Span::new().minutes(1)).ok()?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(schedule: &str, after: &str) -> String {
        let moment = parse(schedule).unwrap().next(after.parse().unwrap(), &TimeZone::UTC);
        moment.map_or_else(|| "never".to_owned(), |m| m.to_string())
    }

    #[test]
    fn the_next_moment_follows_the_calendar() {
        for (schedule, after, expected) in [
            ("* * * * *", "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z"),
            ("* * * * *", "2026-01-01T00:00:59Z", "2026-01-01T00:01:00Z"),
            ("*/15 * * * *", "2026-01-01T00:46:10Z", "2026-01-01T01:00:00Z"),
            ("5/20 3 * * *", "2026-01-01T03:26:00Z", "2026-01-01T03:45:00Z"),
            ("0 0 29 2 *", "2026-01-01T00:00:00Z", "2028-02-29T00:00:00Z"),
            ("0 0 30 2 *", "2026-01-01T00:00:00Z", "never"),
            ("0 12 * * mon-fri", "2026-01-02T13:00:00Z", "2026-01-05T12:00:00Z"),
            ("0 0 13 * 5", "2026-01-03T00:00:00Z", "2026-01-09T00:00:00Z"),
            ("0 0 1 JAN,jul *", "2026-01-02T00:00:00Z", "2026-07-01T00:00:00Z"),
            ("@hourly", "2026-12-31T23:30:00Z", "2027-01-01T00:00:00Z"),
            ("@every 1h30m", "2026-01-01T00:00:00.5Z", "2026-01-01T01:30:00Z"),
        ] {
            assert_eq!(next(schedule, after), expected, "{schedule} after {after}");
        }
    }

    #[test]
    fn a_zone_moves_the_moment_and_an_hour_that_is_left_out_comes_later() {
        let Ok(zone) = TimeZone::get("Europe/Berlin") else { return };
        let at = |s: &str, after: &str| parse(s).unwrap().next(after.parse().unwrap(), &zone).unwrap().to_string();
        assert_eq!(at("0 6 * * *", "2026-07-01T00:00:00Z"), "2026-07-01T04:00:00Z");
        assert_eq!(at("30 2 * * *", "2026-03-28T12:00:00Z"), "2026-03-29T01:30:00Z");
    }

    #[test]
    fn mistakes_are_named_as_upstream_names_them() {
        for (schedule, expected) in [
            ("", "empty spec string"),
            ("error", "expected exactly 5 fields, found 1: [error]"),
            ("* * * * x", "failed to parse int from x: strconv.Atoi: parsing \"x\": invalid syntax"),
            ("60 * * * *", "end of range (60) above maximum (59): 60"),
            ("* * 0 * *", "beginning of range (0) below minimum (1): 0"),
            ("5-3 * * * *", "beginning of range (5) beyond end of range (3): 5-3"),
            ("*/0 * * * *", "step of range should be a positive number: */0"),
            ("1-2-3 * * * *", "too many hyphens: 1-2-3"),
            ("1/2/3 * * * *", "too many slashes: 1/2/3"),
            ("@often", "unrecognized descriptor: @often"),
        ] {
            assert_eq!(parse(schedule).unwrap_err().to_string(), expected, "{schedule}");
        }
    }
}
