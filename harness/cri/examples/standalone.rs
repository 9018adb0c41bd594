//! The runtime alone with the bundled network plugins, to be judged: `standalone SOCKET ROOT [CONF_DIR BIN_DIR]`.
//! `BIN_DIR` gets links to this program under the plugins' names. `REGISTRIES="HOST=ADDR:PORT …"` names registries that
//! are spoken to in plain HTTP at another address.
#![allow(clippy::unwrap_used, reason = "an example")]

use std::{path::PathBuf, sync::Arc};

use podlab_cri::{CniConfig, CniNetwork, LoopbackOnly, NetworkPlugin, standalone};

fn main() {
    let args: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [listen, root, rest @ ..] = args.as_slice() else { panic!("usage: standalone SOCKET ROOT [CONF_DIR BIN_DIR]") };
    let cni = match rest {
        [conf, bin] => {
            std::fs::create_dir_all(bin).unwrap();
            for name in podlab_cni::plugins::NAMES {
                let _ = std::os::unix::fs::symlink(std::env::current_exe().unwrap(), bin.join(name));
            }
            podlab_cni::chain::Mode::Linked.set_for_process();
            let mode = podlab_cni::chain::Mode::Linked;
            Some(CniConfig { conf_dir: conf.clone(), bin_dirs: vec![bin.clone()], cache_dir: root.join("cni"), mode })
        }
        _ => None,
    };
    let network = move |clock| -> Arc<dyn NetworkPlugin> {
        match &cni {
            Some(config) => Arc::new(CniNetwork::new(config.clone(), clock)),
            None => Arc::new(LoopbackOnly),
        }
    };
    let mut config = standalone::config(listen.clone(), root.clone());
    for (host, address) in std::env::var("REGISTRIES").unwrap_or_default().split(' ').filter_map(|r| r.split_once('='))
    {
        config.registries.plain_http.insert(host.into());
        config.registries.hosts.insert(host.into(), address.parse().unwrap());
    }
    std::process::exit(standalone::serve(config, network).unwrap());
}
