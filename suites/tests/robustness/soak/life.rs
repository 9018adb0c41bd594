//! One Pod from its creation to its disappearance.

use std::time::Duration;

use podlab_api::core::{ContainerStatus, Event, PersistentVolumeClaim, Pod};
use podlab_client::{Client, DeleteOptions, ListOptions};
use podlab_clock::Clock;

use super::{
    Kills,
    kinds::{End, Plan},
    persist,
};
use crate::pods;

/// How long a Pod may take to its end, with its back-offs and those who are away.
const LIMIT: Duration = Duration::from_secs(180);

pub(super) async fn live(client: &Client, clock: Clock, plan: &Plan, kills: &Kills) -> Result<(), String> {
    let before = ["node-1", "node-2"].map(|node| (node, kills.count(node)));
    let pods_api = client.namespaced::<Pod>("default");
    let claims = client.namespaced::<PersistentVolumeClaim>("default");
    if let Some(claim) = &plan.claim {
        let claim: PersistentVolumeClaim = serde_json::from_value(claim.clone()).map_err(|e| e.to_string())?;
        create(clock, || claims.create(&claim)).await?;
    }
    let pod: Pod = serde_json::from_value(plan.pod.clone()).map_err(|e| e.to_string())?;
    create(clock, || pods_api.create(&pod)).await?;
    match &plan.end {
        End::Finishes { phase, code, starts } => {
            let ended = |p: &Pod| matches!(pods::phase(p), "Succeeded" | "Failed");
            let pod = pods::wait(client, &plan.name, "ended", LIMIT, ended).await.map_err(text)?;
            let node = pod.spec.as_ref().and_then(|s| s.node_name.clone()).unwrap_or_default();
            let wasted: i32 = before.iter().filter(|(n, _)| *n == node).map(|(n, old)| kills.count(n) - old).sum();
            check_end(&pod, plan, (phase, *code, *starts), wasted)?;
        }
        End::Serves(time) => {
            let pod = pods::wait(client, &plan.name, "Ready", LIMIT, pods::is_ready).await.map_err(text)?;
            let before = pods::identity(&pod);
            clock.sleep(*time).await;
            let pod = persist(clock, || pods_api.get(&plan.name)).await?;
            let now = pods::identity(&pod);
            if before != now || now.as_ref().is_none_or(|(_, _, restarts)| *restarts != 0) {
                let shown = serde_json::to_string(&pod.status).unwrap_or_default();
                return Err(format!("the container was {before:?} and is {now:?}: {shown}"));
            }
        }
        End::Early(time) => clock.sleep(*time).await,
    }
    let options = DeleteOptions { grace_period: plan.grace, ..DeleteOptions::default() };
    delete(clock, || pods_api.delete(&plan.name, &options)).await?;
    pods::gone(client, &plan.name, LIMIT).await.map_err(text)?;
    if plan.claim.is_some() {
        let options = DeleteOptions::default();
        delete(clock, || claims.delete(&plan.name, &options)).await?;
    }
    Ok(())
}

/// What was said about a Pod, one line an event.
pub(super) async fn events(client: &Client, pod: &str) -> String {
    let options = ListOptions { field_selector: Some(format!("involvedObject.name={pod}")), ..ListOptions::default() };
    let Ok((all, _)) = client.namespaced::<Event>("default").list(&options).await else { return String::new() };
    let line = |e: Event| {
        let at = e.last_timestamp.map(|t| t.0.to_string()).unwrap_or_default();
        format!("    {at} {}x {} {}", e.count.unwrap_or(1), e.reason.unwrap_or_default(), e.message.unwrap_or_default())
    };
    all.into_iter().map(line).collect::<Vec<_>>().join("\n")
}

fn text(failed: libtest_mimic::Failed) -> String {
    failed.message().unwrap_or_default().to_owned()
}

/// A creation whose reply was lost shows as the object being there.
async fn create<T, F>(clock: Clock, call: impl FnMut() -> F) -> Result<(), String>
where
    F: Future<Output = Result<T, podlab_api::ApiError>>,
{
    let mut call = call;
    let lenient = || {
        let one = call();
        async move {
            match one.await {
                Err(e) if e.is_already_exists() => Ok(()),
                other => other.map(drop),
            }
        }
    };
    persist(clock, lenient).await
}

/// A deletion whose reply was lost shows as the object being gone.
async fn delete<F>(clock: Clock, call: impl FnMut() -> F) -> Result<(), String>
where
    F: Future<Output = Result<(), podlab_api::ApiError>>,
{
    let mut call = call;
    let lenient = || {
        let one = call();
        async move {
            match one.await {
                Err(e) if e.is_not_found() => Ok(()),
                other => other,
            }
        }
    };
    persist(clock, lenient).await
}

/// Holds the final status against what the containers have counted themselves. An agent that dies between a container's
/// creation and its start wastes it: that is counted as a restart and nothing has run, so each kill explains at most one.
fn check_end(pod: &Pod, plan: &Plan, end: (&str, i32, Option<i32>), wasted: i32) -> Result<(), String> {
    let (phase, code, starts) = end;
    let status = pod.status.clone().unwrap_or_default();
    let shown = serde_json::to_string(&status).unwrap_or_default();
    if pods::phase(pod) != phase {
        return Err(format!("is {}, not {phase}: {shown}", pods::phase(pod)));
    }
    let main = status.container_statuses.iter().flatten().next().ok_or("no container status")?;
    counted(main, code, starts, wasted).map_err(|e| format!("{e}: {shown}"))?;
    if let Some(starts) = plan.init_starts {
        let init = status.init_container_statuses.iter().flatten().next().ok_or("no init container status")?;
        counted(init, 0, Some(starts), wasted).map_err(|e| format!("init container: {e}: {shown}"))?;
    }
    let sidecars = status.init_container_statuses.iter().flatten().filter(|s| s.name == "side");
    let ran = |s: &&ContainerStatus| {
        let last = s.last_state.as_ref().and_then(|l| l.terminated.as_ref());
        s.restart_count > wasted || last.is_some_and(|t| t.started_at.is_some())
    };
    match sidecars.filter(ran).map(|s| s.restart_count).next() {
        Some(n) => Err(format!("the sidecar was restarted {n} times, with {wasted} kills: {shown}")),
        None => Ok(()),
    }
}

fn counted(status: &ContainerStatus, code: i32, starts: Option<i32>, wasted: i32) -> Result<(), String> {
    let ended = status.state.as_ref().and_then(|s| s.terminated.as_ref()).ok_or("has not ended")?;
    if ended.exit_code != code {
        return Err(format!("ended with {}, not {code}", ended.exit_code));
    }
    let said: i32 =
        ended.message.as_deref().unwrap_or_default().trim().parse().map_err(|_| "did not say its starts")?;
    if !(0..=wasted).contains(&(status.restart_count + 1 - said)) {
        let restarts = status.restart_count;
        return Err(format!("was started {said} times, and {restarts} restarts are reported, with {wasted} kills"));
    }
    match starts {
        Some(starts) if starts != said => Err(format!("was started {said} times instead of {starts}")),
        _ => Ok(()),
    }
}
