//! Who asks, how, and what to tell them beside the answer.

use std::collections::BTreeMap;

use parking_lot::Mutex;

/// An authenticated user.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct User {
    pub name: String,
    pub uid: String,
    pub groups: Vec<String>,
    pub extra: BTreeMap<String, Vec<String>>,
}

impl User {
    /// The user of in-process calls.
    pub fn loopback() -> Self {
        Self { name: "system:apiserver-loopback".into(), groups: vec!["system:masters".into()], ..Self::default() }
    }

    /// Whoever shows nothing.
    pub fn anonymous() -> Self {
        let groups = vec!["system:unauthenticated".into()];
        Self { name: "system:anonymous".into(), groups, ..Self::default() }
    }

    /// Whether the user is in a group.
    pub fn in_group(&self, group: &str) -> bool {
        self.groups.iter().any(|g| g == group)
    }
}

/// What to do about unknown and duplicate fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum FieldValidation {
    Ignore,
    #[default]
    Warn,
    Strict,
}

/// One request, as far as the machine cares.
#[derive(Debug)]
pub(crate) struct Context {
    pub user: User,
    /// Field manager; the name before the `/` of the user agent when none is given.
    pub manager: String,
    pub dry_run: bool,
    pub field_validation: FieldValidation,
    /// The configuration of a server-side apply, while it creates the object.
    pub applied: Option<serde_json::Value>,
    warnings: Mutex<Vec<String>>,
}

impl Context {
    /// A request of `user`.
    pub fn new(user: User, manager: &str) -> Self {
        let (dry_run, field_validation) = (false, FieldValidation::default());
        Self { user, manager: manager.into(), dry_run, field_validation, applied: None, warnings: Mutex::default() }
    }

    /// A request of the process itself; typed callers send no unknown fields.
    pub fn loopback() -> Self {
        Self { field_validation: FieldValidation::Ignore, ..Self::new(User::loopback(), "podlab") }
    }

    /// Adds a warning header to the answer.
    pub fn warn(&self, text: impl Into<String>) {
        let mut warnings = self.warnings.lock();
        let text = text.into();
        // Upstream stops at 4 KiB of warnings altogether.
        if warnings.len() < 32 && !warnings.contains(&text) {
            warnings.push(text);
        }
    }

    /// The warnings so far.
    pub fn warnings(&self) -> Vec<String> {
        self.warnings.lock().clone()
    }
}
