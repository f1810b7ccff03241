// The first two words of Philox4x32-10 (src/aleator/core/philox.py).

const ROUNDS = 10

/** The upper 32 bits of the product of two words. */
function high(a, b) {
  const [ah, al, bh, bl] = [a >>> 16, a & 0xffff, b >>> 16, b & 0xffff]
  const middle = ah * bl + Math.floor((al * bl) / 0x10000)
  const other = al * bh + (middle % 0x10000)
  return ah * bh + Math.floor(middle / 0x10000) + Math.floor(other / 0x10000)
}

/** Of a counter of four words and a 64-bit key (Salmon et al. 2011). */
export function philox([c0, c1, c2, c3], key) {
  let [k0, k1] = [Number(key & 0xffffffffn), Number(key >> 32n)]
  for (let round = 0; round < ROUNDS; round++) {
    const [a, b] = [0xd2511f53, 0xcd9e8d57]
    ;[c0, c1, c2, c3] = [(high(b, c2) ^ c1 ^ k0) >>> 0, Math.imul(b, c2) >>> 0, (high(a, c0) ^ c3 ^ k1) >>> 0, Math.imul(a, c0) >>> 0]
    ;[k0, k1] = [(k0 + 0x9e3779b9) >>> 0, (k1 + 0xbb67ae85) >>> 0]
  }
  return [c0, c1]
}
