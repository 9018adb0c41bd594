//! What deleted Pods left on the nodes, for a step that asks once its Pods are gone: everything of the kinds it names.

use podlab_scenario::Leak;
use podlab_testbed::Held;

use crate::{backend::Backend, steps::StepError};

/// Everything of the wanted kinds that is on the nodes, one line a thing.
pub(crate) async fn find(backend: &dyn Backend, kinds: &[Leak]) -> Result<Vec<String>, StepError> {
    let mut found = Vec::new();
    for node in backend.nodes() {
        let held = backend.holdings(&node).await?;
        for kind in kinds {
            let of = |h: &&podlab_testbed::Holding| wanted(*kind, backend.world()).contains(&h.kind);
            found.extend(held.iter().filter(of).map(|h| format!("{node}: {kind:?} {}", h.what)));
        }
    }
    Ok(found)
}

fn wanted(kind: Leak, world: &str) -> &'static [Held] {
    match kind {
        Leak::Ips => &[Held::Ip],
        Leak::Sandboxes => &[Held::Sandbox, Held::Container],
        Leak::Cgroups => &[Held::Cgroup],
        Leak::Mounts => &[Held::Mount],
        // A Pod's namespace and link come and go with its address in the virtual world.
        Leak::Netns | Leak::Links if world == "virtual" => &[Held::Ip],
        Leak::Netns => &[Held::Netns],
        Leak::Links => &[Held::Link],
    }
}
