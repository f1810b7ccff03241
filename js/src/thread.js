// A worker that is a thread of the native code (threads.js): it calls one function, which ends with the pool.
import { system } from './system.js'

const port = globalThis.postMessage ? globalThis : (await import('node:worker_threads')).parentPort
let wasm

function begin({ compiled, memory }) {
  const refuse = () => {
    throw new Error('threads have no values of JavaScript')
  }
  const js = new Proxy({}, { get: () => refuse })
  wasm = new WebAssembly.Instance(compiled, { js, ...system(memory, () => wasm, null) }).exports
  port.postMessage('ready')
}

function run({ thread, number, given, stack }) {
  wasm.stackRestore(stack)
  wasm._emscripten_thread_init(thread, 0, 0, 1, 0)
  wasm.emscripten_tls_init()
  let result = 0
  try {
    result = wasm.__indirect_function_table.get(number)(given)
  } catch (error) { // an instruction has failed
    console.error(error)
    wasm.stackRestore(stack)
    wasm.thread_ends()
  }
  wasm._emscripten_thread_exit(result)
}

port.onmessage = ({ data }) => (data.compiled ? begin(data) : run(data))
