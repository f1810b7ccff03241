// SHA-256, which pages without HTTPS lack, and the ids of calls that it makes (src/aleator/chat/reply.py).

const primes = []
for (let n = 2; primes.length < 64; n++) if (primes.every((p) => n % p)) primes.push(n)
const fraction = (x) => Math.floor((x % 1) * 2 ** 32)
const ROOTS = primes.map((p) => fraction(Math.cbrt(p)))
const START = primes.slice(0, 8).map((p) => fraction(Math.sqrt(p)))
const turned = (x, n) => (x >>> n) | (x << (32 - n))

export function sha256(bytes) {
  const data = new Uint8Array(Math.ceil((bytes.length + 9) / 64) * 64)
  data.set(bytes)
  data[bytes.length] = 0x80
  const view = new DataView(data.buffer)
  view.setBigUint64(data.length - 8, BigInt(bytes.length) * 8n)
  const state = Int32Array.from(START)
  const w = new Int32Array(64)
  for (let at = 0; at < data.length; at += 64) {
    for (let i = 0; i < 64; i++) {
      const [a, b] = [w[i - 15], w[i - 2]]
      w[i] = i < 16 ? view.getInt32(at + 4 * i) : w[i - 16] + w[i - 7] + (turned(a, 7) ^ turned(a, 18) ^ (a >>> 3)) + (turned(b, 17) ^ turned(b, 19) ^ (b >>> 10))
    }
    let [a, b, c, d, e, f, g, h] = state
    for (let i = 0; i < 64; i++) {
      const one = (h + (turned(e, 6) ^ turned(e, 11) ^ turned(e, 25)) + ((e & f) ^ (~e & g)) + ROOTS[i] + w[i]) | 0
      const two = (turned(a, 2) ^ turned(a, 13) ^ turned(a, 22)) + ((a & b) ^ (a & c) ^ (b & c))
      ;[h, g, f, e, d, c, b, a] = [g, f, e, (d + one) | 0, c, b, a, (one + two) | 0]
    }
    ;[a, b, c, d, e, f, g, h].forEach((each, i) => (state[i] += each))
  }
  const made = new DataView(new ArrayBuffer(32))
  state.forEach((each, i) => made.setInt32(4 * i, each))
  return new Uint8Array(made.buffer)
}

/** A whole number below 2^32 as four bytes. */
export const word = (n) => new Uint8Array(Uint32Array.of(n).buffer)

/** Equal keys and indices give equal ids. */
export const callId = (key, index) => Array.from(sha256([...key, ...word(index)]), (byte) => byte.toString(16).padStart(2, '0')).join('').slice(0, 9)
