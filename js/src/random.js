// The random numbers of Python's `random`: MT19937 (Matsumoto and Nishimura, 1998), seeded with a whole number.

const N = 624
const M = 397

export class Random {
  /** seed: 0 to 2^32 - 1. */
  constructor(seed) {
    const words = new Uint32Array(N)
    const mixed = (i) => words[i - 1] ^ (words[i - 1] >>> 30)
    words[0] = 19650218
    for (let i = 1; i < N; i++) words[i] = Math.imul(1812433253, mixed(i)) + i
    let i = 1
    const step = (made) => {
      words[i++] = made
      if (i === N) [words[0], i] = [words[N - 1], 1]
    }
    for (let k = 0; k < N; k++) step((words[i] ^ Math.imul(mixed(i), 1664525)) + seed)
    for (let k = 1; k < N; k++) step((words[i] ^ Math.imul(mixed(i), 1566083941)) - i)
    words[0] = 0x80000000
    this.words = words
    this.at = N
  }
  /** 32 bits. */
  next() {
    const { words } = this
    if (this.at === N) {
      for (let i = 0; i < N; i++) {
        const y = (words[i] & 0x80000000) | (words[(i + 1) % N] & 0x7fffffff)
        words[i] = words[(i + M) % N] ^ (y >>> 1) ^ (y & 1 ? 0x9908b0df : 0)
      }
      this.at = 0
    }
    let y = words[this.at++]
    y ^= y >>> 11
    y ^= (y << 7) & 0x9d2c5680
    y ^= (y << 15) & 0xefc60000
    return (y ^ (y >>> 18)) >>> 0
  }
  choice(values) {
    const unused = Math.clz32(values.length)
    for (;;) {
      const i = this.next() >>> unused
      if (i < values.length) return values[i]
    }
  }
}
