//! What a row of the resource machine is.

use podlab_api::{KubeType, ResourceRef, k8s_openapi::Resource};
use serde_json::Value;

use crate::{field::Errors, selector::SelectableField, table::Table};

/// Which verbs a resource offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verbs {
    /// All of them.
    All,
    /// `create` alone: reviews, which are answered and not stored.
    CreateOnly,
}

/// Which rule names of a kind obey.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NameRule {
    Subdomain,
    Label,
    Label1035,
    PathSegment,
}

/// What a subresource is for; the machine and the HTTP layer match on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SubKind {
    Status,
    Scale,
    Finalize,
    Binding,
    Eviction,
    Ephemeral,
    Resize,
    Token,
    Log,
    Exec,
    Attach,
    PortForward,
    Proxy,
}

/// One subresource as discovery shows it.
#[derive(Debug)]
pub(crate) struct Sub {
    pub name: &'static str,
    pub kind: SubKind,
    /// Group, version and kind of its body, where they differ from the parent's.
    pub body: Option<(&'static str, &'static str, &'static str)>,
    pub verbs: &'static [&'static str],
}

/// The functions that make a kind what it is.
#[derive(Clone, Copy)]
pub(crate) struct Strategy {
    /// Status is written through its subresource only, and wiped at create.
    pub status: bool,
    /// The creator may send a status all the same: nodes register with theirs.
    pub status_at_create: bool,
    /// `metadata.generation` counts changes outside metadata and status.
    pub generation: bool,
    /// An update without a resourceVersion is taken.
    pub unconditional: bool,
    pub names: NameRule,
    /// Fills what the client may leave out. Must be idempotent.
    pub default: fn(&mut Value),
    /// Sets what the client may not choose.
    pub prepare_create: fn(&mut Value),
    /// Old, new: restores what may not change silently.
    pub prepare_update: fn(&Value, &mut Value),
    pub validate: fn(&Value, &mut Errors),
    /// New, old; runs before `validate`.
    pub validate_update: fn(&Value, &Value, &mut Errors),
    /// New, old: for the status subresource.
    pub validate_status: fn(&Value, &Value, &mut Errors),
    /// Fields beside name and namespace that the kind can be selected by.
    pub fields: &'static [SelectableField],
    pub table: Table,
    /// Whether a finished delete answers with the object instead of a Status.
    pub returns_deleted: bool,
}

/// Everything left at its default.
pub(crate) const BASE: Strategy = Strategy {
    status: false,
    status_at_create: false,
    generation: false,
    unconditional: true,
    names: NameRule::Subdomain,
    default: |_| {},
    prepare_create: |_| {},
    prepare_update: |_, _| {},
    validate: |_, _| {},
    validate_update: |_, _, _| {},
    validate_status: |_, _, _| {},
    fields: &[],
    table: Table::NAME_AGE,
    returns_deleted: false,
};

/// The status subresource.
pub(crate) const STATUS: Sub =
    Sub { name: "status", kind: SubKind::Status, body: None, verbs: &["get", "patch", "update"] };

/// A row.
pub(crate) struct Kind {
    pub resource: ResourceRef,
    /// Group under which it is stored, where it shares storage with another (events).
    pub storage_group: &'static str,
    pub singular: &'static str,
    pub list_kind: String,
    pub short_names: &'static [&'static str],
    pub categories: &'static [&'static str],
    pub subresources: &'static [Sub],
    pub verbs: Verbs,
    /// Brings a body into the typed form and back; says where it does not fit.
    pub decode: fn(&Value) -> Result<Value, serde_json::Error>,
    pub strategy: Strategy,
    /// `/<group>/<plural>/`, the prefix of its keys.
    pub prefix: String,
}

impl Kind {
    /// The key of an object, with an empty namespace for cluster-scoped ones.
    pub fn key(&self, namespace: Option<&str>, name: &str) -> String {
        format!("{}{}/{name}", self.prefix, namespace.unwrap_or_default())
    }

    /// The prefix of the keys of a namespace, or of all.
    pub fn prefix_of(&self, namespace: Option<&str>) -> String {
        namespace.map_or_else(|| self.prefix.clone(), |ns| format!("{}{ns}/", self.prefix))
    }

    /// The subresource of this name.
    pub fn sub(&self, name: &str) -> Option<&'static Sub> {
        self.subresources.iter().find(|s| s.name == name)
    }

    /// `plural` or `plural.group`, as messages name the resource.
    pub fn qualified(&self) -> String {
        let r = &self.resource;
        if r.group.is_empty() { r.plural.to_owned() } else { format!("{}.{}", r.plural, r.group) }
    }

    /// Whether objects of this row are converted from how they are stored.
    pub fn converted(&self) -> bool {
        self.storage_group != self.resource.group
    }
}

/// What a kind's module gives; the registry makes a [`Kind`] of it.
pub(crate) struct Row {
    pub resource: ResourceRef,
    pub singular: &'static str,
    pub short_names: &'static [&'static str],
    pub categories: &'static [&'static str],
    pub subresources: &'static [Sub],
    pub decode: fn(&Value) -> Result<Value, serde_json::Error>,
    pub strategy: Strategy,
}

impl Row {
    /// The row of a typed kind.
    pub fn of<K: KubeType>(singular: &'static str, short_names: &'static [&'static str], strategy: Strategy) -> Self {
        Self {
            resource: ResourceRef::of::<K>(),
            singular,
            short_names,
            categories: &[],
            subresources: &[],
            decode: decode::<K>,
            strategy,
        }
    }

    /// With subresources.
    pub fn subs(self, subresources: &'static [Sub]) -> Self {
        Self { subresources, ..self }
    }

    /// In the category `all` that `kubectl get all` asks for.
    pub fn in_all(self) -> Self {
        Self { categories: &["all"], ..self }
    }
}

/// Reads the tree as a typed object and writes it back: drops unknown fields, refuses ill-typed ones.
pub(crate) fn decode<K: serde::Serialize + serde::de::DeserializeOwned + Resource>(
    tree: &Value,
) -> Result<Value, serde_json::Error> {
    serde_json::to_value(K::deserialize(tree)?)
}
