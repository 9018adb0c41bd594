//! Compiles `proto/runtime.proto` to Rust without `protoc`. Messages also derive serde, so that state files and verbose
//! answers are readable JSON; maps are ordered, so that no hash order reaches an output.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto/runtime.proto");
    let descriptors = protox::compile(["proto/runtime.proto"], ["proto"])?;
    tonic_prost_build::configure()
        .btree_map(".")
        .type_attribute(".", "#[derive(serde::Serialize, serde::Deserialize)]")
        .message_attribute(".", "#[serde(default)]")
        .compile_fds(descriptors)?;
    Ok(())
}
