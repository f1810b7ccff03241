// A file by HTTP: in ranges where the server gives them (RFC 9110, section 14), else in one go.
import { AleatorError } from './native.js'
import { readerOf, Stalled, streamed, waited, within } from './streams.js'

/** Tries of the first request and of a range after one that failed; milliseconds before the second, then twice as many. */
export const RETRIES = { first: 2, range: 5, wait: 500 }
/** Bytes at most of a file whose length the server does not say. */
export const UNKNOWN = { most: 2 ** 32 }
/** Milliseconds: without a byte before a request is made again; of a server's Retry-After that are waited for at most. */
export const WAITS = { stallTimeout: 30_000, maxRetryAfter: 60_000 }
/** The longest that timers wait. */
export const LONGEST_WAIT = 2 ** 31 - 1
const AT_ONCE = 4
const BUSY = [408, 425, 429, 500, 502, 503, 504]

const failed = (message) => new AleatorError('DownloadError', message)

/** The file of a URL, its first bytes on the way.  how: signal; tries after one that failed; WAITS. */
export async function remote(url, first, { tries = RETRIES.first, ...how }) {
  const attempts = new Attempts(url, tries, how)
  for (;;) {
    try {
      return await asked(url, first, how)
    } catch (error) {
      await attempts.after(error)
    }
  }
}

async function asked(url, first, how) {
  const response = await get(url, { Range: `bytes=0-${first - 1}` }, how)
  if (response.status === 206 && !encoded(response)) {
    const range = rangeOf(response)
    if (range) return new Ranged(url, response, checked(url, range, 0, first), how)
  }
  if (response.status === 416) {
    drop(response)
    if (response.headers.get('content-range') === 'bytes */0') return { name: String(url), size: 0, atOnce: 1, close() {} }
  }
  if (response.status === 200) return whole(url, response, how)
  drop(response)
  return whole(url, await get(url, {}, how), how) // ranges that cannot be read here
}

/** A response with what was asked for, or a refusal of ranges. */
async function get(url, headers, how) {
  // A range from an earlier visit may be another version's.
  const response = await requested(url, { headers, cache: headers.Range ? 'no-store' : 'default' }, how)
  const { status, statusText } = response
  if (response.ok || (status === 416 && headers.Range)) return response
  drop(response)
  const told = `${status} ${statusText}`.trim()
  throw BUSY.includes(status) ? Object.assign(new Error(told), { pause: pauseOf(response) }) : new AleatorError('ModelNotFound', `${url}: ${told}`)
}

/** A response, of whose body nothing was read yet. */
async function requested(url, request, { signal, stallTimeout }) {
  signal.throwIfAborted()
  const stop = new AbortController()
  const abort = () => stop.abort(signal.reason)
  signal.addEventListener('abort', abort)
  try {
    return await within(stallTimeout, fetch(url, { ...request, signal: stop.signal }))
  } catch (error) {
    stop.abort() // it may still be on its way
    throw error
  } finally {
    signal.removeEventListener('abort', abort)
  }
}

/** For how many milliseconds a server asks not to be asked: Retry-After, in seconds or as a date (RFC 9110, section 10.2.3). */
function pauseOf({ headers }) {
  const told = headers.get('retry-after') ?? ''
  if (/^\d{1,9}$/.test(told)) return 1000 * Number(told)
  const now = Date.parse(headers.get('date')) || Date.now()
  return /GMT$/.test(told) ? Math.max(0, Date.parse(told) - now) || 0 : 0
}

const drop = (response) => void response.body?.cancel().catch(() => {})
const encoded = (response) => (response.headers.get('content-encoding') ?? 'identity') !== 'identity'
const versionOf = (response) => response.headers.get('etag') ?? response.headers.get('last-modified')

/** Which bytes of how many a response has; null: it does not say, or not to this page. */
function rangeOf(response) {
  const told = response.headers.get('content-range')
  if (told === null || /^bytes \d+-\d+\/\*$/.test(told)) return null
  const [, begin, last, size] = /^bytes (\d{1,15})-(\d{1,15})\/(\d{1,15})$/.exec(told) ?? []
  return { told, begin: Number(begin), end: Number(last) + 1, size: Number(size) }
}

/** A range, which begins where it should, and has bytes, no more than were asked for. */
function checked(url, range, begin, end) {
  if (range.begin === begin && begin < range.end && range.end <= Math.min(end, range.size)) return range
  throw failed(`${url}: the server answers with the Content-Range ${range.told}, asked for bytes ${begin} to ${end - 1}: load the file from another server`)
}

/** Counts failures; those of the network are waited for, up to a limit. */
class Attempts {
  constructor(url, most, { signal, maxRetryAfter }) {
    Object.assign(this, { url, most, signal, maxRetryAfter, made: 0 })
  }
  async after(error) {
    const { url, maxRetryAfter, signal } = this
    signal.throwIfAborted()
    if (error instanceof AleatorError) throw error
    const why = error.cause?.message || error.message
    const { pause = 0 } = error
    if (pause > maxRetryAfter)
      throw failed(`${url} cannot be read now: ${why}; the server asks for ${pause} ms of patience (Retry-After), more than maxRetryAfter=${maxRetryAfter}: load it again after that, or give a larger maxRetryAfter`)
    if (this.made++ === this.most) throw failed(`${url} cannot be read, tried ${this.made} times: ${why}: ${remedy(error)}`)
    await waited(Math.max(pause, RETRIES.wait * 2 ** (this.made - 1)), signal)
  }
}

/** What to do about an error that remains. */
const remedy = (error) => `load it again${error instanceof Stalled ? ', or give a larger stallTimeout' : ' later'}`

/** A file whose ranges the server gives. */
class Ranged {
  atOnce = AT_ONCE
  constructor(url, response, { end, size }, how) {
    Object.assign(this, { url, name: String(url), size, how, version: versionOf(response), begun: { response, end } })
    // Other sites are asked for ranges only: this header would need their leave.
    const here = !globalThis.location || new URL(response.url || url).origin === globalThis.location.origin
    const named = this.version && !this.version.startsWith('W/')
    this.headers = here && named ? { 'If-Range': this.version } : {}
  }
  async *read(begin, end) {
    const attempts = new Attempts(this.url, RETRIES.range, this.how)
    for (let at = begin; at < end; ) {
      try {
        const { response, end: last } = await this.range(at, end)
        for await (const chunk of streamed(response.body, this.how.signal, this.how.stallTimeout)) {
          if (chunk.length > last - at) throw failed(`${this.url}: the server sends more bytes than it said: load the file from another server`)
          at += chunk.length
          yield chunk
        }
        if (at < last) throw new Error(`bytes from ${at} to ${last - 1} did not come`)
      } catch (error) {
        await attempts.after(error)
      }
    }
  }
  /** A response with the bytes from `begin`, and where they end. */
  async range(begin, end) {
    const { begun } = this
    this.begun = null
    if (begun && begin === 0) return begun
    if (begun) drop(begun.response)
    const response = await get(this.url, { ...this.headers, Range: `bytes=${begin}-${end - 1}` }, this.how)
    const range = response.status === 206 ? rangeOf(response) : null
    const version = versionOf(response)
    // Without a range: it is another file than before, or one that is shorter.
    if (!range || (version && version !== this.version) || range.size !== this.size) {
      drop(response)
      throw failed(`${this.url}: the file changed while it was loaded, or the server gives no ranges any more: load it again`)
    }
    return { response, end: checked(this.url, range, begin, end).end }
  }
  close() {
    if (this.begun) drop(this.begun.response)
  }
}

/** All of a file; where nobody says how long it is, once it has come. */
async function whole(url, response, { signal, stallTimeout }) {
  const size = Number(response.headers.get('content-length'))
  if (size && !encoded(response)) return new Sequential(url, response, size, readerOf(response.body, signal, stallTimeout))
  const chunks = []
  let came = 0
  if (response.body)
    for await (const chunk of streamed(response.body, signal, stallTimeout)) {
      came += chunk.length
      if (came > UNKNOWN.most) throw new AleatorError('MemoryError', `${url}: more than ${UNKNOWN.most} bytes came, and the server does not say how many there are: load the file from another server`)
      chunks.push(chunk)
    }
  const all = new Blob(chunks)
  return { name: String(url), size: all.size, atOnce: 1, read: (begin, end) => streamed(all.slice(begin, end).stream(), signal), close() {} }
}

/** A file that comes once, from its beginning to its end. */
class Sequential {
  atOnce = 1
  constructor(url, response, size, reader) {
    Object.assign(this, { url, name: String(url), size, version: versionOf(response), at: 0, reader })
  }
  async *read(begin, end) {
    while (this.at < end) {
      const chunk = this.rest ?? (await this.more())
      const skipped = Math.max(0, Math.min(chunk.length, begin - this.at))
      const taken = chunk.subarray(skipped, Math.max(skipped, Math.min(chunk.length, end - this.at)))
      const used = skipped + taken.length
      this.rest = used < chunk.length ? chunk.subarray(used) : undefined
      this.at += used
      if (taken.length) yield taken
    }
  }
  async more() {
    const broken = (why, error) => failed(`${this.url}: ${why} after ${this.at} of ${this.size} bytes, and the server gives no ranges of it: ${remedy(error)}`)
    const { value, done } = await this.reader.read().catch((error) => {
      throw broken(error instanceof Stalled ? error.message : 'the connection broke', error)
    })
    if (done) throw broken('the file ended')
    return value
  }
  close() {
    return this.reader.close()
  }
}
