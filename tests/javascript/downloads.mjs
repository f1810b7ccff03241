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
 * etags from then on, and breaks, after so many bytes.
 */
function answer(request, response, data, does, number) {
  const [, from, to] = /^bytes=(\d+)-(\d+)$/.exec(request.headers.range ?? '') ?? []
  const { ranges = true, length = true, etags = {}, statuses = {}, contentRanges = {}, breaks = {} } = does
  const changes = Object.keys(etags).map(Number).filter((n) => n <= number)
  const etag = changes.length ? etags[Math.max(...changes)] : does.etag === undefined ? '"first"' : does.etag
  if (etag) response.setHeader('ETag', etag)
  if (does.gzip) {
    response.setHeader('Content-Encoding', 'gzip')
    data = gzipSync(data)
  }
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
  if (breaks[number] === undefined) return response.end(body)
  response.write(body.subarray(0, breaks[number]), () => setTimeout(() => response.destroy(), 20))
}

/** One loading: what it ends in, what was asked for, and what was told. */
async function loaded({ load }, url, { cancelAt, ...options }) {
  const told = []
  const stop = new AbortController()
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
export const downloads = (aleator, folder) => async ({ path, loads, file, disk, sizes }) => {
  const { SIZES } = await import(`${folder}loading.js`)
  const { RETRIES, UNKNOWN } = await import(`${folder}ranges.js`)
  Object.assign(SIZES, { part: 1 << 20, ...sizes })
  RETRIES.wait = 1
  UNKNOWN.most = sizes?.unknown ?? UNKNOWN.most
  if (disk) addDisk(disk)
  const data = file === undefined ? await readFile(path) : Buffer.from(file, 'base64')
  let does = {}
  let asked = []
  const server = createServer((request, response) => {
    asked.push(request.headers.range ?? 'all')
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
    const made = await loaded(aleator, url, options)
    const kept = (await aleator.keptModels()).map(({ size, bytes }) => [size, bytes])
    results.push({ ...made, message: made.message?.replace(url, 'URL'), asked, kept })
  }
  server.closeAllConnections()
  server.close()
  return results
}
