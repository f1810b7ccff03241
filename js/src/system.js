// What native code asks of its host: memory, the time, threads.  Names are those of emscripten's C library.
import { AleatorError } from './native.js'

const PAGE = 2 ** 16
const STACK = 2 ** 20 // of a thread
/** What a thread takes at most: its stack, its description and its variables. */
export const THREAD_BYTES = STACK + 2 ** 13
const EAGAIN = 6
const ENOSYS = 52

/** What an instance over this memory imports; `exports` gives what it exports, and `threads` begins and ends threads. */
export function system(memory, exports, threads) {
  const view = () => new DataView(memory.buffer)
  const none = () => ENOSYS
  const time = (at, milliseconds) => {
    view().setBigInt64(at >>> 0, BigInt(Math.floor(milliseconds / 1000)), true)
    view().setInt32((at >>> 0) + 8, Math.round((milliseconds % 1000) * 1e6), true)
    return 0
  }
  const env = {
    memory,
    clock_gettime: (clock, at) => time(at, performance.now()),
    emscripten_get_now: () => performance.now(),
    emscripten_resize_heap(size) {
      const missing = Math.ceil(((size >>> 0) - memory.buffer.byteLength) / PAGE)
      try {
        if (missing > 0) memory.grow(missing)
        return 1
      } catch {
        return 0
      }
    },
    emscripten_memcpy_big(to, from, n) {
      new Uint8Array(memory.buffer).copyWithin(to >>> 0, from >>> 0, (from >>> 0) + (n >>> 0))
      return to
    },
    _emscripten_default_pthread_stack_size: () => STACK,
    __emscripten_init_main_thread_js(thread) {
      exports()._emscripten_thread_init(thread, 0, 1, 1, 0)
      exports().first_thread()
    },
    __pthread_create_js: (thread, attributes, begin, given) => threads.begin(exports(), thread, begin, given) ? 0 : EAGAIN,
    __emscripten_thread_cleanup: (thread) => threads.end(exports(), thread),
    threads_are_lost: (looks) => Number(threads.lost(looks)),
    end_thread: (thread) => threads.terminate(thread),
    emscripten_check_blocking_allowed() {},
    _tzset_js() {},
  }
  const wasi = {
    environ_sizes_get(count, size) {
      view().setInt32(count >>> 0, 0, true)
      view().setInt32(size >>> 0, 0, true)
      return 0
    },
    environ_get: () => 0,
    proc_exit(code) {
      throw new AleatorError('RuntimeError', `the native code ended with ${code}`)
    },
  }
  const anything = (known) => new Proxy(known, { get: (all, name) => all[name] ?? none, has: () => true })
  return { wasi_snapshot_preview1: anything(wasi), env: anything(env) }
}
