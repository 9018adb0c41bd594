//! The API server: one generic resource machine over the store, served over HTTPS to clients and by plain method calls
//! to the components of the same process.
//!
//! A kind is a row ([`kinds`]): names, scope, subresources and strategy functions. A request, from either side, is
//! defaulted, admitted, validated and stored by the same functions ([`machine`]). What a row cannot say — patch
//! formats, authentication, tables, discovery, streaming to nodes — has a module each.

mod admission;
mod auth;
mod bootstrap;
mod context;
mod errors;
mod field;
mod http;
mod kinds;
mod local;
mod machine;
mod names;
mod normalize;
mod patch;
pub mod pki;
mod pod;
mod selector;
mod server;
mod table;
mod tree;
mod upkeep;
mod wire;

pub use http::serve::{ServeError, Tls};
pub use server::{ApiServer, ApiServerConfig, StartError};
