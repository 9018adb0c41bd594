//! What fault effects mean, whichever world a tap is in: a call made twice, a stream that ends early or comes slowly.

use std::time::Duration;

use futures::{StreamExt, stream::BoxStream};
use podlab_clock::Clock;
use podlab_fault::Effect;

/// gRPC's `UNAVAILABLE`: what a caller sees of a server whose answer did not arrive.
pub(crate) const UNAVAILABLE: u32 = 14;

/// A call as it would be without a fault, or twice in a row; the last answer counts.
pub(crate) async fn made<T, E, F: Future<Output = Result<T, E>>>(
    effect: Option<&Effect>,
    make: impl Fn() -> F,
) -> Result<T, E> {
    if matches!(effect, Some(Effect::Duplicate)) {
        // The first answer is what the caller never hears of.
        let _ = make().await;
    }
    make().await
}

/// A stream as a fault leaves it. One that is cut ends as if the server had closed it.
pub(crate) fn disturbed<T: Send + 'static>(
    stream: BoxStream<'static, T>,
    effect: Option<&Effect>,
    clock: Clock,
) -> BoxStream<'static, T> {
    match effect {
        Some(Effect::Truncate { after }) => stream.take(usize::try_from(*after).unwrap_or(usize::MAX)).boxed(),
        Some(Effect::SlowTrickle { ms }) => {
            let pause = Duration::from_millis(*ms);
            stream
                .then(move |item| async move {
                    clock.sleep(pause).await;
                    item
                })
                .boxed()
        }
        _ => stream,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use futures::stream;

    use super::*;

    #[tokio::test]
    async fn a_duplicated_call_is_made_twice_and_the_second_answer_counts() {
        let calls = AtomicU32::new(0);
        let make = || async { Ok::<_, ()>(calls.fetch_add(1, Ordering::Relaxed) + 1) };
        assert_eq!(made(Some(&Effect::Duplicate), make).await, Ok(2));
        assert_eq!(made(None, make).await, Ok(3));
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_ends_after_its_parts_or_comes_slowly() {
        let clock = Clock::virtual_from("2026-01-01T00:00:00Z".parse().unwrap());
        let all = || stream::iter(1..=5).boxed();
        let cut = disturbed(all(), Some(&Effect::Truncate { after: 2 }), clock);
        assert_eq!(cut.collect::<Vec<_>>().await, [1, 2]);
        let before = clock.now();
        let slow = disturbed(all(), Some(&Effect::SlowTrickle { ms: 300 }), clock);
        assert_eq!(slow.count().await, 5);
        assert_eq!(clock.now().since(before), Duration::from_millis(1500));
        assert_eq!(disturbed(all(), None, clock).count().await, 5);
    }
}
