//! `metadata.managedFields`: who owns which field.
//!
//! Ownership is recorded from the first server-side apply on. Objects that were only ever created and updated carry
//! no entries; the first apply then finds their fields owned by `before-first-apply`, as upstream does for such objects.

use serde_json::{Value, json};

use super::fields::FieldSet;
use crate::{
    context::Context,
    kinds::SubKind,
    machine::Change,
    tree::{at, list, map_at, remove, text},
};

/// One entry.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Entry {
    pub manager: String,
    pub operation: String,
    pub api_version: String,
    pub subresource: String,
    pub time: String,
    pub set: FieldSet,
}

/// The entries of an object.
pub(crate) fn read(object: &Value) -> Vec<Entry> {
    list(object, "metadata.managedFields")
        .iter()
        .map(|e| Entry {
            manager: text(e, "manager").into(),
            operation: text(e, "operation").into(),
            api_version: text(e, "apiVersion").into(),
            subresource: text(e, "subresource").into(),
            time: text(e, "time").into(),
            set: FieldSet::parse(at(e, "fieldsV1")),
        })
        .collect()
}

/// Writes the entries that own something.
pub(crate) fn write(object: &mut Value, entries: &[Entry]) {
    let list: Vec<Value> = entries
        .iter()
        .filter(|e| !e.set.0.is_empty())
        .map(|e| {
            let mut v = json!({
                "manager": e.manager, "operation": e.operation, "apiVersion": e.api_version, "time": e.time,
                "fieldsType": "FieldsV1", "fieldsV1": e.set.to_value(),
            });
            if !e.subresource.is_empty() {
                v["subresource"] = e.subresource.clone().into();
            }
            v
        })
        .collect();
    if list.is_empty() {
        remove(object, "metadata.managedFields");
    } else {
        map_at(object, "metadata").insert("managedFields".into(), list.into());
    }
}

/// Whether two lists of entries say the same, times aside.
pub(crate) fn same(a: &Value, b: &Value) -> bool {
    let timeless = |v: &Value| {
        let entries = v.as_array().cloned().unwrap_or_default();
        entries
            .into_iter()
            .map(|mut e| {
                remove(&mut e, "time");
                e
            })
            .collect::<Vec<_>>()
    };
    a == b || timeless(a) == timeless(b)
}

/// A created object begins with the entries its creator's apply gave it, or with none.
pub(crate) fn on_create(cx: &Context, object: &mut Value, now: &str) {
    let Some(applied) = &cx.applied else {
        remove(object, "metadata.managedFields");
        return;
    };
    let set = FieldSet::of(text(object, "kind"), applied);
    let entry = Entry {
        manager: cx.manager.clone(),
        operation: "Apply".into(),
        api_version: text(object, "apiVersion").into(),
        subresource: String::new(),
        time: now.into(),
        set,
    };
    write(object, &[entry]);
}

/// Clients that send no entries keep the stored ones; an explicit empty list resets them.
pub(crate) fn keep(change: &Change, body: &Value, old: &Value, new: &mut Value) {
    let given = at(body, "metadata.managedFields");
    let reset = matches!(change, Change::Put(_) | Change::Patch(..))
        && given
            .as_array()
            .is_some_and(|l| l.is_empty() || (l.len() == 1 && l[0].as_object().is_some_and(|m| m.is_empty())));
    if reset {
        remove(new, "metadata.managedFields");
    } else if given.is_null() {
        crate::tree::copy(old, new, "metadata.managedFields");
    } else {
        // Typed decoding may reorder nothing but drops what it does not know; the entries stay as they were sent.
        map_at(new, "metadata").insert("managedFields".into(), given.clone());
    }
}

/// An update by other means than apply takes over what it changes.
pub(crate) fn on_update(cx: &Context, sub: Option<SubKind>, old: &Value, new: &mut Value, now: &str) {
    let mut entries = read(new);
    if entries.is_empty() {
        return;
    }
    let (changed, gone) = FieldSet::changes(text(new, "kind"), old, new);
    if changed.0.is_empty() && gone.0.is_empty() {
        return;
    }
    let subresource = if sub == Some(SubKind::Status) { "status" } else { "" };
    for entry in &mut entries {
        entry.set.0.retain(|path| !changed.covers(path) && !gone.covers(path));
    }
    let api_version = text(new, "apiVersion").to_owned();
    let mine = entries.iter_mut().find(|e| {
        e.manager == cx.manager
            && e.operation == "Update"
            && e.subresource == subresource
            && e.api_version == api_version
    });
    match mine {
        Some(entry) => {
            entry.set.0.extend(changed.0);
            entry.time = now.into();
        }
        None => entries.push(Entry {
            manager: cx.manager.clone(),
            operation: "Update".into(),
            api_version,
            subresource: subresource.into(),
            time: now.into(),
            set: changed,
        }),
    }
    write(new, &entries);
}
