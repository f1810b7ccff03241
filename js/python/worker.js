/** @file Python in a worker: runs the code that it is sent, and says what that prints. */

import { loadPyodide } from "./pyodide.mjs";
import wheels from "./wheels.js";

const here = (name) => new URL(name, import.meta.url).href;
let loaded = null;

async function load() {
  const python = await loadPyodide({ indexURL: here("./") });
  await python.loadPackage(wheels.map(here), { messageCallback: () => {} });
  for (const set of ["setStdout", "setStderr"]) {
    const decoder = new TextDecoder();
    const write = (bytes) => {
      postMessage({ text: decoder.decode(bytes, { stream: true }) });
      return bytes.length;
    };
    python[set]({ write });
  }
  return python;
}

onmessage = async ({ data }) => {
  let usable = true;
  try {
    if (!loaded) postMessage({ text: "Loading Python ...\n" });
    const python = await (loaded ??= load());
    await python.runPythonAsync(data, { globals: python.toPy({ __name__: "__main__" }) });
    python.pyimport("sys").stdout.flush(); // of a line that has not ended
  } catch (error) {
    usable = error.name === "PythonError"; // Python goes on after its own errors
    postMessage({ text: String(error.message ?? error) });
  }
  postMessage({ ended: true, usable });
};
