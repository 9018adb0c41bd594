//! Which moment a Job is owed for, and when the next one comes. Pure.
//! Source: k/k pkg/controller/cronjob/utils.go mostRecentScheduleTime, nextScheduleTimeDuration.

use std::time::Duration;

use podlab_api::{
    cron::Schedule,
    jiff::{Timestamp, tz::TimeZone},
};

/// Added to the wait for the next moment, so that it has passed for certain. Source: nextScheduleDelta.
const DELTA: Duration = Duration::from_millis(100);
/// More missed moments than this are worth a warning.
const MANY: usize = 100;
/// A schedule is not followed over more moments than this at once: the rest is skipped.
const STEPS: usize = 100_000;

/// What is owed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Due {
    /// The last moment that has passed since the one that was served.
    pub(super) moment: Option<Timestamp>,
    /// How many have passed, when they are too many.
    pub(super) missed: Option<usize>,
    /// How long until the next one.
    pub(super) next: Option<Duration>,
}

/// Looks at a schedule. `since` is when it was last served, or made; `deadline` how late a Job may start, in seconds.
pub(super) fn due(
    schedule: &Schedule,
    zone: &TimeZone,
    since: Timestamp,
    deadline: Option<i64>,
    now: Timestamp,
) -> Due {
    let earliest = deadline.and_then(|d| Timestamp::from_second(now.as_second().saturating_sub(d)).ok());
    let mut from = earliest.map_or(since, |e| e.max(since));
    let (mut moment, mut count) = (None, 0);
    let mut next = schedule.next(from, zone);
    while let Some(at) = next.filter(|at| *at <= now) {
        (moment, count) = (Some(at), count + 1);
        if count == STEPS {
            // Far behind: only what was owed lately counts.
            from = Timestamp::from_second(now.as_second() - 86_400).unwrap_or(now).max(at);
            next = schedule.next(from, zone);
            continue;
        }
        next = schedule.next(at, zone);
    }
    let wait = |at: Timestamp| Duration::try_from(at.duration_since(now)).unwrap_or_default() + DELTA;
    Due { moment, missed: (count > MANY).then_some(count), next: next.map(wait) }
}

#[cfg(test)]
mod tests {
    use podlab_api::cron::parse;

    use super::*;

    fn look(schedule: &str, since: &str, deadline: Option<i64>, now: &str) -> Due {
        let zone = TimeZone::UTC;
        due(&parse(schedule).unwrap(), &zone, since.parse().unwrap(), deadline, now.parse().unwrap())
    }

    #[test]
    fn the_last_moment_that_has_passed_is_owed() {
        let none = look("*/5 * * * *", "2026-01-01T00:00:10Z", None, "2026-01-01T00:04:59Z");
        assert_eq!(none, Due { moment: None, missed: None, next: Some(Duration::from_millis(1100)) });
        let one = look("*/5 * * * *", "2026-01-01T00:00:10Z", None, "2026-01-01T00:05:00Z");
        assert_eq!(one.moment, Some("2026-01-01T00:05:00Z".parse().unwrap()));
        let last = look("*/5 * * * *", "2026-01-01T00:00:10Z", None, "2026-01-01T00:16:00Z");
        assert_eq!((last.moment, last.missed), (Some("2026-01-01T00:15:00Z".parse().unwrap()), None));
    }

    #[test]
    fn a_deadline_forgets_what_is_older_and_many_missed_are_noted() {
        let day = look("* * * * *", "2026-01-01T00:00:00Z", None, "2026-01-02T00:00:30Z");
        assert_eq!((day.moment, day.missed), (Some("2026-01-02T00:00:00Z".parse().unwrap()), Some(1440)));
        let short = look("* * * * *", "2026-01-01T00:00:00Z", Some(200), "2026-01-02T00:00:30Z");
        assert_eq!(short.missed, None);
        assert_eq!(look("0 0 1 1 *", "2026-01-01T00:00:00Z", Some(10), "2026-01-01T00:00:30Z").moment, None);
    }
}
