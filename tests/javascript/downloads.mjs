// Models by HTTP, from a server that does as a test says, with a disk for pages in memory.
import { readFile } from 'node:fs/promises'
import { createServer } from 'node:http'
import { gzipSync } from 'node:zlib'
import { tried } from './doing.mjs'

/** A folder of the browser's disk; a full one takes no more bytes, and a folder with a file that is written stays. */
class Folder {
  kind = 'directory'
  files = new Map()
  constructor(disk) {
    this.disk = disk
  }
  async getDirectoryHandle(name, { create } = {}) {
    if (!this.files.has(name) && create) this.files.set(name, new Folder(this.disk))
    return this.found(name)
  }
  async getFileHandle(name, { create } = {}) {
    if (!this.files.has(name) && create) this.files.set(name, new FileHandle(this.disk))
    return this.found(name)
  }
  found(name) {
    if (!this.files.has(name)) throw new DOMException(name, 'NotFoundError')
    return this.files.get(name)
  }
  async removeEntry(name) {
    const { files } = this.found(name)
    if ([...(files?.values() ?? [])].some((file) => file.writers)) throw new DOMException(name, 'NoModificationAllowedError')
    this.files.delete(name)
  }
  async *entries() {
    yield* [...this.files]
  }
}

class FileHandle {
  kind = 'file'
  content = new Blob([])
  writers = 0
  constructor(disk) {
    this.disk = disk
  }
  async getFile() {
    return this.content
  }
  async createWritable() {
    const parts = []
    this.writers++
    return {
      write: async (part) => {
        if (part.length <= this.disk.left) return void parts.push(part)
        this.writers--
        throw new DOMException('full', 'QuotaExceededError')
      },
      close: async () => {
        await new Promise((resolve) => setTimeout(resolve, 1))
        this.content = new Blob(parts)
        this.disk.left -= this.content.size
        this.writers--
      },
    }
  }
}

/** Give this program such a disk, of so many bytes. */
function addDisk(left) {
  const root = new Folder({ left })
  Object.defineProperty(globalThis, 'navigator', { value: { storage: { getDirectory: async () => root } }, configurable: true })
  globalThis.FileSystemFileHandle = FileHandle
}

/**
 * Answers with the data; `does`: ranges, length and etag, the usual, and gzip; at the number of a request: statuses, contentRanges,
 * etags from then on, pauses, what Retry-After says, and after so many bytes breaks and stalls
 * (-1: before its headers); cancels: after a moment the user does.
 */
function answer(request, response, data, does, number) {
  const [, from, to] = /^bytes=(\d+)-(\d+)$/.exec(request.headers.range ?? '') ?? []
  const { ranges = true, length = true, etags = {}, statuses = {}, contentRanges = {}, breaks = {}, pauses = {}, stalls = {} } = does
  const changes = Object.keys(etags).map(Number).filter((n) => n <= number)
  const etag = changes.length ? etags[Math.max(...changes)] : does.etag === undefined ? '"first"' : does.etag
  if (etag) response.setHeader('ETag', etag)
  if (does.gzip) {
    response.setHeader('Content-Encoding', 'gzip')
    data = gzipSync(data)
  }
  if (stalls[number] < 0) return
  if (pauses[number]) response.setHeader('Retry-After', pauses[number])
  if (does.date) response.setHeader('Date', does.date)
  if (statuses[number]) return response.writeHead(statuses[number]).end()
  const known = request.headers['if-range']
  let body = data
  if (ranges && from && (!known || known === etag)) {
    if (Number(from) >= data.length) return response.writeHead(416, { 'Content-Range': `bytes */${data.length}` }).end()
    body = data.subarray(Number(from), Number(to) + 1)
    response.statusCode = 206
    const told = contentRanges[number] ?? `bytes ${from}-${Number(from) + body.length - 1}/${data.length}`
    if (told) response.setHeader('Content-Range', told)
  }
  if (length) response.setHeader('Content-Length', body.length)
  else response.flushHeaders() // else Node adds the length
  if (stalls[number] !== undefined) return response.write(body.subarray(0, stalls[number]))
  if (breaks[number] === undefined) return response.end(body)
  response.write(body.subarray(0, breaks[number]), () => setTimeout(() => response.destroy(), 20))
}

/** Have no waiting of the package take longer than a moment; which there were, in milliseconds, but for the time-outs. */
function hurried(timeout) {
  const waits = []
  const { setTimeout: real } = globalThis
  globalThis.setTimeout = (f, milliseconds, ...more) => {
    const own = new Error().stack.includes('/streams.js')
    if (!own || milliseconds === timeout || milliseconds < 100) return real(f, milliseconds, ...more)
    waits.push(milliseconds)
    return real(f, 1, ...more)
  }
  return waits
}

/** One loading: what it ends in, what was asked for, and what was told. */
async function loaded({ load }, url, stop, { cancelAt, ...options }) {
  const told = []
  const onProgress = (bytes, all) => {
    told.push([bytes, all])
    if (bytes >= cancelAt) stop.abort()
  }
  const made = await tried(async () => {
    const model = await load(url, { ...options, onProgress, signal: stop.signal })
    const text = await model.generate('ROMEO:', { seed: 4, maxTokens: 8 }).text()
    model.free()
    return { text }
  })
  return { ...made, grows: told.every(([bytes], i) => !i || bytes > told[i - 1][0]), last: told.at(-1) ?? null }
}

/** The deed: what is kept after `code`, which has Kept, on a disk of so many bytes. */
export const kept = (aleator, folder) => async ({ disk, code }) => {
  const { Kept } = await import(`${folder}kept.js`)
  addDisk(disk)
  await new AsyncFunction('Kept', code)(Kept)
  return (await aleator.keptModels()).map(({ size, bytes }) => [size, bytes])
}
const AsyncFunction = (async () => {}).constructor

/** The deed: loads, one after the other, from a server; `file`: bytes in place of the model's; `disk`: how many it takes; `sizes`: of parts. */
export const downloads = (aleator, folder) => async ({ path, loads, file, disk, sizes, hurry }) => {
  const { SIZES } = await import(`${folder}loading.js`)
  const { RETRIES, UNKNOWN } = await import(`${folder}ranges.js`)
  Object.assign(SIZES, { part: 1 << 20, ...sizes })
  RETRIES.wait = 1
  UNKNOWN.most = sizes?.unknown ?? UNKNOWN.most
  if (disk) addDisk(disk)
  const waits = hurry ? hurried(hurry) : []
  const data = file === undefined ? await readFile(path) : Buffer.from(file, 'base64')
  let does = {}
  let asked = []
  let stop
  const server = createServer((request, response) => {
    asked.push(request.headers.range ?? 'all')
    if (does.cancels) setTimeout(() => stop.abort(), 30)
    answer(request, response, data, does, asked.length - 1)
  })
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve))
  const url = `http://127.0.0.1:${server.address().port}/a.gguf`
  const results = []
  for (const { server: next = {}, forget, ...options } of loads) {
    does = next
    asked = []
    if (does.away) server.closeAllConnections(), await new Promise((resolve) => server.close(resolve))
    if (forget) await aleator.forgetModel(url)
    stop = new AbortController()
    const made = await loaded(aleator, url, stop, options)
    const kept = (await aleator.keptModels()).map(({ size, bytes }) => [size, bytes])
    results.push({ ...made, message: made.message?.replace(url, 'URL'), asked, kept, waits: waits.splice(0) })
  }
  server.closeAllConnections()
  server.close()
  return results
}
