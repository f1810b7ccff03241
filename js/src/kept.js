// Models of URLs that the browser keeps on its disk (OPFS), in parts: a download that was interrupted goes on with those
// that are missing.  A model is a folder with about.json and a file for each part, named by its number.
import { AleatorError } from './native.js'
import { address } from './source.js'

const FOLDER = 'aleator-downloads'
const ABOUT = 'about.json'

/** The folder of all models; null: there are no files here, as in Node or a private window. */
async function folder() {
  try {
    const all = await (await navigator.storage.getDirectory()).getDirectoryHandle(FOLDER, { create: true })
    return 'createWritable' in FileSystemFileHandle.prototype ? all : null
  } catch {
    return null
  }
}

const fileOf = async (inside, name) => (await inside.getFileHandle(String(name))).getFile()

async function write(inside, name, content) {
  const writable = await (await inside.getFileHandle(String(name), { create: true })).createWritable()
  await writable.write(content)
  await writable.close() // the file is there now, or as it was before
}

/** The models that are kept: their names in the folder, and what is known of them. */
async function* models(all) {
  if (!all) return
  for await (const [name, inside] of all.entries()) {
    try {
      yield { name, inside, ...JSON.parse(await (await fileOf(inside, ABOUT)).text()) }
    } catch {
      yield { name } // begun, and not more
    }
  }
}

async function bytesIn(inside) {
  let bytes = 0
  for await (const [name, file] of inside.entries()) if (name !== ABOUT) bytes += (await file.getFile()).size
  return bytes
}

/** Models of URLs that are on the browser's disk, all or in part: [{ url, size, bytes }]. */
export async function keptModels() {
  const found = []
  for await (const { url, size, inside } of models(await folder())) if (inside) found.push({ url, size, bytes: await bytesIn(inside) })
  return found
}

/** Remove what is kept of a URL. */
export async function forgetModel(url) {
  await forget(String(address(url)))
}

async function forget(url, but) {
  const all = await folder()
  const names = []
  for await (const each of models(all)) if ((each.url ?? url) === url && each.name !== but) names.push(each.name)
  for (const name of names) await all.removeEntry(name, { recursive: true }).catch(() => {}) // another tab has it open
}

/** One file; a source itself, once all of its parts are there. */
export class Kept {
  atOnce = 1
  constructor(inside, { url, size }) {
    Object.assign(this, { inside, url, name: url, size })
  }
  /** The file of a URL as it was last, in parts of this size; null: it is not here, or not whole. */
  static async ofSource(source, part) {
    if (typeof source !== 'string' && !(source instanceof URL)) return null
    for await (const { inside, name, ...about } of models(await folder())) {
      if (!inside || about.url !== String(address(source)) || about.part !== part) continue
      if ((await bytesIn(inside)) === about.size) return new Kept(inside, about)
    }
    return null
  }
  /** The place of this version of a file, begun where there is none; null: it cannot be kept. */
  static async ofFile(file, part) {
    if (file instanceof Kept) return file
    const { url, version, size } = file
    const all = version ? await folder() : null
    if (!all) return null
    const about = { url: String(url), version, size, part }
    const digest = await crypto.subtle.digest('SHA-256', new TextEncoder().encode(JSON.stringify(about)))
    const name = Array.from(new Uint8Array(digest, 0, 16), (byte) => byte.toString(16).padStart(2, '0')).join('')
    try {
      await forget(about.url, name)
      const inside = await all.getDirectoryHandle(name, { create: true })
      await write(inside, ABOUT, JSON.stringify(about))
      return new Kept(inside, about)
    } catch {
      return null
    }
  }
  /** A part of this size; null: it is not here. */
  async part(number, size) {
    const file = await fileOf(this.inside, number).catch(() => null)
    return file?.size === size ? file : null
  }
  /** Keep a part; a disk that is full keeps nothing of the model. */
  async put(number, bytes) {
    if (this.full) return
    await write(this.inside, number, bytes).catch(() => {
      this.full = true
      return this.forget()
    })
  }
  forget() {
    return forget(this.url)
  }
  async *read() {
    throw new AleatorError('DownloadError', `${this.url}: the server cannot be reached, and the browser has removed a part that it kept: load it again`)
  }
  close() {}
}
