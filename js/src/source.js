// Where a model's bytes come from: bytes, a File or another Blob, a path in Node, or a URL.  A source has a `name`, its
// `size`, how many parts may be read at once (`atOnce`), `read(begin, end)`, which gives chunks of just these bytes,
// and `close`; one that can be kept on the browser's disk has a `version`, which changes with the file.
import { AleatorError, parameterError } from './native.js'
import { remote } from './ranges.js'
import { streamed } from './streams.js'

const CHUNK = 1 << 20 // bytes of a file that are read at once

/** Open a source; of a URL the first bytes, as many as `first`, are asked for at once; how: ranges.js. */
export async function opened(source, first, how) {
  if (source instanceof ArrayBuffer) return memory(new Uint8Array(source))
  if (ArrayBuffer.isView(source)) return memory(new Uint8Array(source.buffer, source.byteOffset, source.byteLength))
  if (typeof Blob !== 'undefined' && source instanceof Blob) return ofBlob(source)
  const url = address(source)
  return url && url.protocol !== 'file:' ? remote(url, first, how) : ofPath(url ?? source)
}

/** The URL that a source names; null: it is a path. */
export function address(source) {
  if (typeof source !== 'string' && !(source instanceof URL)) throw parameterError('source: give a URL, a path, a File, or the bytes')
  const isUrl = source instanceof URL || /^(https?|blob|data|file):/i.test(source)
  if (!isUrl && !globalThis.document && !globalThis.location) return null
  try {
    return new URL(source, globalThis.location?.href)
  } catch {
    throw parameterError(`source=${source}: it is no URL, such as https://example.org/model.gguf: mend it`)
  }
}

const memory = (bytes) => ({
  name: 'source', size: bytes.length, atOnce: 1, close() {},
  async *read(begin, end) {
    yield bytes.subarray(begin, end)
  },
})

const ofBlob = (blob) => ({
  name: blob.name ?? 'source', size: blob.size, atOnce: 1, close() {},
  read: (begin, end) => streamed(blob.slice(begin, end).stream()),
})

async function ofPath(path) {
  const { open } = await import('node:fs/promises')
  const file = await open(path).catch((error) => {
    throw error.code === 'ENOENT' ? new AleatorError('ModelNotFound', `${path}: there is no such file`) : error
  })
  const { size } = await file.stat()
  return {
    name: String(path), size, atOnce: 1, close: () => file.close(),
    async *read(begin, end) {
      for (let at = begin, n; at < end; at += n) {
        const chunk = new Uint8Array(Math.min(CHUNK, end - at))
        n = (await file.read(chunk, 0, chunk.length, at)).bytesRead
        if (!n) return
        yield chunk.subarray(0, n)
      }
    },
  }
}
