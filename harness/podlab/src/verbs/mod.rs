//! One module per group of verbs.

mod author;
pub(crate) mod bench;
mod cluster;
mod docs;
mod e2e;
mod enter;
mod explore;
mod image;
mod lint;
mod mutants;
mod node;
mod parity;
mod place;
mod plugin;
mod push;
mod registry;
mod report;
mod stress;
mod tape;

use std::process::ExitCode;

use anyhow::Result;

use podlab_runner::{select::Selection, suite};

pub(crate) use push::Endpoint;

use crate::cli::{Cli, E2e, Verb, World};

/// Runs a verb.
pub(crate) fn run(cli: Cli) -> Result<ExitCode> {
    // What dead runs left behind is gone after any command; `gc` only says what it was.
    if !matches!(cli.verb, Verb::Gc | Verb::Cni { .. }) {
        podlab_testbed::collect_garbage();
    }
    match cli.verb {
        Verb::Up(up) => cluster::up(up),
        Verb::Down { name, keep } => cluster::down(&name.name, keep),
        Verb::Ps { output } => cluster::ps(output),
        Verb::Logs { component, name } => cluster::logs(&name.name, &component),
        Verb::Gc => cluster::gc(),
        Verb::Diag => cluster::diag(),
        Verb::Enter { name, node, command } => enter::enter(&name.name, &node, &command),
        Verb::Node { action } => node::act(action),
        Verb::Image { action } => image::act(action),
        Verb::E2e(e) => e2e::run(&e2e_options(*e)),
        Verb::Parity(p) => parity::run(&p),
        Verb::Registry { listen, user, password, suffixes } => registry::run(listen, user.zip(password), suffixes),
        Verb::Bench(b) => bench::run(&b),
        Verb::Stress { scenario, scenarios, out, seed, format, param, at } => {
            stress::run(stress::Options { scenario, scenarios, out, seed, format, param, at })
        }
        Verb::Report { log, out, flaky_fails, format, against, otlp_endpoint } => {
            report::run(&report::Options { log, out, flaky_fails, format, against, otlp_endpoint })
        }
        Verb::Explore { scenario, scenarios, runs, seed, jobs, out, mutant } => {
            explore::run(&explore::Options { scenario, scenarios, runs, seed, jobs, out, mutant })
        }
        Verb::Mutants { names, tenth, scenarios, jobs, seed, out, keep } => {
            mutants::run(&mutants::Options { names, tenth, scenarios, jobs, seed, out, keep })
        }
        Verb::Tape { action } => tape::act(action),
        Verb::Lint { scenarios, list, explain, format } => {
            lint::run(&lint::Options { scenarios, list, explain, format })
        }
        Verb::Docs { scenarios, out } => docs::run(&scenarios, &out),
        Verb::Schema { steps, report, quarantine } => author::schema(match (steps, report, quarantine) {
            (true, ..) => podlab_scenario::library_schema(),
            (_, true, _) => podlab_reports::report_schema(),
            (.., true) => podlab_runner::quarantine::schema(),
            _ => podlab_scenario::schema(),
        }),
        Verb::New { scenario, scenarios } => author::new(&scenarios, &scenario),
        Verb::Explain { scenario, scenarios } => author::explain(&scenarios, &scenario),
        Verb::Cri { listen, root, cni_conf_dir, cni_bin_dir, plain_http } => {
            plugin::cri(listen, root, &plugin::Cni { conf_dir: cni_conf_dir, bin_dirs: cni_bin_dir }, plain_http)
        }
        Verb::Csi { listen, root, node } => plugin::csi(listen, root, node),
        Verb::Cni { plugin } => std::process::exit(podlab_cni::skel::main(&plugin)),
    }
}

/// The command line's words as the verb wants them.
fn e2e_options(e: E2e) -> e2e::Options {
    let world = e.world.map(|w| match w {
        World::Real => suite::World::Real,
        World::Virtual => suite::World::Virtual,
    });
    let expression = e.expression.map(podlab_scenario::Cel);
    let elsewhere = e.at.backend != crate::cli::Backend::Embedded;
    let names = e.filter.iter().map(|word| e2e::name_of(&e.scenarios, word)).collect();
    let selection = Selection { names, tags: e.tag, expression, world, only: None, elsewhere, shard: e.shard };
    e2e::Options {
        at: e.at,
        scenarios: e.scenarios,
        out: e.out,
        selection,
        failed: e.failed,
        list: e.list,
        jobs: e.jobs,
        seed: e.seed,
        rounds: e.rounds,
        until_fail: e.until_fail,
        retries: e.retries,
        flaky_fails: e.flaky_fails,
        fail_fast: e.fail_fast,
        pause: e.pause,
        format: e.format,
        snapshots: e.snapshots,
        param: e.param,
        live: true,
        record: e.record,
    }
}
