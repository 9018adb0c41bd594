//! The server's HTTPS face: connections, requests, content negotiation, discovery, and what is passed on to nodes.

pub(crate) mod answer;
mod body;
mod discovery;
mod dispatch;
mod health;
pub(crate) mod node_client;
mod openapi;
mod proxy;
mod request;
mod resource;
pub(crate) mod serve;
mod streams;
mod watch;
mod websocket;
