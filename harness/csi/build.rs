//! Compiles the protocol files to Rust without `protoc`; maps are ordered, so that no hash order reaches an output.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(["proto/csi.proto", "proto/pluginregistration.proto"], ["proto"])?;
    tonic_prost_build::configure().btree_map(".").compile_fds(descriptors)?;
    Ok(())
}
