// Samplers in native form.
import { native } from './runtime.js'

/** What the native code makes of a name and arguments. */
export function make(name, given) {
  const maker = native[name]
  return maker.prototype ? new maker(...given) : maker(...given) // a class, or a function
}

/** A chain's samplers in native form: each knows how many of its kind come before it. */
export function kernelsOf(samplers, seed) {
  const counts = new Map()
  return samplers.map((sampler) => {
    const ordinal = counts.get(sampler.constructor) ?? 0
    counts.set(sampler.constructor, ordinal + 1)
    return make(...sampler.native({ seed, ordinal }))
  })
}
