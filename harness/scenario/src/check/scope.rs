//! Names before their use: bindings in expressions and texts, checkpoints, steps that moments speak of.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::{
    Cel, Moment, Scenario, Step,
    cel::{BUILTINS, LIVE},
    expand::check_name,
    problem::suggest,
    template::{Part, parts},
};

/// Which expressions must look at something that changes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Looks {
    AtAnything,
    AtTheCluster,
}

struct Scope<'a> {
    scenario: &'a Scenario,
    say: &'a mut dyn FnMut(&str, &str),
    steps: BTreeSet<String>,
    checkpoints: BTreeSet<&'a str>,
}

pub(crate) fn check(scenario: &Scenario, say: &mut dyn FnMut(&str, &str)) {
    let mut steps = BTreeSet::new();
    scenario.walk(&mut |path, _| {
        steps.insert(path.to_owned());
    });
    let mut scope = Scope { scenario, say, steps, checkpoints: BTreeSet::new() };
    let mut names = BTreeSet::new();
    for (part, list) in scenario.parts() {
        scope.list(part, list, &mut names);
    }
    for (i, invariant) in scenario.always.iter().enumerate() {
        let at = format!("always[{}]", i + 1);
        scope.expression(&format!("{at}.that"), &invariant.that, &BTreeSet::new(), Looks::AtTheCluster);
        if invariant.that.free().is_ok_and(|free| free.contains("calls")) {
            (scope.say)(&at, "calls are in the run log, which nobody watches; demand them in then");
        }
        if invariant.because.trim().is_empty() {
            (scope.say)(&at, "because must say why it holds");
        }
    }
}

impl<'a> Scope<'a> {
    fn list(&mut self, path: &str, steps: &'a [Step], names: &mut BTreeSet<String>) {
        for (i, step) in steps.iter().enumerate() {
            self.step(&format!("{path}[{}]", i + 1), step, names);
        }
    }

    fn step(&mut self, path: &str, step: &'a Step, names: &mut BTreeSet<String>) {
        use Looks::{AtAnything, AtTheCluster};
        match step {
            Step::Expect(e) => self.expression(&format!("{path}.expect.that"), &e.that, names, AtTheCluster),
            Step::Never(n) => {
                if let Some(that) = &n.that {
                    self.expression(&format!("{path}.never.that"), that, names, AtTheCluster);
                }
            }
            Step::If(s) => self.expression(&format!("{path}.if.that"), &s.that, names, AtAnything),
            Step::ForEach(s) => {
                self.expression(&format!("{path}.forEach.in"), &s.list, names, AtAnything);
                self.name(path, &s.name);
            }
            Step::Bind(all) => {
                for (name, that) in all {
                    self.expression(&format!("{path}.bind.{name}"), that, names, AtAnything);
                    self.name(path, name);
                }
            }
            Step::Checkpoint(c) => {
                self.checkpoints.insert(&c.name);
            }
            Step::Unchanged(name) if !self.checkpoints.contains(name.as_str()) => {
                let hint = suggest(name, self.checkpoints.iter().copied());
                (self.say)(path, &format!("unchanged: no step before it remembers {name:?}{hint}"));
            }
            _ => {}
        }
        moments(step, &mut |m| {
            if let Some(wanted) = &m.step
                && !self.steps.contains(wanted)
            {
                let hint = suggest(wanted, self.steps.iter().map(String::as_str).take(20));
                (self.say)(path, &format!("there is no step {wanted:?}{hint}"));
            }
        });
        let inner = step.inner();
        if inner.is_empty() {
            let texts = self.scenario.origin.template(path).cloned();
            self.texts(path, texts.as_ref(), names);
        }
        match step {
            Step::Bind(all) => names.extend(all.keys().cloned()),
            // What one branch binds the others do not see.
            Step::Parallel(_) => {
                inner.iter().for_each(|(at, l)| self.list(&format!("{path}.{at}"), l, &mut names.clone()))
            }
            Step::ForEach(_) | Step::Repeat(_) => {
                let mut more = names.clone();
                match step {
                    Step::ForEach(s) => more.insert(s.name.clone()),
                    _ => more.insert("round".to_owned()),
                };
                inner.iter().for_each(|(at, l)| self.list(&format!("{path}.{at}"), l, &mut more));
                if let Step::Repeat(r) = step
                    && let Some(until) = &r.until
                {
                    self.expression(&format!("{path}.repeat.until"), until, &more, AtAnything);
                }
            }
            _ => inner.iter().for_each(|(at, l)| self.list(&format!("{path}.{at}"), l, names)),
        }
    }

    fn name(&mut self, path: &str, name: &str) {
        if let Err(why) = check_name(name) {
            (self.say)(path, &why);
        }
    }

    /// The names in the texts of a step that is filled in at its turn.
    fn texts(&mut self, path: &str, value: Option<&Value>, names: &BTreeSet<String>) {
        match value {
            Some(Value::String(text)) if text.contains("${") => match parts(text) {
                Err(why) => (self.say)(path, &why),
                Ok(all) => {
                    for part in all {
                        if let Part::Expr(e) = part {
                            self.expression(path, &e, names, Looks::AtAnything);
                        }
                    }
                }
            },
            Some(Value::Array(list)) => list.iter().for_each(|v| self.texts(path, Some(v), names)),
            Some(Value::Object(map)) => map.values().for_each(|v| self.texts(path, Some(v), names)),
            _ => {}
        }
    }

    fn expression(&mut self, path: &str, e: &Cel, names: &BTreeSet<String>, looks: Looks) {
        let free = match e.free() {
            Ok(free) => free,
            Err(why) => return (self.say)(path, &why),
        };
        for name in free.iter().filter(|n| !BUILTINS.contains(&n.as_str()) && !names.contains(*n)) {
            let hint = suggest(name, BUILTINS.iter().copied().chain(names.iter().map(String::as_str)));
            (self.say)(path, &format!("nothing is called {name:?} here{hint}"));
        }
        let changes = |n: &String| LIVE.contains(&n.as_str()) || names.contains(n);
        if looks == Looks::AtTheCluster && !free.iter().any(changes) {
            (self.say)(path, &format!("`{}` looks at nothing that could change; such a step could never fail", e.0));
        }
    }
}

/// The moments a step speaks of.
pub(crate) fn moments(step: &Step, each: &mut dyn FnMut(&Moment)) {
    match step {
        Step::Elapsed(e) => [&e.from, &e.to].into_iter().for_each(each),
        Step::Order(o) => o.moments.iter().for_each(each),
        Step::Within(w) => [&w.from, &w.to].into_iter().for_each(each),
        Step::Between(b) => {
            [Some(&b.from), Some(&b.to), b.none.as_ref(), b.some.as_ref()].into_iter().flatten().for_each(each)
        }
        Step::Never(n) => n.of.iter().for_each(each),
        Step::Times(t) => each(&t.of),
        _ => {}
    }
}
