//! Finding a row by what a request or an object says.

use std::{
    collections::BTreeMap,
    sync::{LazyLock, OnceLock},
};

use podlab_api::ResourceRef;

use super::{
    Kind, Row, Verbs, apps, batch, core, events, namespace, node, policy, rbac, resource, reviews, service, storage,
};

/// All rows.
pub(crate) struct Registry {
    rows: Vec<Kind>,
    by_plural: BTreeMap<(&'static str, &'static str, &'static str), usize>,
    by_kind: BTreeMap<(&'static str, &'static str, &'static str), usize>,
}

static REGISTRY: LazyLock<Registry> = LazyLock::new(Registry::build);

/// The registry of the process; made on first use.
pub(crate) fn registry() -> &'static Registry {
    &REGISTRY
}

impl Registry {
    fn build() -> Self {
        let stored: Vec<Row> = [
            core::rows(),
            namespace::rows(),
            node::rows(),
            service::rows(),
            events::rows(),
            storage::rows(),
            apps::rows(),
            batch::rows(),
            policy::rows(),
            rbac::rows(),
            resource::rows(),
        ]
        .into_iter()
        .flatten()
        .collect();
        let reviews = reviews::rows();
        let rows: Vec<Kind> = stored
            .into_iter()
            .map(|r| kind(r, Verbs::All))
            .chain(reviews.into_iter().map(|r| kind(r, Verbs::CreateOnly)))
            .collect();
        let mut by_plural = BTreeMap::new();
        let mut by_kind = BTreeMap::new();
        for (i, row) in rows.iter().enumerate() {
            by_plural.insert((row.resource.group, row.resource.version, row.resource.plural), i);
            by_kind.insert((row.resource.group, row.resource.version, row.resource.kind), i);
        }
        Self { rows, by_plural, by_kind }
    }

    /// All rows, in the order of declaration.
    pub fn all(&self) -> &[Kind] {
        &self.rows
    }

    /// The row of a URL.
    pub fn by_plural(&self, group: &str, version: &str, plural: &str) -> Option<&Kind> {
        self.by_plural.get(&(group, version, plural)).map(|i| &self.rows[*i])
    }

    /// The row of an object's `apiVersion` and `kind`.
    pub fn by_kind(&self, api_version: &str, kind: &str) -> Option<&Kind> {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        self.by_kind.get(&(group, version, kind)).map(|i| &self.rows[*i])
    }

    /// The row of a typed reference.
    pub fn by_ref(&self, resource: &ResourceRef) -> Option<&Kind> {
        self.by_plural(resource.group, resource.version, resource.plural)
    }

    /// The row of a core resource that the server itself relies on.
    ///
    /// # Panics
    /// When there is no such row, which would be a mistake in this crate.
    pub fn core(&self, plural: &str) -> &Kind {
        self.by_plural("", "v1", plural).expect("the server has a row for each core resource it uses itself")
    }

    /// Groups with their versions, in discovery order: the core group first.
    pub fn group_versions(&self) -> Vec<(&'static str, &'static str)> {
        static ORDER: OnceLock<Vec<(&str, &str)>> = OnceLock::new();
        ORDER
            .get_or_init(|| {
                let mut seen = Vec::new();
                for row in registry().all() {
                    let gv = (row.resource.group, row.resource.version);
                    if !seen.contains(&gv) {
                        seen.push(gv);
                    }
                }
                seen.sort();
                seen
            })
            .clone()
    }
}

fn kind(row: Row, verbs: Verbs) -> Kind {
    let shares_core = row.resource.group == "events.k8s.io";
    let storage_group = if shares_core { "" } else { row.resource.group };
    Kind {
        resource: row.resource,
        storage_group,
        singular: row.singular,
        list_kind: format!("{}List", row.resource.kind),
        short_names: row.short_names,
        categories: row.categories,
        subresources: row.subresources,
        verbs,
        decode: row.decode,
        strategy: row.strategy,
        prefix: format!("/{storage_group}/{}/", row.resource.plural),
    }
}
