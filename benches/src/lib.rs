//! Criterion benches; each is a file beside this folder, and `podlab-stats` has the words criterion lacks.
