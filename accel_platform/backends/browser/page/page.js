// The page's side of the browser backend: runs onnxruntime-web and times it. What is run when, Python decides.

const base = new URL("..", import.meta.url).href;
let ort, provider, files, inputNames, symbols, session, sessionOptions, feeds, last;

// The runtime writes to the console, whose functions it keeps as it starts: ours can be told to note lines instead.
let lines;
for (const level of ["debug", "info", "log", "warn", "error"]) {
  const write = console[level].bind(console);
  console[level] = (...words) => (lines ? lines.push(words.join(" ")) : write(...words));
}

async function bytes(path) {
  const answer = await fetch(base + path);
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
  return answer.arrayBuffer();
}

function described(info) {
  const names = ["vendor", "architecture", "device", "description", "driver", "backend", "type", "isFallbackAdapter"];
  return Object.fromEntries(names.map((name) => [name, info[name] ?? null]));
}

async function webgpu() {
  if (!navigator.gpu) return { error: "this browser has no WebGPU" };
  const adapter = await navigator.gpu.requestAdapter({ powerPreference: "high-performance" });
  return adapter ? described(adapter.info) : { error: "WebGPU finds no adapter" };
}

async function webnn() {
  if (!navigator.ml) return { error: "this browser has no WebNN" };
  let refusal;
  for (const deviceType of ["npu", "gpu", "cpu"]) {
    try {
      await navigator.ml.createContext({ deviceType });
      return { deviceType };
    } catch (error) {
      refusal = String(error);
    }
  }
  return { error: refusal };
}

// The smallest step that performance.now() makes.
function resolution_ms() {
  const steps = [];
  for (let i = 0; i < 500; i++) {
    const before = performance.now();
    let after = before;
    while (after === before) after = performance.now();
    steps.push(after - before);
  }
  return Math.min(...steps);
}

window.bench = {
  async look() {
    const { userAgent: agent } = navigator;
    return { agent, isolated: crossOriginIsolated, resolution_ms: resolution_ms(), webgpu: await webgpu(), webnn: await webnn() };
  },

  async start({ script, threads, executionProvider }) {
    ort = await import(`${base}runtime/${script}`);
    ort.env.wasm.numThreads = threads;
    ort.env.wasm.wasmPaths = `${base}runtime/`;
    ort.env.webgpu.powerPreference = "high-performance";
    provider = executionProvider;
    return ort.env.versions.web;
  },

  // Fetch the model and have the runtime read it, which starts the runtime; nothing is optimised or placed yet.
  async read({ names }) {
    files = await Promise.all(names.map(async (path) => ({ path, data: new Uint8Array(await bytes(`model/${path}`)) })));
    const read = await create({ executionProviders: ["wasm"], graphOptimizationLevel: "disabled" });
    inputNames = [...read.inputNames];
    symbols = Object.fromEntries(read.inputMetadata.map((input) => [input.name, input.shape]));
    await read.release();
  },

  // A session for exactly these shapes: every symbolic dimension is given its value.
  async compile({ shapes }) {
    await session?.release();
    session = undefined;
    const freeDimensionOverrides = {};
    for (const name of inputNames) {
      symbols[name].forEach((size, axis) => {
        if (typeof size === "string") freeDimensionOverrides[size] = shapes[name][axis];
      });
    }
    sessionOptions = { executionProviders: [provider], graphOptimizationLevel: "all", freeDimensionOverrides };
    session = await create(sessionOptions);
  },

  // What the runtime says of placing each node. The session is made again for it, as one that talks also runs slower;
  // later runs are of this one.
  async place() {
    await session.release();
    lines = [];
    try {
      session = await create({ ...sessionOptions, logSeverityLevel: 0 });
      return lines.filter((line) => line.includes("VerifyEachNodeIsAssignedToAnEp"));
    } finally {
      lines = undefined;
    }
  },

  // Inputs stay in the page's memory, as a page's do: a run takes them to the device and the outputs back.
  async bind({ inputs }) {
    // An exporter may have found an input to be unused and dropped it.
    const wanted = inputs.filter(({ name }) => inputNames.includes(name));
    const arrays = { float32: Float32Array, int64: BigInt64Array };
    const tensors = wanted.map(async ({ name, type, shape }) => {
      if (!(type in arrays)) throw new Error(`the page takes no input of type ${type}, which ${name} has`);
      return [name, new ort.Tensor(type, new arrays[type](await bytes(`given/${name}`)), shape)];
    });
    feeds = Object.fromEntries(await Promise.all(tensors));
  },

  // One forward pass and the reading back of its outputs, in milliseconds.
  async run() {
    const start = performance.now();
    const outputs = await session.run(feeds);
    for (const name of session.outputNames) await outputs[name].getData();
    const end = performance.now();
    last = outputs;
    return end - start;
  },

  async outputs() {
    const described = [];
    for (const name of session.outputNames) {
      const data = await last[name].getData();
      const floats = data instanceof Float32Array ? data : Float32Array.from(data, Number);
      await fetch(`${base}taken/${name}`, { method: "POST", body: floats });
      described.push({ name, shape: [...last[name].dims] });
    }
    return described;
  },

  // What the runtime itself says it runs on: without isolation it takes one thread, whatever it was told.
  async confirm() {
    const device = provider === "webgpu" ? await ort.env.webgpu.device : null;
    return { threads: ort.env.wasm.numThreads, adapter: device ? described(device.adapterInfo) : null };
  },
};

function create(options) {
  const [model, ...externalData] = files;
  return ort.InferenceSession.create(model.data, { externalData, ...options });
}
