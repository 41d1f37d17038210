"""onnxruntime-web in a headless Chromium that loads only what we serve on loopback: webgpu, webnn and wasm."""
