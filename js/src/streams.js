/** The chunks of a stream, which is cancelled when no more are wanted; Safari's streams are no async iterables. */
export async function* streamed(body) {
  const reader = body.getReader()
  try {
    for (let part; !(part = await reader.read()).done; ) yield part.value
  } finally {
    await reader.cancel().catch(() => {}) // one that failed fails again
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
