//! What the user asks for.

use std::path::PathBuf;

use super::default_upstream;

/// Shown with every mistake in the arguments.
pub(crate) const USAGE: &str = "usage: cargo xtask conformance [FOCUS] [OPTIONS] [-- MORE FOR THE SUITE]
  FOCUS              regular expression over the names of the conformance specs; sig-node unless given
  --skip REGEX       leave out what matches
  --jobs N           how many at a time, 6 unless given; what is [Serial] is played alone, last
  --upstream DIR     folder with bin/e2e.test and images/*.tar; $PODLAB_UPSTREAM, or /var/tmp/podlab-upstream
  --name NAME        name of the cluster, conformance unless given
  --keep             leave the cluster up
  --kubeconfig FILE  play on this cluster, boot none";

/// Where to play.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// A cluster of ours of this name, made for the run.
    Fresh(String),
    /// The cluster of this kubeconfig.
    Cluster(PathBuf),
}

/// The arguments.
#[derive(Debug)]
pub(super) struct Options {
    pub focus: String,
    pub skip: Option<String>,
    pub jobs: usize,
    pub upstream: PathBuf,
    pub target: Target,
    pub keep: bool,
    /// Passed to the suite as they are.
    pub more: Vec<String>,
}

impl Options {
    /// Reads the arguments.
    ///
    /// # Errors
    /// A sentence and the usage.
    pub fn parse(args: &[String]) -> Result<Self, String> {
        let mut options = Self {
            focus: "sig-node".into(),
            skip: None,
            jobs: 6,
            upstream: default_upstream(),
            target: Target::Fresh("conformance".into()),
            keep: false,
            more: Vec::new(),
        };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let mut value = || args.next().cloned().ok_or_else(|| format!("{arg} needs a value\n{USAGE}"));
            match arg.as_str() {
                "--skip" => options.skip = Some(value()?),
                "--jobs" => {
                    let jobs = value()?.parse().ok().filter(|n| *n > 0);
                    options.jobs = jobs.ok_or_else(|| format!("--jobs needs a number above zero\n{USAGE}"))?;
                }
                "--upstream" => options.upstream = value()?.into(),
                "--name" => options.target = Target::Fresh(value()?),
                "--kubeconfig" => options.target = Target::Cluster(value()?.into()),
                "--keep" => options.keep = true,
                "--" => options.more.extend(args.by_ref().cloned()),
                flag if flag.starts_with('-') => return Err(format!("there is no option {flag}\n{USAGE}")),
                focus => options.focus = focus.to_owned(),
            }
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<Options, String> {
        Options::parse(&args.iter().map(|a| (*a).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn what_follows_two_dashes_is_for_the_suite() {
        let options = parse(&["sig-apps", "--jobs", "3", "--", "--v=4", "--keep"]).unwrap();
        assert_eq!((options.focus.as_str(), options.jobs, options.keep), ("sig-apps", 3, false));
        assert_eq!(options.more, ["--v=4", "--keep"]);
    }

    #[test]
    fn an_unknown_option_and_no_jobs_are_refused_with_the_usage() {
        for bad in [&["--job", "3"][..], &["--jobs", "0"], &["--skip"]] {
            assert!(parse(bad).unwrap_err().contains("usage: cargo xtask conformance"));
        }
    }
}
