"""onnxruntime-web in a headless browser that loads only what we serve on loopback: webgpu, webnn and wasm."""
