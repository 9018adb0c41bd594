//! A scenario in prose: what happens, what goes wrong, what must hold, for people who do not read YAML.

use std::fmt::Write;

use podlab_fault::{At, Effect, Fault, Point};

use crate::{
    AgentAction, Apply, ArrivalPlan, EventMatch, Matcher, Measured, Moment, Never, NodeAction, Scenario, Span, Step,
};

/// Markdown: the intent, the cluster, the faults, each part's steps as numbered sentences.
pub fn explain(name: &str, s: &Scenario) -> String {
    let mut out = format!("# {name}\n\n{}\n", s.intent.trim());
    if let Some(source) = &s.source {
        let _ = write!(out, "\nSource: {source}\n");
    }
    let nodes = if s.cluster.nodes == 1 { "one node".to_owned() } else { format!("{} nodes", s.cluster.nodes) };
    let _ = write!(out, "\nCluster: {nodes} of {} milli-CPU.\n", s.cluster.node_cpu_milli);
    if !s.faults.is_empty() {
        out.push_str("\n## What goes wrong\n\n");
        s.faults.iter().for_each(|f| out.push_str(&format!("- {}\n", fault(f))));
    }
    for (name, what) in [("params", &s.origin.params), ("matrix", &s.origin.matrix)] {
        for (k, v) in what.as_object().into_iter().flatten() {
            let _ = write!(out, "\n`{name}.{k}` is {v}.\n");
        }
    }
    if !s.always.is_empty() {
        out.push_str("\n## All the time\n\n");
        s.always.iter().for_each(|i| out.push_str(&format!("- `{}`: {}\n", i.that.0, i.because.trim())));
    }
    let titles = ["Given", "When", "Then", "When a step has failed", "Whatever came of it", "At the very end"];
    for (title, (_, steps)) in titles.into_iter().zip(s.parts()) {
        if !steps.is_empty() {
            let _ = write!(out, "\n## {title}\n\n");
            list(&mut out, steps, 0);
        }
        if title == "When" {
            loaded(&mut out, s);
        }
    }
    out
}

/// The load, what is measured of it and how good that must be.
fn loaded(out: &mut String, s: &Scenario) {
    let Some(load) = &s.load else { return };
    let plan = match &load.arrivals {
        ArrivalPlan::Constant { rate } => format!("{} Pods a second, evenly", rate.0),
        ArrivalPlan::Ramp { from, to, over } => format!("{} and within {} {} Pods a second", from.0, span(*over), to.0),
        ArrivalPlan::Burst { size, every } => format!("{size} Pods at once every {}", span(*every)),
        ArrivalPlan::Poisson { rate } => format!("{} Pods a second on average, at random", rate.0),
        ArrivalPlan::Closed { concurrency } => format!("{concurrency} Pods at a time"),
        ArrivalPlan::Trace { offsets } => format!("Pods at {} given times", offsets.len()),
        ArrivalPlan::Search { lo, hi, hold, .. } => {
            format!("the highest rate between {} and {} Pods a second that holds for {}", lo.0, hi.0, span(*hold))
        }
    };
    let _ = write!(out, "\n## Load\n\nWhat arrives: {plan}; {} Pods, of which {} warm up.\n", load.count, load.warmup);
    for m in &s.measure {
        let what = match m.of {
            Measured::Startup { .. } => "how long each takes to start",
            Measured::Sli {} => "the Kubernetes service level indicator",
            Measured::Phases { .. } => "where the time of each start goes",
            Measured::Deletion {} => "how long each takes to be gone",
        };
        let _ = writeln!(out, "- `{}` measures {what}.", m.id);
    }
    for g in &s.gate {
        let limit = match (g.at_most, g.count_at_most, g.rate_at_least, g.slo) {
            (Some(t), ..) => format!("at most {}", span(t)),
            (_, Some(n), ..) => format!("at most {n}"),
            (_, _, Some(r), _) => format!("at least {} a second", r.0),
            (.., slo) => format!("at most {} s", slo.map_or(0, |s| s.at_most().as_secs())),
        };
        let _ = writeln!(out, "- `{}` must be {limit}.", g.of);
    }
}

/// Numbered sentences, the steps inside a step below it.
fn list(out: &mut String, steps: &[Step], depth: usize) {
    let indent = "   ".repeat(depth);
    for (i, step) in steps.iter().enumerate() {
        let _ = writeln!(out, "{indent}{}. {}", i + 1, sentence(step));
        let inner = step.inner();
        let many = inner.iter().filter(|(_, steps)| !steps.is_empty()).count() > 1;
        for (n, (name, steps)) in inner.iter().enumerate().filter(|(_, (_, steps))| !steps.is_empty()) {
            if many {
                let title = match name.as_str() {
                    "if.then" => "If so:".to_owned(),
                    "if.else" => "If not:".to_owned(),
                    _ => format!("Branch {}:", n + 1),
                };
                let _ = writeln!(out, "{indent}   - {title}");
            }
            list(out, steps, depth + 1 + usize::from(many));
        }
    }
}

pub(crate) fn span(s: Span) -> String {
    let ms = s.0.as_millis();
    if ms.is_multiple_of(1000) { format!("{} s", ms / 1000) } else { format!("{ms} ms") }
}

fn fault(f: &Fault) -> String {
    let call = match &f.at {
        At::Cni(c) => format!("CNI {}", c.command),
        At::Cri(m) => format!("CRI {}", m.method),
        At::Csi(m) => format!("CSI {}", m.method),
        At::Api(c) => {
            let by = c.client.as_ref().map(|w| format!(" by {w}")).unwrap_or_default();
            format!("API {} of {}{by}", c.verb, c.resource)
        }
    };
    let which = match f.when.nth.as_slice() {
        [] => "Every".to_owned(),
        nth => format!("Number {} of", nth.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")),
    };
    let pod = f.when.pod.as_ref().map(|p| format!(" for Pod {p}")).unwrap_or_default();
    let effect = match &f.effect {
        Effect::Error { code, msg } => format!("fails with {code} \"{msg}\", without being made"),
        Effect::Delay { ms } => format!("is made {ms} ms late"),
        Effect::Hang => "is not made and never answered".to_owned(),
        Effect::CrashAt { point, down_ms } => {
            let when = if *point == Point::Before { "before" } else { "after" };
            format!("kills its caller {when} it takes effect; the next starts {down_ms} ms later")
        }
        Effect::DropReply { msg } => format!("is made, but its caller gets \"{msg}\""),
        Effect::DropRequest { msg } => format!("is not made, and its caller gets \"{msg}\""),
        Effect::Duplicate => "is made twice".to_owned(),
        Effect::Stale => "is answered as the time before".to_owned(),
        Effect::Truncate { after } => format!("ends after {after} parts"),
        Effect::SlowTrickle { ms } => format!("comes in parts, {ms} ms apart"),
    };
    let must = f.must.fired.map(|n| format!("; that must happen {n} times")).unwrap_or_default();
    let heals = f.must.healed_by.map(|s| format!("; {} later one must succeed", span(s))).unwrap_or_default();
    format!("{which} {call}{pod} {effect}{must}{heals} (fault `{}`).", f.id)
}

/// A step in one sentence, without the steps inside it.
pub fn sentence(step: &Step) -> String {
    if let Some(text) = crate::acts::sentence(step) {
        return text;
    }
    match step {
        Step::Apply(Apply::File(file)) => format!("Apply {file}."),
        Step::Apply(Apply::Yaml(text)) => format!("Apply {}.", objects(text)),
        Step::Delete(d) => {
            let what = d.pod.as_ref().map(|p| format!("Pod {p}"));
            let what = what.or(d.claim.as_ref().map(|c| format!("claim {c}"))).unwrap_or_default();
            let grace = d.grace.map(|g| format!(" with a grace period of {}", span(g))).unwrap_or_default();
            format!("Delete {what}{grace}.")
        }
        Step::Label(l) => {
            let set: Vec<String> = l.set.iter().map(|(k, v)| format!("{k}={v}")).collect();
            format!("Label node {} with {}.", l.node, set.join(", "))
        }
        Step::Exec(e) => {
            let says = e.contains.as_ref().map(|c| format!(" and prints \"{c}\"")).unwrap_or_default();
            format!("`{}` in Pod {} exits with {}{says}.", e.command.join(" "), e.pod, e.exit_code)
        }
        Step::Agent(a) => match a {
            AgentAction::Kill(n) => format!("Kill the agent of {n}; its containers live on."),
            AgentAction::Stop(n) => format!("Stop the agent of {n}; its containers live on."),
            AgentAction::Start(n) => format!("Start the agent of {n}."),
            AgentAction::Restart(n) => format!("Kill the agent of {n} and start it again; its containers live on."),
        },
        Step::Node(NodeAction::Crash(n)) => format!("Power {n} off without warning."),
        Step::Node(NodeAction::Boot(n)) => format!("Power {n} on."),
        Step::Pause(p) => format!("Let {} pass: {}.", span(p.duration), p.because),
        Step::Eventually(e) => format!("Within {}, {}.", span(e.within), matcher(&e.what)),
        Step::Holds(h) => format!("For {}, {} all the time.", span(h.duration), matcher(&h.what)),
        Step::Exactly(e) => format!("Pod {} has exactly {} events {}.", e.pod, e.n, event(&e.event)),
        Step::Events(e) => e.sentence(),
        Step::Status(s) => format!("`{}` of Pod {} is `{}`.", s.path, s.pod, s.equals),
        Step::Logs(l) => {
            let which = if l.previous { "log of the run before" } else { "log" };
            let text = l.equals.as_ref().map(|t| format!("is {t:?}"));
            let text = text.or(l.contains.as_ref().map(|t| format!("contains {t:?}"))).unwrap_or_default();
            format!("The {which} of Pod {} {text}.", l.pod)
        }
        Step::Elapsed(e) => {
            let says = [("exactly", e.is), ("at least", e.at_least), ("at most", e.at_most)];
            let says = says.into_iter().filter_map(|(word, s)| Some(format!("{word} {}", span(s?))));
            let says = says.collect::<Vec<_>>().join(" and ");
            format!("From {} to {} it takes {says}.", moment(&e.from), moment(&e.to))
        }
        Step::Checkpoint(c) => format!("Remember `{}` of Pod {} as {}.", c.path, c.pod, c.name),
        Step::Unchanged(name) => format!("{name} is what it was when it was remembered."),
        Step::Rpc(calls) => {
            let each = calls.iter().map(|(call, n)| match (n.exactly, n.at_least) {
                (Some(n), _) => format!("{call} exactly {n} times"),
                (None, n) => format!("{call} at least {} times", n.unwrap_or(1)),
            });
            format!("The run has seen {}.", each.collect::<Vec<_>>().join(", "))
        }
        Step::Replay(r) => {
            format!(
                "The simulated runtime of {} answers the calls of the tape {} as the recorded one did.",
                r.node, r.tape
            )
        }
        Step::LeakFree(kinds) => {
            let kinds: Vec<String> = kinds.iter().map(|k| format!("{k:?}").to_lowercase()).collect();
            format!("No node keeps any {} of deleted Pods.", kinds.join(", "))
        }
        Step::Expect(e) => {
            let within = e.within.map(|w| format!("Within {}, ", span(w))).unwrap_or_default();
            let because = e.because.as_ref().map(|b| format!(", because {}", b.trim())).unwrap_or_default();
            format!("{within}`{}` is true{because}.", e.that.0)
        }
        Step::Never(n) => never(n),
        Step::Order(o) => {
            let all: Vec<String> = o.moments.iter().map(moment).collect();
            format!("In this order: {}.", all.join(", then "))
        }
        Step::Within(w) => {
            let every = if w.from.nth.is_none() { "every " } else { "" };
            format!("At most {} after {every}{} comes {}.", span(w.max), moment(&w.from), moment(&w.to))
        }
        Step::Between(b) => {
            let what = b.none.as_ref().map(|m| format!("no {}", moment(m)));
            let what = what.or(b.some.as_ref().map(moment)).unwrap_or_default();
            format!("Between {} and {} there is {what}.", moment(&b.from), moment(&b.to))
        }
        Step::Monotone(m) => match &m.order {
            Some(order) => format!("{} of Pod {} only goes from {}.", m.field, m.pod, order.join(" to ")),
            None => format!("{} of Pod {} never falls.", m.field, m.pod),
        },
        Step::Times(t) => {
            let says = [("exactly", t.exactly), ("at least", t.at_least), ("at most", t.at_most)];
            let says = says.into_iter().filter_map(|(word, n)| Some(format!("{word} {} times", n?)));
            format!("The run has seen {} {}.", moment(&t.of), says.collect::<Vec<_>>().join(" and "))
        }
        Step::Bind(names) => {
            let all: Vec<String> = names.iter().map(|(k, e)| format!("{k} `{}`", e.0)).collect();
            format!("Call {}.", all.join(", "))
        }
        Step::If(s) => format!("If `{}`:", s.that.0),
        Step::Retry(r) => {
            let every = r.every.map(|s| format!(", {} apart", span(s))).unwrap_or_default();
            format!("Up to {} times{every}, until all of it succeeds:", r.attempts)
        }
        Step::Repeat(r) => match &r.until {
            Some(until) => format!("Up to {} times, until `{}`:", r.times, until.0),
            None => format!("{} times:", r.times),
        },
        Step::ForEach(f) => format!("For each {} in `{}`:", f.name, f.list.0),
        Step::Parallel(_) => "At the same time:".to_owned(),
        Step::Group(g) => g.name.clone(),
        Step::Use(u) => format!("Do the steps of {}.", u.file),
        // The rest is told above.
        _ => String::new(),
    }
}

fn never(n: &Never) -> String {
    let what = n.what.as_ref().map(|m| format!("is it so that {}", matcher(m)));
    let what = what.or(n.that.as_ref().map(|e| format!("is `{}` true", e.0)));
    let what = what.or(n.of.as_ref().map(|m| format!("is there {}", moment(m)))).unwrap_or_default();
    format!("Never {what}, for another {}.", span(n.duration))
}

/// `Pod a, Service b` of YAML documents, by their `kind:` and first `name:`; what cannot be read is `YAML`.
pub(crate) fn objects(text: &str) -> String {
    let one = |document: &str| {
        let tree: serde_json::Value = serde_saphyr::from_str(document).ok()?;
        Some(format!("{} {}", tree["kind"].as_str()?, tree["metadata"]["name"].as_str()?))
    };
    let all: Vec<String> = text.split("\n---").filter_map(one).collect();
    if all.is_empty() { "YAML".to_owned() } else { all.join(", ") }
}

fn moment(m: &Moment) -> String {
    let nth = m.nth.filter(|n| *n > 1).map(|n| format!(", time {n},")).unwrap_or_default();
    let pod = m.pod.as_ref().map(|p| format!(" of Pod {p}")).unwrap_or_default();
    let subject = m.subject.as_ref().map(|s| format!(" for {s}")).unwrap_or_default();
    let what = m.step.clone();
    let what = what.or_else(|| m.field.as_ref().map(|f| format!("{f}={}", m.value.as_deref().unwrap_or("any value"))));
    let what = what.or_else(|| m.event.as_ref().map(|e| format!("the event {e}")));
    let end = if m.end { "the end of " } else { "" };
    let what = what.or_else(|| m.call.as_ref().map(|c| format!("{end}{c}{subject}"))).unwrap_or_default();
    format!("{what}{pod}{nth}")
}

fn event(e: &EventMatch) -> String {
    let text = e.message.as_ref().map(|m| format!(" \"{m}\""));
    let text = text.or(e.contains.as_ref().map(|c| format!(" with \"{c}\" in its message"))).unwrap_or_default();
    let count = e.count.map(|n| format!(" at least {n} times")).unwrap_or_default();
    format!("{}{text}{count}", e.reason)
}

fn matcher(m: &Matcher) -> String {
    let mut says = Vec::new();
    says.extend(m.gone.filter(|g| *g).map(|_| "is gone".to_owned()));
    says.extend(m.phase.as_ref().map(|p| format!("is {p}")));
    says.extend(m.condition.as_ref().map(|c| {
        let because = m.reason.as_ref().map(|r| format!(" because of {r}")).unwrap_or_default();
        format!("has {c}={}{because}", m.status.as_deref().unwrap_or("True"))
    }));
    let of = m.container.as_ref().map(|c| format!(" {c}")).unwrap_or_default();
    says.extend(m.state.as_ref().map(|s| format!("has container{of} {s}")));
    says.extend(m.last_state.as_ref().map(|s| format!("has container{of} last {s}")));
    says.extend(m.restarts.map(|n| format!("has restarted at least {n} times")));
    says.extend(m.node.as_ref().map(|n| format!("is on {n}")));
    says.extend(m.ip.as_ref().map(|ip| format!("has address {ip}")));
    says.extend(m.event.as_ref().map(|e| format!("has an event {}", event(e))));
    format!("Pod {} {}", m.pod, says.join(" and "))
}
