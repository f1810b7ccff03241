// What tests have the package do wherever JavaScript runs.  `asked` has `what` and `cases`; the results are JSON.
const told = (error) => ({ error: error.name, message: error.message })

/** What a function gives, or its error. */
export async function tried(f) {
  try {
    return await f()
  } catch (error) {
    return told(error)
  }
}

/** Bytes of base64. */
export function bytesOf(text) {
  const all = atob(text)
  const made = new Uint8Array(all.length)
  for (let i = 0; i < all.length; i++) made[i] = all.charCodeAt(i)
  return made
}

export const floats = (text) => new Float32Array(bytesOf(text).buffer)

export function hex(array) {
  const bytes = new Uint8Array(array.buffer, array.byteOffset, array.byteLength)
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('')
}

/** The deeds by name, of a package. */
export const deeds = ({ Chain, load }) => ({
  chains: ({ parameters, seed, prompt, rows }) => {
    const chain = new Chain({ ...parameters, seed: BigInt(seed) })
    chain.acceptAll(prompt)
    const drawn = rows.map((row) => chain.sample(floats(row)))
    chain.free()
    return drawn
  },
  logits: async ({ path, tokens, ...types }) => {
    const model = await load(path, { nCtx: tokens.length })
    const rows = [true, false].map((together) => {
      const cache = model.cache(types)
      if (together) return hex(cache.decode(tokens, { all: true }))
      return tokens.map((token) => hex(cache.decode([token]))).join('')
    })
    model.free()
    return rows
  },
  text: async ({ path, prompt, options }) => {
    const model = await load(path)
    const generation = model.generate(prompt, options)
    const text = await generation.text()
    model.free()
    return { text, tokens: generation.tokens, reason: generation.stopReason, complete: generation.complete }
  },
  hostile: async ({ bytes }) => {
    await load(bytesOf(bytes))
  },
  // The error that a damaged file ends in, which has a message; or the logits of one that is sound after all.
  damaged: async ({ bytes, tokens }) => {
    const told = await tried(async () => {
      const model = await load(bytesOf(bytes), { nCtx: tokens.length })
      const logits = model.cache().decode(tokens, { all: true })
      model.free()
      const bits = new Uint32Array(logits.buffer)
      logits.forEach((x, i) => Number.isNaN(x) && (bits[i] = 0x7fc00000)) // machines differ in NaNs' other bits
      return hex(bits)
    })
    return told.message ? told.error : told
  },
})

/** The results of what is asked, with these deeds. */
export async function done(doing, { what, cases }) {
  const results = []
  for (const each of cases) results.push((await tried(() => doing[what](each))) ?? null)
  return results
}
