//! The suites: one test binary per audience, each a `libtest-mimic` program under `tests/`.
