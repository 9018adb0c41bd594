//! `tape`: recording a seam, playing a tape against a plugin, serving one in its place.

use std::{fs::File, path::Path, process::ExitCode};

use anyhow::{Context, Result};
use podlab_clock::Clock;
use podlab_tape::{Patience, Recorder, SocketTarget, Tape};
use tokio_util::sync::CancellationToken;

use crate::{cli::TapeAction, out::say};

pub(crate) fn act(action: TapeAction) -> Result<ExitCode> {
    match action {
        TapeAction::Record { seam, listen, plugin, out } => {
            let file = File::options().create(true).append(true).open(&out);
            let file = file.with_context(|| format!("open {}", out.display()))?;
            let recorder = Recorder::begin(file, &out, seam, Clock::real())?;
            until_told(|stop| async move { podlab_tape::record(&listen, &plugin, recorder, stop).await })
        }
        TapeAction::Serve { tape, listen } => {
            let tape = Tape::read(&tape)?;
            until_told(|stop| async move { podlab_tape::serve(tape, &listen, stop).await })
        }
        TapeAction::Replay { tape, against, moved } => {
            let read = Tape::read(&tape)?;
            let done = super::cluster::runtime()?.block_on(async {
                let target = SocketTarget::new(&against, read.seam)?;
                let patience = Patience::default();
                Ok::<_, anyhow::Error>(
                    podlab_tape::replay(&read, &target, moved.as_ref(), Clock::real(), patience).await,
                )
            })?;
            shown(&tape, &done);
            Ok(ExitCode::from(u8::from(!done.differences.is_empty())))
        }
    }
}

fn shown(tape: &Path, done: &podlab_tape::Replayed) {
    for d in &done.differences {
        say!("call {}, {}:", d.call, d.method);
        d.what.iter().for_each(|what| say!("  {what}"));
    }
    say!("{}: {} calls, {} answered differently", tape.display(), done.calls, done.differences.len());
}

/// Serves until SIGTERM or Ctrl-C.
fn until_told<F: Future<Output = Result<(), podlab_tape::WireError>>>(
    serve: impl FnOnce(CancellationToken) -> F,
) -> Result<ExitCode> {
    super::cluster::runtime()?.block_on(async {
        let stop = CancellationToken::new();
        let mut term = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
        tokio::select! {
            result = serve(stop.clone()) => result?,
            _ = term.recv() => stop.cancel(),
            _ = tokio::signal::ctrl_c() => stop.cancel(),
        }
        Ok(ExitCode::SUCCESS)
    })
}
