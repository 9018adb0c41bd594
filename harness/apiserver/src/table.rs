//! Rows and columns for `kubectl get`: the server-side printer.
//! Source: k/k pkg/printers/internalversion/printers.go.

mod age;
pub(crate) mod apps;
pub(crate) mod core;
pub(crate) mod pod;
pub(crate) mod render;
pub(crate) mod storage;

use serde_json::Value;

pub(crate) use age::{Now, human_duration, since};

/// One column: name, type, priority (0 always, 1 with `-o wide`).
pub(crate) type Column = (&'static str, &'static str, u8);

/// How a kind is shown.
#[derive(Clone, Copy)]
pub(crate) struct Table {
    pub columns: &'static [Column],
    /// The cells of one object, in column order.
    pub cells: fn(&Value, Now) -> Vec<Value>,
}

impl Table {
    /// What every kind can show.
    pub const NAME_AGE: Self = Self {
        columns: &[("Name", "string", 0), ("Age", "string", 0)],
        cells: |o, now| vec![crate::tree::at(o, "metadata.name").clone(), age::age(o, now)],
    };
    /// A name and when it was made, as kinds without a printer of their own show it.
    pub const CREATED_AT: Self = Self {
        columns: &[("Name", "string", 0), ("Created At", "date", 0)],
        cells: |o, _| {
            vec![crate::tree::at(o, "metadata.name").clone(), crate::tree::at(o, "metadata.creationTimestamp").clone()]
        },
    };
}
