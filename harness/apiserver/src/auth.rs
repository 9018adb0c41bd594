//! Who may do what: authentication by certificate and token, authorization by group and role, and the review kinds.

pub(crate) mod authenticate;
pub(crate) mod rbac;
pub(crate) mod reviews;
pub(crate) mod token;
