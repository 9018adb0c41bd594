//! Compiles the protocol files to Rust without `protoc`; maps are ordered, so that no hash order reaches an output.
//! Messages of the CSI also derive serde, so that they can be written down.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(["proto/csi.proto", "proto/pluginregistration.proto"], ["proto"])?;
    tonic_prost_build::configure()
        .btree_map(".")
        .type_attribute(".csi.v1", "#[derive(serde::Serialize, serde::Deserialize)]")
        .message_attribute(".csi.v1", "#[serde(default)]")
        .compile_fds(descriptors)?;
    Ok(())
}
