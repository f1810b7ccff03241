// Threads of native code: workers, which have its memory.
import { AleatorError } from './native.js'

export const MOST_THREADS = 32
/** Looks in which threads did nothing, ten a second, after which they count as gone: browsers do not tell. */
export const LOST = { looks: 200 }

/**
 * Whether workers can have memory in common with this thread, and it may wait for them: not in a page that is not
 * isolated, nor in a page's own thread.
 */
export function mayShare() {
  return typeof SharedArrayBuffer === 'function' && (globalThis.crossOriginIsolated ?? true) && !globalThis.document
}

/** How many threads a decoder has where nobody says: half of the processors, at most four. */
export async function usualThreads() {
  const processors = globalThis.navigator?.hardwareConcurrency ?? (await import('node:os')).availableParallelism()
  return Math.min(4, Math.max(1, Math.floor(processors / 2)))
}

export class Threads {
  constructor(compiled, memory) {
    this.shared = { compiled, memory }
    this.waiting = [] // workers without a thread
    this.running = new Map() // by their threads
  }
  /** Workers for a pool of n threads, one of which is the caller. */
  async workers(n) {
    const made = []
    try {
      const Worker = globalThis.Worker ?? (await import('node:worker_threads')).Worker
      while (made.length < n - 1) made.push(new Worker(new URL('./thread.js', import.meta.url), { type: 'module' }))
      await Promise.all(made.map((worker) => this.started(worker)))
    } catch (error) {
      made.forEach((worker) => worker.terminate())
      throw new AleatorError('RuntimeError', `threads=${n}: a worker did not start (${error.message ?? 'its script was not read'}): give threads: 1`)
    }
    made.forEach((worker) => worker.unref?.()) // a program may end while they wait
    return made
  }
  /** What `made` makes, with these workers for its threads; a worker that gets none ends. */
  within(workers, made) {
    this.waiting = workers
    try {
      return made()
    } finally {
      this.waiting.forEach((worker) => worker.terminate())
      this.waiting = []
    }
  }
  started(worker) {
    return new Promise((resolve, reject) => {
      if (worker.on) {
        worker.on('message', resolve).on('error', reject).on('exit', () => reject(new Error('it ended')))
      } else {
        worker.onmessage = resolve
        worker.onerror = reject
      }
      worker.postMessage(this.shared)
    })
  }
  /** Have a worker call the function of this number; false: there is none. */
  begin(wasm, thread, number, given) {
    const worker = this.waiting.pop()
    if (!worker) return false
    this.running.set(thread, worker)
    worker.postMessage({ thread, number, given, stack: wasm.stack_of(thread) })
    return true
  }
  /** Whether threads that did nothing in so many looks are gone. */
  lost(looks) {
    return looks >= LOST.looks
  }
  terminate(thread) {
    this.running.get(thread)?.terminate()
    this.running.delete(thread)
  }
  /** Free what a thread had that has ended. */
  end(wasm, thread) {
    wasm._emscripten_thread_free_data(thread)
    this.terminate(thread)
  }
}
