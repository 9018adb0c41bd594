//! One watch: first the history it asked for, then what happens, in revision order, without gaps or repeats.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
};

use futures::Stream;
use tokio::sync::mpsc;

use crate::{Event, StoreError, store::Inner};

/// A stream of the changes under one prefix. Ends with [`StoreError::Slow`] when its reader fell too far behind, and
/// without an error when the store is closed. Dropping it at any point is safe.
#[derive(Debug)]
pub struct Watcher {
    pub(crate) id: u64,
    pub(crate) resource: Box<str>,
    pub(crate) backlog: VecDeque<Arc<Event>>,
    pub(crate) receiver: mpsc::Receiver<Arc<Event>>,
    pub(crate) slow: Arc<AtomicBool>,
    pub(crate) store: Weak<Inner>,
}

impl Watcher {
    /// Asks for an event of kind `Progress`, delivered after everything that has happened so far.
    pub fn request_progress(&self) {
        if let Some(store) = self.store.upgrade() {
            store.state.read().progress(&self.resource, self.id);
        }
    }

    /// The next event; `None` when the store is closed. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<Result<Arc<Event>, StoreError>> {
        std::future::poll_fn(|cx| Pin::new(&mut *self).poll_next(cx)).await
    }
}

impl Stream for Watcher {
    type Item = Result<Arc<Event>, StoreError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(event) = self.backlog.pop_front() {
            return Poll::Ready(Some(Ok(event)));
        }
        Poll::Ready(match ready!(self.receiver.poll_recv(cx)) {
            Some(event) => Some(Ok(event)),
            None => self.slow.swap(false, Ordering::AcqRel).then_some(Err(StoreError::Slow)),
        })
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        if let Some(store) = self.store.upgrade() {
            let mut state = store.state.write();
            if let Some(watchers) = state.watchers.get_mut(&self.resource) {
                watchers.retain(|w| w.id != self.id);
            }
        }
    }
}
