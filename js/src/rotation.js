// Frequencies of rotary embeddings, each rounded once (src/aleator/models/layers/rotation.py).

// Fixed-point numbers of 256 bits after the point.
const BITS = 256n
const ONE = 1n << BITS
const mul = (a, b) => (a * b) >> BITS
const div = (a, b) => (a << BITS) / b
const LN2 = 2n * atanh(ONE / 3n)

/** z + z^3 / 3 + z^5 / 5 + ..., |z| <= 1/3. */
function atanh(z) {
  const square = mul(z, z)
  let sum = 0n
  let power = z
  for (let n = 1n; power !== 0n && power !== -1n; n += 2n) {
    sum += power / n
    power = mul(power, square)
  }
  return sum
}

/** A float64 as it is. */
function fixed(x) {
  let scale = 0n
  while (!Number.isInteger(x)) {
    x *= 2
    scale++
  }
  return (BigInt(x) << BITS) >> scale
}

/** ln x for x > 0. */
function ln(x) {
  let doublings = 0n
  while (x >= 2n * ONE) {
    x >>= 1n
    doublings++
  }
  while (x < ONE) {
    x <<= 1n
    doublings--
  }
  return doublings * LN2 + 2n * atanh(div(x - ONE, x + ONE))
}

function exp(x) {
  let halvings = 0n
  while (x < 0n) {
    x += LN2
    halvings++
  }
  let doublings = 0n
  while (x >= LN2) {
    x -= LN2
    doublings++
  }
  let term = ONE
  let sum = 0n
  for (let n = 1n; term > 0n; n++) {
    sum += term
    term = mul(term, x) / n
  }
  return (sum << doublings) >> halvings
}

/** The nearest float64. */
const rounded = (x) => Number(x) * 2 ** -Number(BITS)

export const logarithm = (x) => rounded(ln(fixed(x)))

/** x to the power y, x > 0. */
export const power = (x, y) => rounded(exp(mul(ln(fixed(x)), fixed(y))))

/** Radians per position of each pair of channels, and the factor of lengths; `divisors`: the file's own. */
export function frequencies(rope, divisors) {
  const pairs = rope.dim / 2
  const magnitude = rope.attn_factor
  if (rope.style === 'none') return { frequencies: new Float64Array(pairs), magnitude: 1 }
  const base = ln(fixed(rope.theta))
  let plain = Float64Array.from({ length: pairs }, (_, i) => rounded(exp((BigInt(-2 * i) * base) / BigInt(rope.dim))))
  if (divisors) plain = plain.map((x, i) => x / divisors[i])
  if (rope.scaling === 'proportional' && !divisors) plain.fill(0, rope.n_rotated)
  if (rope.scaling === 'linear' || rope.scaling === 'proportional') return { frequencies: plain.map((x) => x / rope.factor), magnitude }
  if (rope.scaling !== 'yarn') return { frequencies: plain, magnitude }
  const rotates = (times) => (rope.dim * logarithm(rope.original_context / (times * 2 * Math.PI))) / (2 * logarithm(rope.theta))
  const low = Math.max(0, Math.floor(rotates(rope.beta_fast)))
  const high = Math.min(rope.dim - 1, Math.ceil(rotates(rope.beta_slow)))
  const mixed = plain.map((x, i) => {
    const ramp = Math.min(Math.max((i - low) / Math.max(0.001, high - low), 0), 1)
    return (x / rope.factor) * ramp + x * (1 - ramp)
  })
  return { frequencies: mixed, magnitude: magnitude * (1 + 0.1 * logarithm(rope.factor)) }
}
