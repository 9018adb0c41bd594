//! postStart and preStop. Source: k/k pkg/kubelet/lifecycle/handlers.go.

use std::time::Duration;

use podlab_api::core::{Container, LifecycleHandler, Pod};
use podlab_lifecycle::spec;

use crate::{
    agent::Agent,
    container::expand_static,
    host::{HttpAnswer, HttpProbe, PLAIN_HTTP},
    prober::dial::{headers, port_of},
};

/// How long an HTTP hook may take.
const HTTP_TIMEOUT: Duration = Duration::from_secs(30);

/// Runs a hook to its end. The error is the message of a waiting state.
pub(super) async fn run(
    agent: &Agent,
    pod: &Pod,
    c: &Container,
    id: &str,
    ip: &str,
    hook: &LifecycleHandler,
) -> Result<(), String> {
    if let Some(exec) = &hook.exec {
        let declared = exec.command.clone().unwrap_or_default();
        let command = expand_static(&declared, c);
        let head = format!(
            "Exec lifecycle hook ([{}]) for Container \"{}\" in Pod \"{}\" failed",
            declared.join(" "),
            c.name,
            spec::pod_label(pod)
        );
        return match agent.runtime.exec_sync(id, command.clone(), None).await {
            Ok(out) if out.exit_code == 0 => Ok(()),
            Ok(out) => {
                let stderr = String::from_utf8_lossy(&out.stderr).into_owned();
                let error = format!("command '{}' exited with {}: {stderr}", command.join(" "), out.exit_code);
                Err(format!("{head} - error: {error}, message: {:?}", out.combined()))
            }
            Err(e) => Err(format!("{head} - error: {e}, message: \"\"")),
        };
    }
    if let Some(get) = &hook.http_get {
        let port = port_of(&get.port, c).ok_or_else(|| "couldn't find port".to_owned())?;
        let host = get.host.clone().filter(|h| !h.is_empty()).unwrap_or_else(|| ip.to_owned());
        let request = HttpProbe {
            scheme: get.scheme.as_deref().unwrap_or("HTTP").to_lowercase(),
            host,
            port,
            path: get.path.clone().unwrap_or_default(),
            headers: headers(get.http_headers.as_deref()),
        };
        let head = format!(
            "HTTP lifecycle hook ({}) for Container \"{}\" in Pod \"{}\" failed",
            request.path,
            c.name,
            spec::pod_label(pod)
        );
        let mut answer = agent.host.http_get(&request, HTTP_TIMEOUT).await;
        if request.scheme == "https" && answer.as_ref().is_err_and(|e| e.contains(PLAIN_HTTP)) {
            answer = over_http(agent, pod, &request).await;
        }
        return match answer {
            Ok(a) if a.status < 400 => Ok(()),
            Ok(a) => Err(format!(
                "{head} - error: HTTP hook failed with statuscode: {}, message: {:?}",
                a.status,
                String::from_utf8_lossy(&a.body)
            )),
            Err(e) => Err(format!("{head} - error: Get \"{}\": {e}", request.url())),
        };
    }
    if let Some(sleep) = &hook.sleep {
        agent.clock.sleep(Duration::from_secs(u64::try_from(sleep.seconds).unwrap_or(0))).await;
    }
    Ok(())
}

/// A hook that was declared for HTTPS and meets a plain server is asked again without, and without what only an
/// encrypted request may carry. Source: handlers.go runHTTPHandler.
async fn over_http(agent: &Agent, pod: &Pod, request: &HttpProbe) -> Result<HttpAnswer, String> {
    let mut plain = HttpProbe { scheme: "http".to_owned(), ..request.clone() };
    plain.headers.retain(|(name, _)| !name.eq_ignore_ascii_case("authorization"));
    let answer = agent.host.http_get(&plain, HTTP_TIMEOUT).await;
    if answer.is_ok() {
        let message = format!(
            "request to HTTPS lifecycle hook {}:{} got HTTP response, retry with HTTP succeeded",
            request.host, request.port
        );
        agent.say.warn(pod, "LifecycleHTTPFallback", message);
    }
    answer
}
