// The native code, started once when the package is imported.
import { AleatorError, start } from './native.js'
import { system, THREAD_BYTES } from './system.js'
import { mayShare, Threads } from './threads.js'

const PAGES = { initial: 256, maximum: 65536 } // of memory, as the module says
// In the module: the import of env.memory, with a maximum, shared.
const SHARED = [3, ...new TextEncoder().encode('env'), 6, ...new TextEncoder().encode('memory'), 2, 3]

/** The bytes behind a URL of this package, or of a page's files. */
export async function bytesOf(url) {
  if (url.protocol === 'file:') {
    const { readFile } = await import('node:fs/promises')
    return readFile(url)
  }
  const response = await fetch(url)
  if (!response.ok) throw new Error(`${url}: ${response.status} ${response.statusText}`)
  return new Uint8Array(await response.arrayBuffer())
}

/** Whether there are the instructions of relaxed SIMD, and a multiply-add rounds once, which is left to the machine. */
function fuses() {
  // f and d of three numbers: relaxed_madd, and relaxed_dot_i8x16_i7x16_add_s, of these in all lanes; the first lane.
  const code = `0061736d01000000 010f 02 60037d7d7d017d 60037f7f7f017f 0303 020001 0709 02 01660000 01640001
    0a2b 02 1400 2000fd13 2001fd13 2002fd13 fd8502 fd1f00 0b 1400 2000fd0f 2001fd0f 2002fd11 fd9302 fd1b00 0b`
  const bytes = Uint8Array.from(code.replace(/\s/g, '').match(/../g), (byte) => parseInt(byte, 16))
  if (!WebAssembly.validate(bytes)) return false
  const { f, d } = new WebAssembly.Instance(new WebAssembly.Module(bytes)).exports
  // Products whose last bits remain when their first are taken away; one that is half of the least float32, and one greater than any.
  const once = (a, b, c) => Object.is(f(a, b, c), Math.fround(a * b + c))
  const x = 1 + 2 ** -12
  if (d(-127, 127, 5) !== 5 - 4 * 127 * 127 || d(127, 127, 0) !== 4 * 127 * 127) return false
  return once(x, x, -1) && once(x, -x, 1) && once(2 ** -75, 2 ** -75, 2 ** -149) && f(2 ** 100, 2 ** 100, -Infinity) === -Infinity
}

/** Memory that workers can have in common; or, as that takes a place for 4 GiB, memory of this thread alone. */
function newMemory() {
  try {
    if (mayShare()) return [new WebAssembly.Memory({ ...PAGES, shared: true }), true]
  } catch {}
  return [new WebAssembly.Memory(PAGES), false]
}

/** Have a module import memory that is not shared: its instructions are the same. */
function unshare(bytes) {
  const at = bytes.findIndex((_, i) => SHARED.every((byte, k) => bytes[i + k] === byte))
  if (at < 0) throw new Error('the module imports no shared memory: build it with make wasm')
  bytes[at + SHARED.length - 1] = 1
}

/** Whether the module with these instructions runs. */
export const relaxed = fuses()
const [memory, shared] = newMemory()
const bytes = await bytesOf(new URL(relaxed ? './aleator-relaxed.wasm' : './aleator.wasm', import.meta.url))
if (!shared) unshare(bytes)
const compiled = await WebAssembly.compile(bytes)
const threads = new Threads(compiled, memory)
export const native = await start(compiled, memory, (exports) => system(memory, exports, threads))

/** A pool of n threads; of one where memory cannot be shared.  The numbers that it computes are the same. */
export async function threadPool(n) {
  if (!shared) return new native.ThreadPool(1)
  const workers = await threads.workers(n)
  return threads.within(workers, () => {
    if (n > 1) makeRoom(n)
    return new native.ThreadPool(n)
  })
}

/** Have memory for the threads, as the C library does not look whether there is. */
function makeRoom(n) {
  const bytes = (n - 1) * THREAD_BYTES
  try {
    new native.NativeArray(Uint8Array, bytes).free()
  } catch {
    throw new AleatorError('MemoryError', `threads=${n}: their ${bytes} bytes do not fit into WebAssembly's memory of at most 4 GiB: give fewer`)
  }
}
