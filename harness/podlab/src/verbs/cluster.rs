//! `up`, `down`, `ps`, `logs`, `gc`, `diag`.

use std::{io::Write, process::ExitCode, time::Duration};

use anyhow::{Context, Result, bail};
use podlab_clock::Clock;
use podlab_testbed::{Cluster, ClusterSpec, Durability, Planted, StateDir, Tracing, Zygote, copy_kubeconfig, diagnose};

use crate::cli::{Durable, Isolation, OnOff, Output, Up};
use crate::out::{complain, say};

/// How long a cluster may take to become ready.
const BOOT_LIMIT: Duration = Duration::from_secs(60);

/// Refuses to start what cannot work, in one sentence a thing.
pub(crate) fn check_host() -> Result<()> {
    let fatal: Vec<String> =
        diagnose().into_iter().filter(|l| l.fatal).map(|l| format!("{}: {}", l.what, l.remedy)).collect();
    if fatal.is_empty() {
        return Ok(());
    }
    bail!("this host lacks what a cluster needs:\n  {}", fatal.join("\n  "))
}

pub(crate) fn up(up: Up) -> Result<ExitCode> {
    check_host()?;
    if up.isolation == Isolation::Thread {
        bail!(
            "--isolation thread is not available for clusters with nodes: a container needs a process tree of its own"
        );
    }
    for archive in &up.image_archive {
        std::fs::File::open(archive).with_context(|| format!("image archive {}", archive.display()))?;
    }
    let kubelet_config = up
        .kubelet_config
        .as_ref()
        .map(|path| std::fs::read_to_string(path).with_context(|| format!("read {}", path.display())))
        .transpose()?;
    let zygote = Zygote::start().context("prepare to fork")?;
    let asked = ClusterSpec {
        nodes: up.nodes,
        node_cpu_milli: up.node_cpu,
        node_memory: up.node_memory,
        publish: up.publish,
        durable: match up.durable {
            Durable::Off => Durability::Off,
            Durable::Batch => Durability::Batch,
            Durable::Always => Durability::Always,
        },
        registry_user: up.registry_user,
        registry_password: up.registry_password,
        kubelet_config,
        kubelet_flags: up.kubelet_flag,
        tied_to_runner: up.foreground,
        tracing: if up.run_log == OnOff::Off { Tracing::Off } else { Tracing::On },
        planted: up.plant.as_ref().map(planted).transpose()?,
        ..ClusterSpec::named(&up.name.name)
    };
    let spec = match &up.spec {
        Some(path) => {
            let text = std::fs::read(path).with_context(|| format!("read {}", path.display()))?;
            let spec: ClusterSpec =
                serde_json::from_slice(&text).with_context(|| format!("{} is no cluster", path.display()))?;
            ClusterSpec { tied_to_runner: up.foreground, ..spec }
        }
        None => asked,
    };
    let name = spec.name.clone();
    for field in podlab_testbed::check_kubelet(&spec).context("configure the node agents")? {
        complain!("note: {field} changes nothing here");
    }
    let cluster = Cluster::boot(&zygote, spec)?;
    let ready = runtime()?.block_on(cluster.wait_ready(Clock::real(), BOOT_LIMIT));
    let made = ready.map_err(anyhow::Error::from).and_then(|()| {
        copy_kubeconfig(&cluster.kubeconfig(), &up.kubeconfig)?;
        Ok(cluster.load_images(&up.image_archive)?)
    });
    if let Err(error) = made {
        let log = std::fs::read_to_string(cluster.log_path("plane")).unwrap_or_default();
        let tail: Vec<&str> = log.lines().rev().take(10).collect();
        for line in tail.into_iter().rev() {
            complain!("  plane: {line}");
        }
        cluster.down(false);
        return Err(error);
    }
    say!("cluster {name:?} is ready: export KUBECONFIG={}", up.kubeconfig.display());
    if up.foreground {
        runtime()?.block_on(until_ended(&cluster))?;
        // Dropped here: a cluster in the foreground ends with this process.
        drop(cluster);
    }
    Ok(ExitCode::SUCCESS)
}

/// Waits until somebody ends this process, or the cluster has ended by itself.
async fn until_ended(cluster: &Cluster) -> Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::select! {
        _ = term.recv() => Ok(()),
        _ = int.recv() => Ok(()),
        () = cluster.ended(Clock::real()) => bail!("the cluster has ended"),
    }
}

/// `MILESTONE=MICROSECONDS`, the milestone as in the run log.
fn planted((stage, micros): &(String, String)) -> Result<Planted> {
    let stage = serde_json::from_value(stage.as_str().into()).with_context(|| format!("milestone {stage:?}"))?;
    let micros = micros.parse().with_context(|| format!("{micros:?} microseconds"))?;
    Ok(Planted { stage, delay: Duration::from_micros(micros) })
}

pub(crate) fn runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().context("start the async runtime")
}

pub(crate) fn down(name: &str, keep: bool) -> Result<ExitCode> {
    let state = StateDir::of(name)?;
    match Cluster::attach(name) {
        Ok(cluster) => cluster.down(keep),
        // Nothing lives; `down` without --keep also forgets what an earlier `down --keep` kept.
        Err(_) if !keep && state.path().exists() => state.sweep(false),
        Err(_) => {}
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn ps(output: Output) -> Result<ExitCode> {
    let all: Vec<_> = StateDir::all().iter().map(Cluster::info).collect();
    let mut out = Vec::new();
    match output {
        Output::Json => writeln!(out, "{}", serde_json::to_string_pretty(&all)?)?,
        Output::Table => {
            writeln!(out, "{:<20} {:<8} {:<6} {:<40} KUBECONFIG", "NAME", "STATE", "NODES", "DOWN")?;
            for c in all {
                let down: Vec<_> = c.processes.iter().filter(|(_, pid)| **pid == 0).map(|(n, _)| n.as_str()).collect();
                let state = if c.live { "up" } else { "kept" };
                writeln!(
                    out,
                    "{:<20} {state:<8} {:<6} {:<40} {}",
                    c.name,
                    c.nodes,
                    down.join(","),
                    c.kubeconfig.display()
                )?;
            }
        }
    }
    crate::out::whole(&out).context("print the list")?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn logs(name: &str, component: &str) -> Result<ExitCode> {
    let cluster = Cluster::attach(name)?;
    let mut known = vec!["capsule".to_owned(), "plane".to_owned()];
    known.extend(cluster.spec().node_names());
    if !known.iter().any(|k| k == component) {
        bail!("there is no component {component:?}; there are {}", known.join(", "));
    }
    let path = cluster.log_path(component);
    let text = std::fs::read(&path).with_context(|| format!("log of {component}"))?;
    crate::out::whole(&text).context("print the log")?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn gc() -> Result<ExitCode> {
    for name in podlab_testbed::collect_garbage() {
        say!("removed what was left of {name:?}");
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn diag() -> Result<ExitCode> {
    let lacks = diagnose();
    if lacks.is_empty() {
        say!("nothing is missing");
    }
    for lack in &lacks {
        let weight = if lack.fatal { "needed" } else { "note" };
        say!("{weight}: {}. {}.", lack.what, lack.remedy);
    }
    Ok(if lacks.iter().any(|l| l.fatal) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
