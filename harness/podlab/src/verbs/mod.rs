//! One module per group of verbs.

mod author;
mod cluster;
mod docs;
mod e2e;
mod enter;
mod explore;
mod image;
mod lint;
mod node;
mod plugin;

use std::process::ExitCode;

use anyhow::Result;

use podlab_runner::suite;

use crate::cli::{Cli, Verb, World};

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
        Verb::E2e { filter, scenarios, out, jobs, seed, rounds, world, param } => {
            let world = world.map(|w| match w {
                World::Real => suite::World::Real,
                World::Virtual => suite::World::Virtual,
            });
            let options = e2e::Options { filter, scenarios, out, jobs, seed, rounds, world, param };
            e2e::run(&options)
        }
        Verb::Explore { scenario, scenarios, runs, seed, jobs, out, mutant } => {
            explore::run(&explore::Options { scenario, scenarios, runs, seed, jobs, out, mutant })
        }
        Verb::Lint { scenarios, list, explain, format } => {
            lint::run(&lint::Options { scenarios, list, explain, format })
        }
        Verb::Docs { scenarios, out } => docs::run(&scenarios, &out),
        Verb::Schema { steps } => author::schema(steps),
        Verb::New { scenario, scenarios } => author::new(&scenarios, &scenario),
        Verb::Explain { scenario, scenarios } => author::explain(&scenarios, &scenario),
        Verb::Cri { listen, root, cni_conf_dir, cni_bin_dir, plain_http } => {
            plugin::cri(listen, root, &plugin::Cni { conf_dir: cni_conf_dir, bin_dirs: cni_bin_dir }, plain_http)
        }
        Verb::Csi { listen, root, node } => plugin::csi(listen, root, node),
        Verb::Cni { plugin } => std::process::exit(podlab_cni::skel::main(&plugin)),
    }
}
