/** Nothing came for as long as is waited for it. */
export class Stalled extends Error {}

/** What a promise gives; Stalled where that takes longer than so many milliseconds. */
export function within(milliseconds, promise) {
  if (milliseconds === Infinity) return promise
  let timer
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Stalled(`nothing came for ${milliseconds} ms`)), milliseconds)
  })
  return Promise.race([promise, late]).finally(() => clearTimeout(timer))
}

/**
 * A stream's `read`, which waits so many milliseconds for a chunk, and `close`; a signal closes it, as Node leaves a read
 * pending that is aborted after the last byte.
 */
export function readerOf(body, signal, timeout = Infinity) {
  const reader = body.getReader()
  const close = () => {
    signal?.removeEventListener('abort', close)
    return reader.cancel().catch(() => {}) // one that failed fails again
  }
  signal?.addEventListener('abort', close)
  if (signal?.aborted) close()
  return { read: () => within(timeout, reader.read()), close }
}

/** The chunks of a stream, which is cancelled when no more are wanted; Safari's streams are no async iterables. */
export async function* streamed(body, signal, timeout) {
  const reader = readerOf(body, signal, timeout)
  try {
    for (let part; !(part = await reader.read()).done; ) yield part.value
  } finally {
    await reader.close()
  }
}

/** Wait; a signal ends the waiting with its reason. */
export function waited(milliseconds, signal) {
  return new Promise((resolve, reject) => {
    const stop = () => {
      clearTimeout(timer)
      reject(signal.reason)
    }
    const timer = setTimeout(() => {
      signal.removeEventListener('abort', stop)
      resolve()
    }, milliseconds)
    if (signal.aborted) stop()
    else signal.addEventListener('abort', stop, { once: true })
  })
}
