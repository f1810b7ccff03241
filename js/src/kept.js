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

/** The bytes of all parts; null: the model is removed meanwhile, in another tab. */
async function bytesIn(inside) {
  let bytes = 0
  try {
    for await (const [name, file] of inside.entries()) if (/^\d+$/.test(name)) bytes += (await file.getFile()).size
  } catch {
    return null
  }
  return bytes
}

/** Models of URLs that are on the browser's disk, all or in part: [{ url, size, bytes }]. */
export async function keptModels() {
  const found = []
  for await (const { url, size, inside } of models(await folder())) if (inside) found.push({ url, size, bytes: await bytesIn(inside) })
  return found.filter(({ bytes }) => bytes !== null)
}

/** Remove what is kept of a URL. */
export async function forgetModel(url) {
  await forget(String(address(url)))
}

async function forget(url, but) {
  const all = await folder()
  const names = []
  for await (const each of models(all)) if ((each.url ?? url) === url && each.name !== but) names.push(each.name)
  for (const name of names) await remove(all, name)
}

const remove = (all, name) => all.removeEntry(name, { recursive: true }).catch(() => {}) // it is open, here or in another tab

/** One file; a source itself, once all of its parts are there. */
export class Kept {
  atOnce = 1
  constructor(all, folder, inside, { url, size }) {
    Object.assign(this, { all, folder, inside, url, name: url, size })
  }
  /** The file of a URL as it was last, in parts of this size; null: it is not here, or not whole. */
  static async ofSource(source, part) {
    if (typeof source !== 'string' && !(source instanceof URL)) return null
    const all = await folder()
    for await (const { inside, name, ...about } of models(all)) {
      if (!inside || about.url !== String(address(source)) || about.part !== part) continue
      if ((await bytesIn(inside)) === about.size) return new Kept(all, name, inside, about)
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
      return new Kept(all, name, inside, about)
    } catch {
      return null
    }
  }
  /** A part of this size; null: it is not here, or cannot be read. */
  async part(number, size) {
    try {
      const file = await fileOf(this.inside, number)
      return file.size === size ? new Uint8Array(await file.arrayBuffer()) : null
    } catch {
      return null
    }
  }
  /** Keep a part; a disk that is full keeps nothing of the model. */
  async put(number, bytes) {
    if (this.full) return
    await write(this.inside, number, bytes).catch(() => (this.full = true))
    if (this.full) await this.forget() // by the last of the parts that are written at once: until then the folder may be open
  }
  /** Remove it; another version of the file may have its own place by now. */
  forget() {
    return remove(this.all, this.folder)
  }
  async *read() {
    throw new AleatorError('DownloadError', `${this.url}: the server cannot be reached, and the browser has removed a part that it kept: load it again`)
  }
  close() {}
}
