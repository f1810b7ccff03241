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

/** Whether there is an instruction for a multiply-add, and it rounds once: relaxed SIMD leaves that to the machine. */
function fuses() {
  // (func (export "f") (param f32 f32 f32) (result f32)): relaxed_madd of the three in all lanes, the first lane.
  const code = `0061736d01000000 0108 01 60037d7d7d017d 0302 0100 0705 01 01 66 0000
    0a16 01 1400 2000fd13 2001fd13 2002fd13 fd8502 fd1f00 0b`
  const bytes = Uint8Array.from(code.replace(/\s/g, '').match(/../g), (byte) => parseInt(byte, 16))
  if (!WebAssembly.validate(bytes)) return false
  const { f } = new WebAssembly.Instance(new WebAssembly.Module(bytes)).exports
  // Products whose last bits remain when their first are taken away; one that is half of the least float32, and one greater than any.
  const once = (a, b, c) => Object.is(f(a, b, c), Math.fround(a * b + c))
  const x = 1 + 2 ** -12
  return once(x, x, -1) && once(x, -x, 1) && once(2 ** -75, 2 ** -75, 2 ** -149) && f(2 ** 100, 2 ** 100, -Infinity) === -Infinity
}

/** Whether the module with these instructions runs. */
export const relaxed = fuses()
export const native = await start(await bytesOf(new URL(relaxed ? './aleator-relaxed.wasm' : './aleator.wasm', import.meta.url)))
