// Finds the token at which a text has begun to repeat the same few tokens (src/aleator/generate/loops.py).
import { LOOPS } from './facts.js'
import { AleatorError } from './native.js'

const { RANGES, USUAL, SHORT } = LOOPS

/** `stopLoops` as [repeats, min_tokens]: of an object, of two numbers, or of either as JSON; "4,64" too. */
export function loopLimits(given) {
  const shown = (JSON.stringify(given) ?? String(given)).slice(0, 80)
  let value = given
  if (typeof given === 'string') {
    try {
      value = JSON.parse(/^[{[]/.test(given) ? given : `[${given}]`)
    } catch {
      value = null
    }
  }
  const names = Object.keys(USUAL)
  const isObject = typeof value === 'object' && value !== null && !Array.isArray(value)
  if ((isObject && ('temperature' in value || 'for' in value)) || (Array.isArray(value) && value.length === 4))
    throw new AleatorError('ParameterError', "stopLoops: going on at another temperature is available in Python's package: give repeats and min_tokens")
  if (isObject) value = Object.keys(value).every((name) => names.includes(name)) ? names.map((name) => ({ ...USUAL, ...value })[name]) : null
  if (!Array.isArray(value) || value.length !== 2)
    throw new AleatorError('ParameterError', `stopLoops=${shown}: give repeats and min_tokens, as in ${JSON.stringify(USUAL)}`)
  names.forEach((name, i) => {
    const [low, high] = RANGES[name]
    if (!Number.isInteger(value[i]) || value[i] < low || value[i] > high)
      throw new AleatorError('ParameterError', `stopLoops: ${name}=${String(value[i])} is out of range: give an integer, ${low} to ${high} (default: ${USUAL[name]})`)
  })
  return value
}

/** Says after each token whether the text ends with a cycle of tokens, repeated often enough; how it does: loops.py. */
export class LoopDetector {
  constructor([repeats, minTokens]) {
    Object.assign(this, { repeats, minTokens, tokens: [], since: new Map(), text: '' })
  }
  /** Take in a token; the length of the cycle that it completes often enough, 0 for none. */
  push(token) {
    const { tokens, since } = this
    tokens.push(token)
    this.text += String.fromCharCode(token >> 16, token & 0xffff)
    const last = tokens.length - 1
    for (const period of since.keys()) if (tokens[last - period] !== token) since.delete(period)
    for (let period = 1; period < SHORT && period <= last; period++) if (tokens[last - period] === token && !since.has(period)) since.set(period, last)
    for (let block = SHORT / 2; tokens.length % block === 0 && tokens.length >= 3 * block; block *= 2) this.find(block)
    let least = 0
    for (const [period, first] of since) if (tokens.length - first >= this.needed(period) && (!least || period < least)) least = period
    return least
  }
  /** How many tokens must equal those one period before to make a loop. */
  needed(period) {
    return (Math.max(this.repeats, Math.ceil(this.minTokens / period)) - 1) * period
  }
  /** Follow the periods 2 * block to 4 * block - 1 with which the last `block` tokens repeat. */
  find(block) {
    const { tokens, since } = this
    const n = tokens.length
    const first = Math.max(0, n - 5 * block + 1)
    const text = this.text.slice(2 * first, 2 * (n - 2 * block)) // two units for each token
    const end = this.text.slice(2 * (n - block))
    for (let at = text.indexOf(end); at >= 0; at = text.indexOf(end, at + 1)) {
      const period = n - block - first - (at >> 1)
      if (at % 2 || since.has(period) || this.isMultiple(period)) continue
      let start = n - block
      while (start > period && tokens[start - 1] === tokens[start - 1 - period]) start--
      since.set(period, start)
    }
  }
  /** Whether a shorter cycle makes up the last `period` tokens, so that this period is redundant. */
  isMultiple(period) {
    const n = this.tokens.length
    return [...this.since].some(([short, start]) => period % short === 0 && n - start + short >= period)
  }
}
