//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// Test and benchmark harness for the Kubernetes Pod lifecycle.
#[derive(Debug, Parser)]
#[command(name = "podlab", version, about)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

/// The name of a cluster.
#[derive(Debug, Clone, Args)]
pub(crate) struct Name {
    /// Name of the cluster.
    #[arg(long, default_value = "podlab")]
    pub(crate) name: String,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Boot a cluster; returns when every node is Ready. It lives until `down`.
    Up(Up),
    /// End a cluster. Idempotent.
    Down {
        #[command(flatten)]
        name: Name,
        /// Keep the API's state for a later `up` of that name.
        #[arg(long)]
        keep: bool,
    },
    /// List clusters.
    Ps {
        /// Machine-readable output.
        #[arg(short, long, value_enum, default_value = "table")]
        output: Output,
    },
    /// Show the log of a component: `capsule`, `plane`, or a node.
    Logs {
        /// Which component.
        component: String,
        #[command(flatten)]
        name: Name,
    },
    /// Run a command inside a node.
    Enter {
        #[command(flatten)]
        name: Name,
        /// Which node.
        #[arg(long, default_value = "node-1")]
        node: String,
        /// The command; a shell when absent.
        #[arg(last = true)]
        command: Vec<String>,
    },
    /// Remove what dead runs left behind.
    Gc,
    /// Say what this host lacks, and how to get it.
    Diag,
    /// Act on a node.
    Node {
        #[command(subcommand)]
        action: NodeAction,
    },
    /// Put images on nodes or into registries.
    Image {
        #[command(subcommand)]
        action: ImageAction,
    },
    /// Play scenarios, each on a cluster of its own, and write reports.
    E2e(Box<E2e>),
    /// Play one scenario in two places and show what differs between the two timelines; exit code 0 when nothing does.
    Parity(Box<Parity>),
    /// Serve a registry that holds the test image, for clusters elsewhere; until somebody ends it.
    Registry {
        /// Where to listen.
        #[arg(long, default_value = "127.0.0.1:5000")]
        listen: std::net::SocketAddr,
        /// Ask for this user.
        #[arg(long, requires = "password")]
        user: Option<String>,
        /// And this password.
        #[arg(long, requires = "user")]
        password: Option<String>,
        /// A tag it has not, written as another with a suffix, `1.SUFFIX`, means that other: each trial can have a name
        /// for the image that no node has yet.
        #[arg(long)]
        suffixes: bool,
    },
    /// Compare two builds, Pod start by Pod start, on two clusters side by side.
    Bench(Box<crate::verbs::bench::Bench>),
    /// Play scenarios that have a load, one at a time, and show how it stands and what was measured.
    Stress {
        /// Parts of their names.
        #[arg(required = true)]
        scenario: Vec<String>,
        /// Folder of scenarios.
        #[arg(long, default_value = "scenarios")]
        scenarios: PathBuf,
        /// Folder for logs, measurements and reports.
        #[arg(long, default_value = "target/reports/stress")]
        out: PathBuf,
        /// Decides when Pods arrive; 0 takes one from the kernel.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// How to say what happens: lines for people, or a JSON line for each thing.
        #[arg(long, value_enum, default_value = "text")]
        format: Format,
        /// Value of a parameter, `name=value`; may be repeated.
        #[arg(long, value_name = "NAME=VALUE", value_parser = pair)]
        param: Vec<(String, String)>,
        #[command(flatten)]
        at: At,
    },
    /// Make the reports of a run again from what it wrote down; also of one that was killed.
    Report {
        /// Its folder, or the `session.jsonl` in it.
        #[arg(default_value = "target/reports/e2e")]
        log: PathBuf,
        /// Folder for the reports; beside the log when absent.
        #[arg(long)]
        out: Option<PathBuf>,
        /// A flaky trial makes the exit code 4.
        #[arg(long)]
        flaky_fails: bool,
        /// In which form; may be repeated. JUnit, JSON, HTML and Markdown when absent.
        #[arg(long, value_enum, value_name = "FORM")]
        format: Vec<ReportForm>,
        /// A run of before (its folder, or the log in it): `comparison.html` shows what is not the same.
        #[arg(long, value_name = "FOLDER")]
        against: Option<PathBuf>,
        /// Send the traces to this OTLP collector, `http://HOST[:4318]`.
        #[arg(long, value_name = "URL")]
        otlp_endpoint: Option<crate::verbs::Endpoint>,
    },
    /// Search the runs of a scenario in the virtual world, one seed after the other, for one that fails, and shrink it.
    Explore {
        /// Name of the scenario.
        scenario: String,
        /// Folder of scenarios.
        #[arg(long, default_value = "scenarios")]
        scenarios: PathBuf,
        /// How many seeds.
        #[arg(long, default_value_t = 1000)]
        runs: u64,
        /// The first seed.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// How many at a time.
        #[arg(short, long, default_value_t = 2)]
        jobs: usize,
        /// Folder for the log of what was found.
        #[arg(long, default_value = "target/reports/explore")]
        out: PathBuf,
        /// Put a known fault into the node agent, to see that it is found.
        #[arg(long, hide = true)]
        mutant: bool,
    },
    /// Play known-bad changes to the components against the trials that are to notice them. Not in release builds.
    Mutants {
        /// Only these; all of them when absent.
        names: Vec<String>,
        /// Only a tenth.
        #[arg(long)]
        tenth: bool,
        /// Folder of scenarios.
        #[arg(long, default_value = "scenarios")]
        scenarios: PathBuf,
        /// How many trials at a time.
        #[arg(short, long, default_value_t = 2)]
        jobs: usize,
        /// Seed of every component's randomness.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Folder for logs and the table.
        #[arg(long, default_value = "target/reports/mutants")]
        out: PathBuf,
        /// Keep the table in this file too.
        #[arg(long, value_name = "FILE")]
        keep: Option<PathBuf>,
    },
    /// Write down the calls at a gRPC seam, play them against a plugin alone, or answer as they were answered.
    Tape {
        #[command(subcommand)]
        action: TapeAction,
    },
    /// Check scenarios without playing them.
    Lint {
        /// Folder of scenarios.
        #[arg(default_value = "scenarios")]
        scenarios: PathBuf,
        /// List the lints.
        #[arg(long)]
        list: bool,
        /// Say what a lint finds and why, with an example of each kind.
        #[arg(long, value_name = "ID")]
        explain: Option<String>,
        /// How to say it.
        #[arg(long, value_enum, default_value = "text")]
        format: Format,
    },
    /// Write documentation made from the scenarios: a page for each folder, and one of all.
    Docs {
        /// Folder of scenarios.
        #[arg(long, default_value = "scenarios")]
        scenarios: PathBuf,
        /// Folder for the pages.
        #[arg(long, default_value = "target/docs")]
        out: PathBuf,
    },
    /// Print the JSON schema of scenarios, for editors.
    Schema {
        /// That of step libraries instead.
        #[arg(long)]
        steps: bool,
        /// That of `report.json` instead.
        #[arg(long, conflicts_with = "steps")]
        report: bool,
        /// That of `quarantine.yaml` instead.
        #[arg(long, conflicts_with_all = ["steps", "report"])]
        quarantine: bool,
    },
    /// Write a new scenario to start from.
    New {
        /// Its name: the path below the scenario folder, without extension, e.g. `probes/slow-start`.
        scenario: String,
        /// Folder of scenarios.
        #[arg(long, default_value = "scenarios")]
        scenarios: PathBuf,
    },
    /// Tell what a scenario does, in prose.
    Explain {
        /// Its name, or part of the names of several.
        scenario: String,
        /// Folder of scenarios.
        #[arg(long, default_value = "scenarios")]
        scenarios: PathBuf,
    },
    /// Run the CRI runtime alone, in the caller's namespaces, for other judges and node agents.
    Cri {
        /// `unix:///path/to.sock`.
        #[arg(long, value_parser = unix)]
        listen: PathBuf,
        /// Folder for everything it keeps.
        #[arg(long)]
        root: PathBuf,
        /// Folder of CNI configuration.
        #[arg(long, default_value = "/etc/cni/net.d")]
        cni_conf_dir: PathBuf,
        /// Folders of CNI plugins; may be repeated.
        #[arg(long, default_value = "/opt/cni/bin")]
        cni_bin_dir: Vec<PathBuf>,
        /// Registry (`host` or `host:port`) spoken to in plain HTTP; may be repeated.
        #[arg(long)]
        plain_http: Vec<String>,
    },
    /// Run the CSI driver alone, for other judges and node agents.
    Csi {
        /// `unix:///path/to.sock`.
        #[arg(long, value_parser = unix)]
        listen: PathBuf,
        /// Folder for the volumes.
        #[arg(long)]
        root: PathBuf,
        /// Name of the node it claims to be on.
        #[arg(long, default_value = "node-1")]
        node: String,
    },
    /// Run as a CNI plugin: environment and standard input as the CNI specification says.
    Cni {
        /// Which plugin: bridge, host-local, loopback, portmap.
        plugin: String,
    },
}

/// Exit codes: 0 passed, 1 something failed, 2 could not run or the harness broke, 3 a run was invalid, 4 something was
/// flaky and that counts, 5 nothing was judged, 130 somebody ended it.
#[derive(Debug, Args)]
pub(crate) struct E2e {
    /// Only trials whose name contains one of these.
    pub(crate) filter: Vec<String>,
    /// Only those with this label; may be repeated.
    #[arg(long)]
    pub(crate) tag: Vec<String>,
    /// Only those of which this expression is true; it sees name, tags, world, intent, source, requires, nodes, faults.
    #[arg(long = "filter", value_name = "EXPR")]
    pub(crate) expression: Option<String>,
    /// Only the k-th of every n, `k/n`.
    #[arg(long, value_name = "K/N", value_parser = shard)]
    pub(crate) shard: Option<(usize, usize)>,
    /// Only those that did not pass last time.
    #[arg(long)]
    pub(crate) failed: bool,
    /// Only show what would be played.
    #[arg(long)]
    pub(crate) list: bool,
    /// Folder of scenarios.
    #[arg(long, default_value = "scenarios")]
    pub(crate) scenarios: PathBuf,
    /// Folder for logs and reports.
    #[arg(long, default_value = "target/reports/e2e")]
    pub(crate) out: PathBuf,
    /// How many at a time.
    #[arg(short, long, default_value_t = 2)]
    pub(crate) jobs: usize,
    /// Seed of every component's randomness; 0 takes one from the kernel.
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// Play everything this often, one round after the other.
    #[arg(long, visible_alias = "repeat", default_value_t = 1)]
    pub(crate) rounds: u32,
    /// Play round after round until something does not pass.
    #[arg(long)]
    pub(crate) until_fail: bool,
    /// Play a trial that does not pass again, this often at most; one that passes then is flaky.
    #[arg(long, default_value_t = 0)]
    pub(crate) retries: u32,
    /// A flaky trial makes the exit code 4.
    #[arg(long)]
    pub(crate) flaky_fails: bool,
    /// Begin no other trial after one that did not pass.
    #[arg(long)]
    pub(crate) fail_fast: bool,
    /// Keep the cluster of a trial that fails until somebody has looked at it.
    #[arg(long)]
    pub(crate) pause: bool,
    /// Only in this world; every scenario in the worlds it names when absent.
    #[arg(long, value_enum)]
    pub(crate) world: Option<World>,
    #[command(flatten)]
    pub(crate) at: At,
    /// How to say what happens: lines for people, or a JSON line for each thing.
    #[arg(long, value_enum, default_value = "text")]
    pub(crate) format: Format,
    /// Folder of recorded timelines; a scenario that keeps one fails when it is not the recorded one.
    #[arg(long, default_value = "reports/snapshots/timelines")]
    pub(crate) snapshots: PathBuf,
    /// Record the calls at a seam (`cri`, `csi`) of every node; may be repeated. The tapes are beside each trial's log.
    #[arg(long, value_name = "SEAM", value_parser = seam)]
    pub(crate) record: Vec<podlab_tape::Seam>,
    /// Value of a parameter of those scenarios that have it, `name=value`; may be repeated.
    #[arg(long, value_name = "NAME=VALUE", value_parser = pair)]
    pub(crate) param: Vec<(String, String)>,
}

/// Where trials of the real world are played.
#[derive(Debug, Args)]
pub(crate) struct At {
    /// On which kind of cluster; what a scenario needs and that has not is skipped with the reason.
    #[arg(long, value_enum, default_value = "embedded")]
    pub(crate) backend: Backend,
    #[command(flatten)]
    pub(crate) cluster: ClusterAt,
}

/// A cluster that is not ours.
#[derive(Debug, Clone, Args)]
pub(crate) struct ClusterAt {
    /// `kubeconfig`: the cluster; `$KUBECONFIG` when absent.
    #[arg(long, env = "KUBECONFIG", value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// `kubeconfig`: the context in it; the current one when absent.
    #[arg(long)]
    pub(crate) context: Option<String>,
    /// `kubeconfig`, `kind`: what stands there for an image of the scenarios, `FROM=TO`; `{trial}` in it is another word in
    /// each trial. May be repeated.
    #[arg(long, value_name = "FROM=TO")]
    pub(crate) image: Vec<podlab_runner::place::ImageRule>,
    /// `kubeconfig`: something it has that cannot be seen, e.g. `registry.private`; may be repeated.
    #[arg(long, value_name = "CAPABILITY")]
    pub(crate) has: Vec<podlab_scenario::Capability>,
    /// `kind`: image of the nodes.
    #[arg(long, value_name = "IMAGE")]
    pub(crate) node_image: Option<String>,
    /// `kind`: number of nodes.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=10))]
    pub(crate) kind_nodes: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Backend {
    /// A cluster of ours for each trial, on this host.
    Embedded,
    /// A cluster of ours for each trial, in a container of a Docker engine.
    Container,
    /// Namespaces of a cluster that is already there.
    Kubeconfig,
    /// Namespaces of a cluster that the program kind makes for the run.
    Kind,
}

/// Where one side of a comparison is played.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Side {
    /// As `e2e` plays it by itself.
    Embedded,
    /// The virtual world.
    Virtual,
    /// In a container.
    Container,
    /// A cluster that is already there.
    Kubeconfig,
    /// A cluster that kind makes.
    Kind,
}

/// Exit codes: 0 the timelines are the same, 1 they differ or a trial failed, 2 could not run.
#[derive(Debug, Args)]
pub(crate) struct Parity {
    /// Name of the scenario; with `--from` all that were played in both when absent.
    #[arg(required_unless_present = "from")]
    pub(crate) scenario: Option<String>,
    /// Where to play it; twice.
    #[arg(long, value_enum, num_args = 1, required_unless_present = "from")]
    pub(crate) on: Vec<Side>,
    /// Folder of an earlier `e2e` run to take the timelines from, instead of playing; twice.
    #[arg(long, value_name = "FOLDER", conflicts_with = "on")]
    pub(crate) from: Vec<PathBuf>,
    /// Folder of scenarios.
    #[arg(long, default_value = "scenarios")]
    pub(crate) scenarios: PathBuf,
    /// Folder for logs and the two timelines.
    #[arg(long, default_value = "target/reports/parity")]
    pub(crate) out: PathBuf,
    /// Seed of every component's randomness.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Compare what every place can see, what a watcher sees of the API, and not the calls inside.
    #[arg(long)]
    pub(crate) api_only: bool,
    #[command(flatten)]
    pub(crate) cluster: ClusterAt,
}

#[derive(Debug, Args)]
pub(crate) struct Up {
    #[command(flatten)]
    pub(crate) name: Name,
    /// Number of nodes.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=100))]
    pub(crate) nodes: u8,
    /// Where to write the kubeconfig.
    #[arg(long, default_value = "podlab.kubeconfig")]
    pub(crate) kubeconfig: PathBuf,
    /// Image archive (`docker save` or OCI layout) to put on every node; may be repeated.
    #[arg(long, value_name = "TAR")]
    pub(crate) image_archive: Vec<PathBuf>,
    /// CPUs each node reports.
    #[arg(long, default_value = "2", value_parser = cpu)]
    pub(crate) node_cpu: u64,
    /// Memory each node reports.
    #[arg(long, default_value = "4Gi", value_parser = bytes)]
    pub(crate) node_memory: u64,
    /// Port of 127.0.0.1 to forward to the same port of node-1; may be repeated.
    #[arg(long, value_name = "PORT")]
    pub(crate) publish: Vec<u16>,
    /// What an acknowledged write survives.
    #[arg(long, value_enum, default_value = "batch")]
    pub(crate) durable: Durable,
    /// User of private.registry.test.
    #[arg(long, default_value = "bench")]
    pub(crate) registry_user: String,
    /// Password of private.registry.test.
    #[arg(long, default_value = "s3cret")]
    pub(crate) registry_password: String,
    /// `KubeletConfiguration` file of the node agents.
    #[arg(long, value_name = "FILE")]
    pub(crate) kubelet_config: Option<PathBuf>,
    /// Flag of the node agents, `name=value` (e.g. `max-pods=20`); may be repeated, and wins over the file.
    #[arg(long, value_name = "NAME=VALUE")]
    pub(crate) kubelet_flag: Vec<String>,
    /// Whether the components keep a run log.
    #[arg(long, value_enum, default_value = "on")]
    pub(crate) run_log: OnOff,
    /// Make a phase slower on purpose, `MILESTONE=MICROSECONDS`, to see that a comparison finds it.
    #[arg(long, hide = true, value_name = "MILESTONE=MICROSECONDS", value_parser = pair)]
    pub(crate) plant: Option<(String, String)>,
    /// How the parts are kept apart.
    #[arg(long, value_enum, default_value = "process")]
    pub(crate) isolation: Isolation,
    /// Stay until somebody ends this process, and end the cluster then.
    #[arg(long)]
    pub(crate) foreground: bool,
    /// Everything about the cluster from a file, as a runner writes it for a cluster in a container.
    #[arg(long, value_name = "FILE", hide = true)]
    pub(crate) spec: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Durable {
    /// Memory only.
    Off,
    /// SIGKILL of any process.
    Batch,
    /// Power loss.
    Always,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnOff {
    /// Yes.
    On,
    /// No.
    Off,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Isolation {
    /// Each part in a process of its own.
    Process,
    /// Everything in one process.
    Thread,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum World {
    /// Real containers, the real clock.
    Real,
    /// Everything in one thread under a paused clock.
    Virtual,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people.
    Text,
    /// For programs.
    Json,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReportForm {
    /// `junit.xml`, as Jenkins and GitLab read it.
    Junit,
    /// `report.json`, for programs.
    Json,
    /// `report.html`, a page that stands alone.
    Html,
    /// `summary.md`, for what a CI shows beside a run.
    Markdown,
    /// `trace.json`, for ui.perfetto.dev.
    Perfetto,
    /// `otlp.json`, the body of an OTLP request.
    Otlp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// Columns.
    Table,
    /// JSON.
    Json,
}

#[derive(Debug, Subcommand)]
pub(crate) enum NodeAction {
    /// SIGKILL the node agent; containers live on.
    Kill(NodeName),
    /// SIGTERM the node agent; containers live on.
    Stop(NodeName),
    /// Start the node agent.
    Start(NodeName),
    /// Take the whole node down at once, as a power loss does.
    Crash(NodeName),
    /// Start a crashed node.
    Boot(NodeName),
    /// What a node holds for Pods, as JSON; for runners outside.
    #[command(hide = true)]
    Holdings(NodeName),
}

#[derive(Debug, Args)]
pub(crate) struct NodeName {
    /// Which node.
    pub(crate) node: String,
    #[command(flatten)]
    pub(crate) name: Name,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TapeAction {
    /// Stand between a caller and a plugin and write down what passes, until SIGTERM.
    Record {
        /// Which protocol.
        #[arg(value_parser = seam)]
        seam: podlab_tape::Seam,
        /// Where the caller connects, `unix:///path/to.sock`.
        #[arg(long, value_parser = unix)]
        listen: PathBuf,
        /// Where the plugin listens.
        #[arg(long, value_parser = unix)]
        plugin: PathBuf,
        /// The tape; one that is there is gone on with.
        #[arg(long)]
        out: PathBuf,
    },
    /// Play a tape against a plugin alone; 1 when it answers differently.
    Replay {
        /// The tape.
        tape: PathBuf,
        /// Where the plugin listens, `unix:///path/to.sock`.
        #[arg(long, value_parser = unix)]
        against: PathBuf,
        /// Paths that begin with /from begin with /to there, and what a caller prepares is prepared below it.
        #[arg(long, value_name = "/FROM=/TO", value_parser = moved)]
        moved: Option<(PathBuf, PathBuf)>,
    },
    /// Answer calls as the tape says, until SIGTERM.
    Serve {
        /// The tape.
        tape: PathBuf,
        /// Where to listen, `unix:///path/to.sock`.
        #[arg(long, value_parser = unix)]
        listen: PathBuf,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum ImageAction {
    /// Put archives on all nodes under their names.
    Load {
        /// `docker save` or OCI-layout archives.
        #[arg(required = true)]
        archives: Vec<PathBuf>,
        #[command(flatten)]
        name: Name,
    },
    /// Write the test image as an archive, for nodes that are not ours.
    Archive {
        /// The file.
        file: PathBuf,
        /// Its name in there.
        #[arg(long = "as", default_value = "registry.test/testimage:1")]
        name: String,
    },
    /// Put an archive's image into a registry of the cluster.
    Push {
        /// `docker save` or OCI-layout archive.
        archive: PathBuf,
        /// e.g. registry.test/app:1 or private.registry.test/app:1.
        reference: String,
        #[command(flatten)]
        name: Name,
    },
}

/// A seam that can be recorded.
fn seam(text: &str) -> Result<podlab_tape::Seam, String> {
    podlab_tape::Seam::of(text).ok_or_else(|| "there are cri and csi".to_owned())
}

/// Two paths, `FROM=TO`.
fn moved(text: &str) -> Result<(PathBuf, PathBuf), String> {
    match text.split_once('=') {
        Some((from, to)) if from.starts_with('/') && to.starts_with('/') => Ok((from.into(), to.into())),
        _ => Err("write it as /from=/to".to_owned()),
    }
}

/// CPUs as thousandths: `2`, `1500m`, `0.5`.
fn cpu(text: &str) -> Result<u64, String> {
    positive(podlab_testbed::parse_milli(text).map_err(|e| e.to_string())?)
}

/// `k/n` with 1 ≤ k ≤ n.
fn shard(text: &str) -> Result<(usize, usize), String> {
    let (k, n) = text.split_once('/').ok_or("write it as k/n, such as 1/3")?;
    match (k.parse(), n.parse()) {
        (Ok(k), Ok(n)) if 1 <= k && k <= n => Ok((k, n)),
        _ => Err("k and n are numbers, and k is between 1 and n".to_owned()),
    }
}

/// `name=value`.
fn pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write it as name=value")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// Bytes: `4Gi`, `512Mi`.
fn bytes(text: &str) -> Result<u64, String> {
    positive(podlab_testbed::parse_quantity(text).map_err(|e| e.to_string())?)
}

fn positive(n: i128) -> Result<u64, String> {
    u64::try_from(n).ok().filter(|n| *n > 0).ok_or_else(|| "must be greater than zero".to_owned())
}

/// A unix socket, given as `unix:///path` or as a path.
fn unix(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text.strip_prefix("unix://").unwrap_or(text));
    if path.is_absolute() { Ok(path) } else { Err("must be unix:///absolute/path".to_owned()) }
}
