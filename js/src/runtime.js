// The native code, started once when the package is imported.
import { start } from './native.js'

/** The bytes behind a URL of this package, or of a page's files. */
export async function bytesOf(url) {
  if (url.protocol === 'file:') {
    const { readFile } = await import('node:fs/promises')
    return readFile(url)
  }
  const response = await fetch(url)
  if (!response.ok) throw new Error(`${url}: ${response.status} ${response.statusText}`)
  return new Uint8Array(await response.arrayBuffer())
}

export const native = await start(await bytesOf(new URL('./aleator.wasm', import.meta.url)))
