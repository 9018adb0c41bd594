//! What a Job's spec must be, and a CronJob's. Source: k/k pkg/apis/batch/validation/validation.go.

use podlab_api::{cron, jiff::tz::TimeZone};
use serde_json::Value;

use crate::{
    field::Errors,
    pod,
    tree::{at, has, int, list, text},
};

const MAX_PARALLELISM: i64 = 100_000;
const MANY_COMPLETIONS: i64 = 100_000;
const MANY_PARALLELISM: i64 = 10_000;
const MANY_FAILED: i64 = 10_000;
const MAX_RULES: usize = 20;
const MAX_CODES: usize = 255;
const MAX_INDEXES_TEXT: usize = 64 * 1024;
const ACTIONS: [&str; 4] = ["Count", "FailIndex", "FailJob", "Ignore"];

fn not_negative(spec: &Value, path: &str, fields: &[&str], errors: &mut Errors) {
    for field in fields {
        if let Some(n) = int(spec, field).filter(|n| *n < 0) {
            errors.invalid(format!("{path}.{field}"), n, "must be greater than or equal to 0");
        }
    }
}

/// Checks a Job's spec at `path`, its Pod template included.
pub(super) fn spec(spec: &Value, path: &str, errors: &mut Errors) {
    const COUNTS: &[&str] = &[
        "parallelism",
        "completions",
        "activeDeadlineSeconds",
        "backoffLimit",
        "ttlSecondsAfterFinished",
        "backoffLimitPerIndex",
        "maxFailedIndexes",
    ];
    not_negative(spec, path, COUNTS, errors);
    if has(spec, "maxFailedIndexes") && !has(spec, "backoffLimitPerIndex") {
        errors.required(format!("{path}.backoffLimitPerIndex"), "when maxFailedIndexes is specified");
    }
    match text(spec, "completionMode") {
        "Indexed" => indexed(spec, path, errors),
        "NonIndexed" | "" => {
            for field in ["backoffLimitPerIndex", "maxFailedIndexes"] {
                if let Some(n) = int(spec, field) {
                    errors.invalid(format!("{path}.{field}"), n, "requires indexed completion mode");
                }
            }
        }
        other => errors.not_supported(format!("{path}.completionMode"), other, &["NonIndexed", "Indexed"]),
    }
    if has(spec, "podFailurePolicy") {
        failure_policy(spec, &format!("{path}.podFailurePolicy.rules"), errors);
    }
    if has(spec, "successPolicy") {
        if text(spec, "completionMode") == "Indexed" {
            success_policy(spec, &format!("{path}.successPolicy.rules"), errors);
        } else {
            let value = at(spec, "successPolicy").clone();
            errors.invalid(format!("{path}.successPolicy"), value, "requires indexed completion mode");
        }
    }
    match text(spec, "podReplacementPolicy") {
        "" | "Failed" => {}
        "TerminatingOrFailed" if has(spec, "podFailurePolicy") => {
            errors.not_supported(format!("{path}.podReplacementPolicy"), "TerminatingOrFailed", &["Failed"]);
        }
        "TerminatingOrFailed" => {}
        other => {
            errors.not_supported(format!("{path}.podReplacementPolicy"), other, &["Failed", "TerminatingOrFailed"]);
        }
    }
    let template = format!("{path}.template.spec");
    pod::spec::spec(at(spec, "template.spec"), &template, errors);
    let field = format!("{template}.restartPolicy");
    match text(spec, "template.spec.restartPolicy") {
        "Always" | "" => errors.required(field, "valid values: \"OnFailure\", \"Never\""),
        policy @ "OnFailure" if has(spec, "podFailurePolicy") => {
            errors.invalid(field, policy, "only \"Never\" is supported when podFailurePolicy is specified");
        }
        _ => {}
    }
}

fn indexed(spec: &Value, path: &str, errors: &mut Errors) {
    let (completions, parallelism) = (int(spec, "completions"), int(spec, "parallelism"));
    let (per_index, failed) = (int(spec, "backoffLimitPerIndex"), int(spec, "maxFailedIndexes"));
    if completions.is_none() {
        errors.required(format!("{path}.completions"), "when completion mode is Indexed");
    }
    let at_most = |errors: &mut Errors, field: &str, value: Option<i64>, most: i64, when: &str| {
        if let Some(n) = value.filter(|n| *n > most) {
            errors.invalid(format!("{path}.{field}"), n, &format!("must be less than or equal to {most}{when}"));
        }
    };
    at_most(errors, "parallelism", parallelism, MAX_PARALLELISM, " when completion mode is Indexed");
    if let Some(n) = failed.zip(completions).filter(|(n, all)| n > all).map(|(n, _)| n) {
        errors.invalid(format!("{path}.maxFailedIndexes"), n, "must be less than or equal to completions");
    }
    at_most(errors, "maxFailedIndexes", failed, MAX_PARALLELISM, "");
    if completions.is_some_and(|n| n > MANY_COMPLETIONS) && per_index.is_some() {
        if failed.is_none() {
            let detail = format!("must be specified when completions is above {MANY_COMPLETIONS}");
            errors.required(format!("{path}.maxFailedIndexes"), &detail);
        }
        let when = format!(" when completions are above {MANY_COMPLETIONS} and used with backoff limit per index");
        at_most(errors, "parallelism", parallelism, MANY_PARALLELISM, &when);
        at_most(errors, "maxFailedIndexes", failed, MANY_FAILED, &when);
    }
}

fn failure_policy(spec: &Value, path: &str, errors: &mut Errors) {
    let rules = list(spec, "podFailurePolicy.rules");
    if rules.len() > MAX_RULES {
        errors.too_many(path, rules.len(), MAX_RULES);
    }
    let containers = ["template.spec.containers", "template.spec.initContainers"];
    let names: Vec<&str> = containers.iter().flat_map(|l| list(spec, l)).map(|c| text(c, "name")).collect();
    for (i, rule) in rules.iter().enumerate() {
        let path = format!("{path}[{i}]");
        match text(rule, "action") {
            "" => errors.required(format!("{path}.action"), &format!("valid values: {}", quoted(&ACTIONS))),
            action @ "FailIndex" if !has(spec, "backoffLimitPerIndex") => {
                errors.invalid(format!("{path}.action"), action, "requires the backoffLimitPerIndex to be set");
            }
            action if !ACTIONS.contains(&action) => errors.not_supported(format!("{path}.action"), action, &ACTIONS),
            _ => {}
        }
        let (codes, conditions) = (has(rule, "onExitCodes"), !list(rule, "onPodConditions").is_empty());
        if codes {
            exit_codes(at(rule, "onExitCodes"), &format!("{path}.onExitCodes"), &names, errors);
        }
        for (j, pattern) in list(rule, "onPodConditions").iter().enumerate() {
            let field = format!("{path}.onPodConditions[{j}].status");
            let known = ["False", "True", "Unknown"];
            match text(pattern, "status") {
                "" => errors.required(field, &format!("valid values: {}", quoted(&known))),
                status if !known.contains(&status) => errors.not_supported(field, status, &known),
                _ => {}
            }
        }
        match (codes, conditions) {
            (true, true) => {
                errors.invalid_as_whole(path, "specifying both OnExitCodes and OnPodConditions is not supported");
            }
            (false, false) => {
                errors.invalid_as_whole(path, "specifying one of OnExitCodes and OnPodConditions is required");
            }
            _ => {}
        }
    }
}

/// A list as Go prints one with `%q`.
fn quoted(all: &[&str]) -> String {
    format!("[{}]", all.iter().map(|s| format!("{s:?}")).collect::<Vec<_>>().join(" "))
}

fn exit_codes(rule: &Value, path: &str, names: &[&str], errors: &mut Errors) {
    let known = ["In", "NotIn"];
    match text(rule, "operator") {
        "" => errors.required(format!("{path}.operator"), &format!("valid values: {}", quoted(&known))),
        operator if !known.contains(&operator) => {
            errors.not_supported(format!("{path}.operator"), operator, &known);
        }
        _ => {}
    }
    if has(rule, "containerName") && !names.contains(&text(rule, "containerName")) {
        let detail = "must be one of the container or initContainer names in the pod template";
        errors.invalid(format!("{path}.containerName"), text(rule, "containerName"), detail);
    }
    let values: Vec<i64> = list(rule, "values").iter().filter_map(Value::as_i64).collect();
    let field = format!("{path}.values");
    if values.is_empty() {
        errors.invalid(field.as_str(), Value::Array(Vec::new()), "at least one value is required");
    } else if values.len() > MAX_CODES {
        errors.too_many(field.as_str(), values.len(), MAX_CODES);
    }
    for (i, code) in values.iter().enumerate() {
        if text(rule, "operator") == "In" && *code == 0 {
            errors.invalid(format!("{field}[{i}]"), *code, "must not be 0 for the In operator");
        }
        if values[..i].contains(code) {
            errors.duplicate(format!("{field}[{i}]"), *code);
        }
    }
    if values.windows(2).any(|w| w[0] > w[1]) {
        errors.invalid(field, values, "must be ordered");
    }
}

fn success_policy(spec: &Value, path: &str, errors: &mut Errors) {
    let rules = list(spec, "successPolicy.rules");
    if rules.is_empty() {
        errors.required(path, "at least one rules must be specified when the successPolicy is specified");
    }
    if rules.len() > MAX_RULES {
        errors.too_many(path, rules.len(), MAX_RULES);
    }
    let completions = int(spec, "completions").unwrap_or(0);
    for (i, rule) in rules.iter().enumerate() {
        let path = format!("{path}[{i}]");
        let count = int(rule, "succeededCount");
        if count.is_none() && !has(rule, "succeededIndexes") {
            errors.required(path.as_str(), "at least one of succeededCount or succeededIndexes must be specified");
        }
        let mut total = None;
        if has(rule, "succeededIndexes") {
            let (value, field) = (text(rule, "succeededIndexes"), format!("{path}.succeededIndexes"));
            if value.len() > MAX_INDEXES_TEXT {
                errors.too_long(field.as_str(), MAX_INDEXES_TEXT);
            }
            match indexes(value, completions) {
                Ok(n) => total = Some(n),
                Err(why) => errors.invalid(field, value, &format!("error parsing succeededIndexes: {why}")),
            }
        }
        let Some(count) = count else { continue };
        not_negative(rule, &path, &["succeededCount"], errors);
        let field = format!("{path}.succeededCount");
        if count > completions {
            let detail = format!("must be less than or equal to {completions} (the number of specified completions)");
            errors.invalid(field.as_str(), count, &detail);
        }
        if let Some(total) = total.filter(|total| count > *total) {
            let detail = format!(
                "must be less than or equal to {total} (the number of indexes in the specified succeededIndexes field)"
            );
            errors.invalid(field, count, &detail);
        }
    }
}

/// How many indexes `0-2,4` names, in rising order below `completions`. Source: validateIndexesFormat.
fn indexes(value: &str, completions: i64) -> Result<i64, String> {
    let (mut total, mut last) = (0_i64, -1_i64);
    if value.is_empty() {
        return Ok(0);
    }
    for part in value.split(',') {
        let ends: Vec<&str> = part.split('-').collect();
        if ends.len() > 2 {
            return Err(format!(
                "the fragment {part:?} violates the requirement that an index interval can have at most two parts separated by '-'"
            ));
        }
        let number = |text: &str| {
            text.parse::<i64>().map_err(|_| format!("cannot convert string to integer for index: {text:?}"))
        };
        let first = number(ends[0])?;
        let last_text = ends.last().copied().unwrap_or_default();
        if first >= completions {
            return Err(format!("too large index: {:?}", ends[0]));
        }
        let end = number(last_text)?;
        if end >= completions {
            return Err(format!("too large index: {last_text:?}"));
        }
        if ends.len() == 2 && first >= end {
            return Err(format!("non-increasing order, previous: {first}, current: {end}"));
        }
        if last >= first {
            return Err(format!("non-increasing order, previous: {last}, current: {first}"));
        }
        total += end - first + 1;
        last = end;
    }
    Ok(total)
}

/// Checks a change of a Job.
pub(super) fn update(new: &Value, old: &Value, errors: &mut Errors) {
    let changed = |path: &str| at(new, path) != at(old, path);
    let indexed = text(new, "spec.completionMode") == "Indexed";
    if changed("spec.completions") {
        let completions = at(new, "spec.completions").clone();
        if !indexed {
            errors.invalid("spec.completions", completions, "field is immutable");
        } else if !completions.is_null() && completions != *at(new, "spec.parallelism") {
            errors.invalid("spec.completions", completions, "can only be modified in tandem with spec.parallelism");
        }
    }
    for field in [
        "selector",
        "template",
        "completionMode",
        "podFailurePolicy",
        "backoffLimitPerIndex",
        "managedBy",
        "successPolicy",
    ] {
        let path = format!("spec.{field}");
        let suspended = field == "template" && crate::tree::yes(old, "spec.suspend");
        if changed(&path) && !suspended {
            errors.invalid(path.clone(), at(new, &path).clone(), "field is immutable");
        }
    }
}

/// Checks a CronJob.
pub(super) fn cron_job(o: &Value, errors: &mut Errors) {
    let schedule = text(o, "spec.schedule");
    if schedule.is_empty() {
        errors.required("spec.schedule", "");
    } else {
        if let Err(why) = cron::parse(schedule) {
            errors.invalid("spec.schedule", schedule, &why.to_string());
        }
        if schedule.contains("TZ") {
            let detail = "cannot use TZ or CRON_TZ in schedule, use timeZone field instead";
            errors.invalid("spec.schedule", schedule, detail);
        }
    }
    not_negative(
        at(o, "spec"),
        "spec",
        &["startingDeadlineSeconds", "successfulJobsHistoryLimit", "failedJobsHistoryLimit"],
        errors,
    );
    if has(o, "spec.timeZone") {
        time_zone(text(o, "spec.timeZone"), errors);
    }
    let policy = text(o, "spec.concurrencyPolicy");
    if !matches!(policy, "Allow" | "Forbid" | "Replace") {
        errors.not_supported("spec.concurrencyPolicy", policy, &["Allow", "Forbid", "Replace"]);
    }
    spec(at(o, "spec.jobTemplate.spec"), "spec.jobTemplate.spec", errors);
    let name = text(o, "metadata.name");
    if name.len() > 52 {
        errors.invalid("metadata.name", name, "must be no more than 52 characters");
    }
}

fn time_zone(zone: &str, errors: &mut Errors) {
    if zone.is_empty() {
        errors.invalid("spec.timeZone", zone, "timeZone must be nil or non-empty string");
    } else if zone.eq_ignore_ascii_case("local") {
        let detail = "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones";
        errors.invalid("spec.timeZone", zone, detail);
    } else if TimeZone::get(zone).is_err() {
        errors.invalid("spec.timeZone", zone, &format!("unknown time zone {zone}"));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn broken(more: Value) -> String {
        let mut all =
            json!({"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}});
        all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        pod::defaults::pod_spec(&mut all["template"]["spec"]);
        let mut errors = Errors::default();
        spec(&all, "spec", &mut errors);
        errors.into_result("Job", "batch", "j").map_or_else(|e| e.message, |()| String::new())
    }

    #[test]
    fn what_indexes_need_is_named() {
        for (tree, expected) in [
            (
                json!({"backoffLimitPerIndex": 1}),
                "spec.backoffLimitPerIndex: Invalid value: 1: requires indexed completion mode",
            ),
            (json!({"completionMode": "Indexed"}), "spec.completions: Required value: when completion mode is Indexed"),
            (
                json!({"completionMode": "Indexed", "completions": 1, "maxFailedIndexes": 1}),
                "spec.backoffLimitPerIndex: Required value: when maxFailedIndexes is specified",
            ),
            (json!({"parallelism": -1}), "spec.parallelism: Invalid value: -1: must be greater than or equal to 0"),
            (
                json!({"completionMode": "Indexed", "completions": 3, "successPolicy": {"rules": [{"succeededIndexes": "0-1,1"}]}}),
                "error parsing succeededIndexes: non-increasing order, previous: 1, current: 1",
            ),
            (
                json!({"completionMode": "Indexed", "completions": 3, "successPolicy": {"rules": [{"succeededCount": 4}]}}),
                "must be less than or equal to 3 (the number of specified completions)",
            ),
            (
                json!({"podFailurePolicy": {"rules": [{"action": "Ignore"}]}}),
                "specifying one of OnExitCodes and OnPodConditions is required",
            ),
            (
                json!({"podFailurePolicy": {"rules": [{"action": "FailIndex", "onExitCodes": {"operator": "In", "values": [1]}}]}}),
                "requires the backoffLimitPerIndex to be set",
            ),
            (
                json!({"podFailurePolicy": {"rules": [{"action": "Count", "onExitCodes": {"operator": "In", "values": [2, 0, 2]}}]}}),
                "must be ordered",
            ),
        ] {
            assert!(broken(tree.clone()).contains(expected), "{tree}: {}", broken(tree.clone()));
        }
        assert_eq!(
            broken(json!({"completionMode": "Indexed", "completions": 3, "backoffLimitPerIndex": 0,
            "successPolicy": {"rules": [{"succeededIndexes": "0-1", "succeededCount": 1}]}})),
            ""
        );
    }

    #[test]
    fn a_schedule_is_read_when_it_is_written() {
        let check = |schedule: &str, zone: &str| {
            let mut errors = Errors::default();
            cron_job(
                &json!({"metadata": {"name": "c"}, "spec": {"schedule": schedule, "timeZone": zone, "concurrencyPolicy": "Allow",
                "jobTemplate": {"spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}}}}}),
                &mut errors,
            );
            errors.into_result("CronJob", "batch", "c").map_or_else(|e| e.message, |()| String::new())
        };
        assert!(check("* * *", "UTC").contains("expected exactly 5 fields, found 3: [* * *]"));
        assert!(
            check("* * * * *", "Nowhere/Land")
                .contains("spec.timeZone: Invalid value: \"Nowhere/Land\": unknown time zone Nowhere/Land")
        );
        assert!(check("TZ=UTC * * * * *", "UTC").contains("cannot use TZ or CRON_TZ in schedule"));
    }
}
