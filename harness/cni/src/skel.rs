//! The plugin side of the exec protocol: environment and stdin in, result or error JSON out.

use std::{
    io::{Read, Write},
    path::PathBuf,
    str::FromStr,
};

use serde_json::{Value, json};

use crate::{
    plugins,
    types::{CniError, CniResult, Command, Invocation, NetConf, VERSIONS, check_names},
};

/// Largest configuration read from stdin.
const MAX_CONFIG: u64 = 4 << 20;

/// Runs the plugin named `plugin` as the spec's executable does. Returns the exit code.
pub fn main(plugin: &str) -> i32 {
    let mut version = String::new();
    let answer = respond(plugin, &mut version);
    let (code, body) = match answer {
        Ok(None) => return 0,
        Ok(Some(body)) => (0, body),
        Err(mut error) => {
            error.cni_version = version;
            (1, serde_json::to_value(&error).unwrap_or_else(|_| json!({"code": 999, "msg": error.msg})))
        }
    };
    let mut out = std::io::stdout().lock();
    // A runtime that closed the pipe cannot be told anything more.
    let _ =
        serde_json::to_writer_pretty(&mut out, &body).map_err(std::io::Error::from).and_then(|()| out.write_all(b"\n"));
    code
}

fn respond(plugin: &str, version: &mut String) -> Result<Option<Value>, CniError> {
    let env = |key: &str| std::env::var(key).unwrap_or_default();
    let command = Command::from_str(&env("CNI_COMMAND"))?;
    if command == Command::Version {
        return Ok(Some(json!({"cniVersion": "1.1.0", "supportedVersions": VERSIONS})));
    }
    let mut text = String::new();
    let read = std::io::stdin().take(MAX_CONFIG).read_to_string(&mut text);
    read.map_err(|e| CniError::new(CniError::IO, format!("error reading from stdin: {e}")))?;
    let config: NetConf = serde_json::from_str(&text)
        .map_err(|e| CniError::new(CniError::DECODE, format!("error unmarshall network config: {e}")))?;
    version.clone_from(&config.cni_version);
    let invocation = Invocation {
        command,
        container_id: env("CNI_CONTAINERID"),
        netns: Some(env("CNI_NETNS")).filter(|s| !s.is_empty()).map(PathBuf::from),
        ifname: env("CNI_IFNAME"),
        args: env("CNI_ARGS"),
        path: env("CNI_PATH").split(':').filter(|s| !s.is_empty()).map(PathBuf::from).collect(),
        config,
    };
    let result = call(plugin, &invocation)?;
    Ok(result.map(|r| serde_json::to_value(r).unwrap_or_default()))
}

/// Checks an invocation by the spec's rules and runs the bundled plugin. Used by the executable and by the linked-in
/// call, so both behave the same. Only ADD has a result.
///
/// # Errors
/// The plugin's own error, or one of the spec's for an invocation that makes no sense.
pub fn call(plugin: &str, invocation: &Invocation) -> Result<Option<CniResult>, CniError> {
    validate(invocation)?;
    let result = plugins::run(plugin, invocation)?;
    Ok(result.map(|mut r| {
        r.cni_version.clone_from(&invocation.config.cni_version);
        if matches!(r.cni_version.as_str(), "0.3.0" | "0.3.1" | "0.4.0") {
            for ip in &mut r.ips {
                ip.version = Some(if ip.address.contains(':') { "6" } else { "4" }.to_owned());
            }
        }
        r
    }))
}

fn validate(i: &Invocation) -> Result<(), CniError> {
    let mut missing = Vec::new();
    let needs_container = matches!(i.command, Command::Add | Command::Del | Command::Check);
    if needs_container && i.container_id.is_empty() {
        missing.push("CNI_CONTAINERID");
    }
    if matches!(i.command, Command::Add | Command::Check) && i.netns.is_none() {
        missing.push("CNI_NETNS");
    }
    if needs_container && i.ifname.is_empty() {
        missing.push("CNI_IFNAME");
    }
    if (needs_container || i.command == Command::Gc) && i.path.is_empty() {
        missing.push("CNI_PATH");
    }
    if !missing.is_empty() {
        let text = format!("required env variables [{}] missing", missing.join(","));
        return Err(CniError::new(CniError::ENVIRONMENT, text));
    }
    if needs_container {
        check_names(&i.container_id, &i.ifname)?;
    }
    if i.config.name.is_empty() {
        return Err(CniError::new(CniError::CONFIG, "missing network name"));
    }
    let rank = VERSIONS.iter().position(|v| *v == i.config.cni_version);
    // A configuration without a version is 0.1.0; anything unknown is refused.
    let rank = rank.or_else(|| i.config.cni_version.is_empty().then_some(0)).ok_or_else(|| {
        let mut e = CniError::new(CniError::VERSION, "incompatible CNI versions");
        e.details = format!("config is \"{}\", plugin supports {VERSIONS:?}", i.config.cni_version);
        e
    })?;
    let least = match i.command {
        Command::Check => 4,
        Command::Gc | Command::Status => 6,
        Command::Add | Command::Del | Command::Version => 0,
    };
    if rank < least {
        let text = format!("config version does not allow {}", i.command.as_str());
        return Err(CniError::new(CniError::VERSION, text));
    }
    Ok(())
}
