// Finds the token at which a text has begun to repeat the same few tokens (src/aleator/generate/loops.py).
import { LOOPS, PARAMETERS, Temperature } from './facts.js'
import { parameterError, shown } from './native.js'

const { RANGES, SHORT, USUAL, STRETCH } = LOOPS
const NEUTRAL = Object.fromEntries(Temperature.parameters.map((name) => [name, PARAMETERS[name].neutral]))
/**
 * `stopLoops` as [repeats, min_tokens], or with temperature and for: of an object, of numbers, or of either as JSON; "4,64"
 * too.
 */
export function loopLimits(given) {
  let value = given
  if (typeof given === 'string') {
    try {
      value = JSON.parse(/^[{[]/.test(given) ? given : `[${given}]`)
    } catch {
      value = null
    }
  }
  if (typeof value === 'object' && value !== null && !Array.isArray(value)) {
    const usual = Object.hasOwn(value, 'temperature') ? { ...USUAL, temperature: null, for: STRETCH } : USUAL
    const known = Object.keys(value).every((name) => Object.hasOwn(usual, name))
    value = known ? Object.keys(usual).map((name) => ({ ...usual, ...value })[name]) : null
  }
  if (!Array.isArray(value) || ![2, 4].includes(value.length))
    throw parameterError(`stopLoops=${shown(given)}: give repeats and min_tokens, as in ${JSON.stringify(USUAL)}, and to go on at another temperature also temperature and for ([4, 64, 1.5, 32])`)
  value.forEach((number, i) => {
    const name = Object.keys(RANGES)[i]
    const [low, high] = RANGES[name]
    const isNumber = name === 'temperature' ? typeof number === 'number' : Number.isInteger(number)
    if (isNumber && number >= low && number <= high) return
    const usual = name in USUAL ? ` (default: ${USUAL[name]})` : ''
    throw parameterError(`stopLoops: ${name}=${String(number)} is out of range: give ${name === 'temperature' ? 'a number' : 'an integer'}, ${low} to ${high}${usual}`)
  })
  return value
}

/** Check that a chain's temperature can rise as limits say. */
export function checkStretch(limits, { temperature, phases }) {
  const raised = limits?.[2]
  if (raised <= temperature) throw parameterError(`stopLoops: temperature=${raised} is not above the request's, ${temperature}: give more`)
  if (raised !== undefined && phases.length) throw parameterError(`stopLoops: temperature=${raised} cannot change in the chains of phases: leave it out, or phases`)
}

/** Watches for loops as limits say: ends the text, or raises the chain's temperature for a stretch. */
export class LoopWatch {
  constructor(limits, chain) {
    checkStretch(limits, chain.values)
    const [, , raised = null, stretch = 0] = limits
    Object.assign(this, { limits, chain, raised, stretch, detector: new LoopDetector(limits), left: 0 })
    this.usual = [] // the chain's own samplers at places that the stretch has changed; null: none was there
  }
  /** Take in a token; whether the text ends with it. */
  push(token) {
    const looping = this.detector.push(token) > 0
    if (looping && this.raised !== null) {
      this.detector = new LoopDetector(this.limits) // only later tokens count
      if (!this.left) this.raise()
      this.left = this.stretch
    } else if (this.left && !--this.left) this.end()
    return looping && this.raised === null
  }
  raise() {
    const { chain, raised: temperature } = this
    const hot = (each) => Object.assign(new Temperature(), each, { temperature })
    const last = chain.samplers.length - 1
    this.usual = [...chain.samplers.entries()].filter(([, each]) => each instanceof Temperature)
    for (const [i, each] of this.usual) chain.replace(i, hot(each))
    if (this.usual.length) return
    chain.insert(last, hot(NEUTRAL))
    this.usual = [[last, null]]
  }
  /** Restore the chain's own temperature. */
  end() {
    for (const [i, each] of this.usual) each ? this.chain.replace(i, each) : this.chain.remove(i)
    this.usual = []
    this.left = 0
  }
}

/**
 * Says after each token whether the text ends with a cycle of tokens, repeated often enough.  Longer periods are looked for
 * now and then only, as Python's LoopDetector says, so that a token costs the same in a long text.
 */
export class LoopDetector {
  constructor([repeats, minTokens]) {
    Object.assign(this, { repeats, minTokens, tokens: [] })
    this.since = new Map() // for each period that is followed, from where on tokens equal those one period before
  }
  /** Take in a token; the length of the cycle that it completes often enough, 0 for none. */
  push(token) {
    const { tokens, since } = this
    const last = tokens.push(token) - 1
    for (const period of since.keys()) if (tokens[last - period] !== token) since.delete(period)
    this.find(1, SHORT - 1, 1)
    for (let block = SHORT / 2; tokens.length % block === 0 && tokens.length > 2 * block; block *= 2) this.find(2 * block, 4 * block - 1, block)
    const loops = [...since.keys()].filter((period) => tokens.length - since.get(period) >= this.needed(period))
    return loops.length && Math.min(...loops)
  }
  /** Follow the periods from least to most with which so many of the last tokens repeat. */
  find(least, most, wanted) {
    const { tokens, since } = this
    for (let period = least; period <= most && period < tokens.length; period++) {
      let start = tokens.length
      while (!since.has(period) && start > period && tokens[start - 1] === tokens[start - 1 - period]) start--
      if (tokens.length - start >= wanted) since.set(period, start)
    }
  }
  /** How many tokens must equal those one period before to make a loop. */
  needed(period) {
    return (Math.max(this.repeats, Math.ceil(this.minTokens / period)) - 1) * period
  }
}
