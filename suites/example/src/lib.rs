//! Nothing: the scenarios are the tests.
