//! A seeded random stream (`SplitMix64`): small, fast, good enough for jitter, names and tie-breaks; not for secrets.

use std::{
    io::Read,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

/// A shared seeded stream. Clones draw from the same stream; [`Rng::fork`] makes an independent one.
#[derive(Debug, Clone)]
pub struct Rng(Arc<AtomicU64>);

const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

impl Rng {
    /// The stream of a seed.
    pub fn seeded(seed: u64) -> Self {
        Self(Arc::new(AtomicU64::new(seed)))
    }

    /// A stream seeded from the kernel, for runs nobody asked to replay.
    ///
    /// # Panics
    /// When `/dev/urandom` cannot be read: nothing on such a machine could be trusted.
    pub fn from_entropy() -> Self {
        let mut seed = [0; 8];
        std::fs::File::open("/dev/urandom")
            .and_then(|mut f| f.read_exact(&mut seed))
            .expect("/dev/urandom is readable");
        Self::seeded(u64::from_le_bytes(seed))
    }

    /// An independent stream for a component; the same label always gives the same stream of this state.
    #[must_use]
    pub fn fork(&self, label: &str) -> Self {
        let hash =
            label.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
        Self::seeded(mix(self.0.load(Ordering::Relaxed) ^ hash))
    }

    /// The next 64 bits.
    pub fn next_u64(&self) -> u64 {
        mix(self.0.fetch_add(GOLDEN, Ordering::Relaxed).wrapping_add(GOLDEN))
    }

    /// A number in `0..bound`; 0 for an empty range.
    pub fn below(&self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.next_u64() % bound }
    }

    /// A number in `[0, 1)`.
    pub fn unit(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "53 bits fit a double exactly")]
        let n = (self.next_u64() >> 11) as f64;
        n / 9_007_199_254_740_992.0
    }

    /// A random (version 4) UUID in its usual spelling.
    pub fn uuid(&self) -> String {
        let (a, b) = (self.next_u64(), self.next_u64());
        format!(
            "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
            a >> 32,
            (a >> 16) & 0xffff,
            a & 0xfff,
            0x8000 | ((b >> 48) & 0x3fff),
            b & 0xffff_ffff_ffff
        )
    }

    /// `n` characters of Kubernetes' name alphabet. Source: k/k staging/src/k8s.io/apimachinery/pkg/util/rand/rand.go.
    pub fn name_suffix(&self, n: usize) -> String {
        const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
        (0..n).map(|_| char::from(ALPHABET[usize::try_from(self.below(27)).unwrap_or(0)])).collect()
    }
}

/// The finalizer of `SplitMix64`.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_seed_gives_one_stream_and_forks_differ() {
        let (a, b) = (Rng::seeded(7), Rng::seeded(7));
        assert_eq!(a.fork("x").next_u64(), b.fork("x").next_u64());
        assert_ne!(a.fork("x").next_u64(), b.fork("y").next_u64());
        assert_eq!(a.next_u64(), b.next_u64());
        assert_eq!(a.uuid().len(), 36);
    }
}
