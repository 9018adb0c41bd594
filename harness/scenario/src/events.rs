//! The whole list of events about one object.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::Span;

/// Demands that exactly these events were written about an object, in this order.
///
/// Events of one component have the order they were written in. Those of different components have the order of their
/// timestamps, which are whole seconds; within one second any order between components will do.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Events {
    /// Name of a Pod.
    #[serde(default)]
    pub pod: Option<String>,
    /// Another object.
    #[serde(default)]
    pub about: Option<About>,
    /// The events, first written first.
    pub are: Vec<EventIs>,
    /// How long to wait for them; two seconds when absent.
    #[serde(default)]
    pub within: Option<Span>,
}

/// An object that is no Pod.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct About {
    /// Its kind, e.g. `Node`.
    pub kind: String,
    /// Its name; `*` stands for any text.
    pub name: String,
    /// Only events written by this component, e.g. `node-controller`; all of them when absent.
    #[serde(default)]
    pub by: Option<String>,
}

/// One event.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EventIs {
    /// CamelCase reason.
    pub reason: String,
    /// `Normal` or `Warning`.
    #[serde(rename = "type")]
    pub kind: EventKind,
    /// The whole message; `*` stands for any text.
    pub message: String,
    /// `involvedObject.fieldPath`, e.g. `spec.containers{c}`.
    #[serde(default)]
    pub field_path: Option<String>,
    /// How often it was repeated, exactly; once when neither this nor `atLeast` is given.
    #[serde(default)]
    pub count: Option<u32>,
    /// How often at least, where jitter decides.
    #[serde(default)]
    pub at_least: Option<u32>,
}

/// The type of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
pub enum EventKind {
    /// Nothing is wrong.
    Normal,
    /// Somebody may want to look.
    Warning,
}

impl EventKind {
    /// The wire string.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

impl Events {
    /// Kind and name of what the events are about.
    pub fn object(&self) -> (&str, &str) {
        match (&self.pod, &self.about) {
            (Some(pod), _) => ("Pod", pod),
            (None, Some(about)) => (&about.kind, &about.name),
            (None, None) => ("", ""),
        }
    }

    /// What the step cannot mean, in words.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        if self.pod.is_some() == self.about.is_some() {
            return Err("events needs exactly one of pod and about");
        }
        if self.are.is_empty() {
            return Err("events.are is empty; an object without events shows nothing");
        }
        if self.are.iter().any(|e| e.count.is_some() && e.at_least.is_some()) {
            return Err("an event has a count or an atLeast, not both");
        }
        Ok(())
    }

    /// The step in prose.
    pub(crate) fn sentence(&self) -> String {
        let (kind, name) = self.object();
        let each = self.are.iter().map(|e| {
            let often = match (e.count, e.at_least) {
                (Some(n), _) if n > 1 => format!(" {n} times"),
                (_, Some(n)) => format!(" at least {n} times"),
                _ => String::new(),
            };
            format!("{} ({}){often}", e.reason, e.message.trim())
        });
        format!("The events of {kind} {name} are, in order: {}.", each.collect::<Vec<_>>().join(", "))
    }
}
