// Brings a model's file into the native code's memory, part by part: first those with its metadata, so that a wrong file
// is refused before the others come.
import { CutShort, GGUF } from './gguf.js'
import { Kept } from './kept.js'
import { AleatorError } from './native.js'
import { native } from './runtime.js'
import { opened } from './source.js'

/** Bytes of a part, and of metadata at most. */
export const SIZES = { part: 8 << 20, metadata: 256 << 20 }

/** Errors of files that are of no use, so that they are not kept. */
const WRONG = ['FileFormatError', 'UnsupportedModel', 'TokenizerError']

/**
 * What `made` makes of the file, a GGUF whose tensors are not there yet; completed when all bytes are.
 * how: onProgress, called with (bytes, all bytes); signal, an AbortSignal; keep: on the browser's disk, if it has one;
 * stallTimeout and maxRetryAfter: ranges.js.
 */
export async function readFile(source, { onProgress, signal, keep, ...waits }, made) {
  signal?.throwIfAborted()
  const stop = new AbortController()
  const abort = () => stop.abort(signal.reason)
  signal?.addEventListener('abort', abort, { once: true })
  let file, kept, data
  try {
    const last = keep ? await Kept.ofSource(source, SIZES.part) : null
    file = await opened(source, SIZES.part, { ...waits, signal: stop.signal, tries: last ? 0 : undefined }).catch((error) => {
      if (!last || error.name !== 'DownloadError') throw error
      return last // the server is out of reach
    })
    data = new native.NativeArray(Uint8Array, file.size)
    kept = keep ? await Kept.ofFile(file, SIZES.part) : null
    const parts = new Parts(file, kept, data, { onProgress, stop })
    const begun = await parts.metadata(made)
    await parts.all()
    await begun.complete()
    if (signal?.aborted) begun.free()
    signal?.throwIfAborted()
    return begun
  } catch (error) {
    stop.abort(error)
    data?.free()
    if (WRONG.includes(error?.name)) await kept?.forget()
    throw signal?.aborted ? signal.reason : error
  } finally {
    signal?.removeEventListener('abort', abort)
    await file?.close()
  }
}

class Parts {
  constructor(file, kept, data, { onProgress, stop }) {
    Object.assign(this, { file, kept, data, onProgress, stop, next: 0, bytes: 0 })
    this.count = Math.ceil(data.length / SIZES.part)
  }
  /** What is made of the file when enough of its parts are there for the metadata. */
  async metadata(made) {
    for (let wanted = 1; ; wanted *= 2) {
      while (this.next < Math.min(wanted, this.count)) await this.read(this.next++)
      try {
        return made(new GGUF(this.data, this.bytes))
      } catch (error) {
        if (!(error instanceof CutShort)) throw error
        if (this.bytes >= SIZES.metadata)
          throw new AleatorError('FileFormatError', `${this.file.name}: its metadata take more than ${SIZES.metadata} bytes: the file is damaged`)
      }
    }
  }
  /** The other parts, several at once; the first error stops all. */
  async all() {
    const reader = async () => {
      while (this.next < this.count && !this.stop.signal.aborted) await this.read(this.next++)
    }
    const stopping = (error) => this.stop.abort(error)
    await Promise.all(Array.from({ length: this.file.atOnce }, () => reader().catch(stopping)))
    this.stop.signal.throwIfAborted()
  }
  async read(number) {
    const { file, data, kept, stop } = this
    const begin = number * SIZES.part
    const end = Math.min(begin + SIZES.part, data.length)
    const known = await kept?.part(number, end - begin)
    let at = begin
    for await (const chunk of known ? [known] : file.read(begin, end)) {
      stop.signal.throwIfAborted()
      data.array.set(chunk, at)
      at += chunk.length
      this.bytes += chunk.length
      this.onProgress(this.bytes, data.length)
    }
    if (at < end) throw new AleatorError('FileFormatError', `${file.name} ended after ${at} of ${data.length} bytes: load it again`)
    if (kept && !known) await kept.put(number, data.array.slice(begin, end))
  }
}
