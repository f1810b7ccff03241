// Brings constrained texts to their end before their tokens run out (src/aleator/generate/complete_grammar.py).
// Work is a generator that pauses after each part.
import { ENDING } from './facts.js'
import { samplersOf } from './parameters.js'
import { Random } from './random.js'
import { binary, spellingOf } from './spelling.js'

const { GROWTH, TRIALS, THOROUGH, BREADTH, ATTEMPTS, FEW, DIGITS } = ENDING
const keyOf = (words) => binary(new Uint8Array(words.buffer, words.byteOffset, words.byteLength))
const allows = (words, token) => (words[token >>> 5] >>> (token & 31)) & 1

/** Searches for a short ending: few tokens, none of them banned, after which a constrained text is complete. */
export class EndingSearch {
  constructor(tokenizer, banned) {
    const spelling = spellingOf(tokenizer)
    this.spelling = spelling
    this.ends = spelling.ends
    this.usable = Uint8Array.from(spelling.texts, (text) => text !== '')
    for (const token of banned) this.usable[token] = 0
    const single = new Map()
    spelling.texts.forEach((text, token) => text.length === 1 && this.usable[token] && single.set(text, token))
    const tokens = (characters) => [...characters].map((each) => single.get(each)).filter((token) => token !== undefined)
    const between = (from, to) => Array.from({ length: to - from }, (_, i) => String.fromCharCode(from + i)).join('')
    Object.assign(this, { brackets: tokens('}]'), quotes: tokens('"'), openers: tokens('[{'), commas: tokens(','), values: tokens('ntf'), letters: tokens('ax') })
    this.digits = DIGITS.map(tokens)
    this.printable = tokens(`1aAfTzZ${between(0x20, 0x5c)}${between(0x5d, 0x7f)}`)
    this.trials = 0
  }
  /** Whether the last search ran out of trials, so that more trials may find an ending. */
  get gaveUp() {
    return this.trials <= 0
  }
  /** At most `limit` tokens that complete the text; null: none were found. */
  *search(constraint, limit, trials = TRIALS) {
    let best = null
    this.trials = trials
    this.metDigit = this.metBranch = false
    for (let attempt = 0; attempt < ATTEMPTS; attempt++) {
      const random = attempt >= this.digits.length ? new Random(attempt) : null
      if (attempt && !best && !(random ? this.metBranch : this.metDigit)) continue // it would take the same path again
      const digits = this.digits[attempt % this.digits.length]
      const at = constraint.clone()
      let found
      try {
        found = yield* this.descend(at, limit, digits, random)
      } finally {
        at.free()
      }
      if (found && (!best || found.length < best.length)) [best, limit] = [found, found.length - 1]
      if (best && (random || !best.some((token) => digits.includes(token)))) break // another order of digits makes no difference
    }
    return best
  }
  *descend(at, limit, digits, random) {
    const tokens = []
    const lost = new Set() // masks from which no ending was found
    while (!at.complete) {
      const forced = this.spelling.tokens(at.jump_forward())
      const taken = this.take(at, forced.slice(0, limit - tokens.length + 1))
      tokens.push(...taken)
      if (!taken.length) {
        const token = yield* this.next(at, at.mask(), lost, digits, random)
        if (token === null) return null
        this.metDigit ||= digits.includes(token)
        at.accept(token)
        tokens.push(token)
      }
      if (tokens.length > limit || this.trials <= 0) return null
      yield
    }
    return tokens
  }
  take(at, tokens) {
    const taken = []
    for (const token of tokens) {
      if (!this.usable[token] || !at.allows(token)) break
      at.accept(token)
      taken.push(token)
    }
    this.trials -= taken.length
    return taken
  }
  *next(at, words, lost, digits, random) {
    const allowed = (tokens) => tokens.filter((token) => allows(words, token))
    this.trials--
    const [brackets, letters] = [allowed(this.brackets), allowed(this.letters)]
    if (brackets.length && !letters.length) return brackets[0]
    const commas = allowed(this.commas)
    if (!brackets.length && !letters.length && commas.length) return commas[0] // of an array or object that needs more
    const key = keyOf(words)
    for (const token of allowed(this.quotes)) if (this.opensWay(at, token, key)) return token
    const [numbers, openers] = [allowed(digits), allowed(this.openers)]
    if (openers.length && !letters.length) return [...allowed(this.values), ...numbers, ...openers][0] // where a JSON value begins
    const branches = allowed(this.printable)
    if (branches.length > 1 && branches.length <= FEW) {
      this.metBranch = true // such as names of properties
      if (random) return random.choice(branches)
    }
    if (!lost.has(key)) {
      const steps = yield* this.wayOut(at)
      if (steps.length) return steps[0]
      lost.add(key)
    }
    if (numbers.length) return numbers[0]
    let best = null
    const length = (token) => this.spelling.texts[token].length
    this.usable.forEach((usable, token) => usable && allows(words, token) && (best === null || length(token) > length(best)) && (best = token))
    return best
  }
  /** Whether after the token the text is complete, or something else than before is allowed. */
  opensWay(at, token, before) {
    this.trials--
    at.accept(token)
    const opens = at.complete || keyOf(at.mask()) !== before
    at.rollback(1)
    return opens
  }
  /** Whether a string can end, or a number can end or has ended. */
  over(words) {
    const has = (tokens) => tokens.some((token) => allows(words, token))
    return has(this.quotes) || (!has(this.letters) && (has(this.brackets) || has(this.commas)))
  }
  /** The fewest single bytes that complete the text, or end a string or a number; [] if there are none. */
  *wayOut(at) {
    const seen = new Set([keyOf(at.mask())])
    const paths = [[]]
    const start = Math.max(0, Math.min(this.trials, BREADTH))
    let budget = start
    let found = []
    for (const path of paths) {
      for (const token of path) at.accept(token)
      const words = at.mask()
      for (const token of this.printable) {
        if (!allows(words, token)) continue
        budget--
        at.accept(token)
        const after = at.mask()
        const key = keyOf(after)
        if (at.complete || this.over(after)) found = [...path, token]
        else if (!seen.has(key)) {
          seen.add(key)
          paths.push([...path, token])
        }
        at.rollback(1)
        if (found.length || budget <= 0) break
        yield
      }
      at.rollback(path.length)
      if (found.length || budget <= 0) break
    }
    this.trials -= start - budget
    return found
  }
}

/** Samples the tokens of a constrained text as long as an ending still fits, then gives the tokens of that ending. */
export class GrammarCompleter {
  /** chain: it has a grammar. */
  constructor(chain, tokenizer) {
    const whole = chain.divided ? samplersOf({ ...chain.values, phases: [] }, tokenizer) : []
    const biases = [...chain.members, ...whole].flatMap((each) => (each.constructor.sampler === 'logit_bias' ? each.logit_bias : []))
    const banned = biases.filter(([, bias]) => bias === -Infinity).map(([token]) => token)
    Object.assign(this, { chain, search: new EndingSearch(tokenizer, banned), plan: null, closing: false, growth: 0, wait: 0, off: false })
  }
  /** The next of `left` tokens, which the chain has accepted; null: the text is complete and ends here. */
  *sample(logits, left) {
    if (this.closing) return this.close()
    return yield* this.check(this.chain.sample(logits), left)
  }
  /** The token, just accepted, if an ending still fits after it, or else the first token of the ending. */
  *check(token, left) {
    const { chain, search } = this
    const { constraint } = chain
    this.wait--
    if (this.plan?.length && token === this.plan[0]) {
      this.plan.shift()
      return token
    }
    if (this.off || this.wait > 0 || search.ends.includes(token)) {
      this.plan = null
      return token
    }
    let found
    let given = true // up: nobody reads the text any more
    try {
      found = yield* search.search(constraint, left - 1)
      if (!found && !this.plan && search.gaveUp) found = yield* search.search(constraint, left - 1, THOROUGH)
      given = false
    } finally {
      if (given) chain.rollback(1)
    }
    if (found) {
      this.growth ||= Math.max(GROWTH, found.length)
      this.plan = found
      this.wait = Math.floor((left - found.length) / this.growth)
      return token
    }
    chain.rollback(1)
    this.plan ??= yield* search.search(constraint, left, THOROUGH)
    if (!this.plan) {
      chain.accept(token, { generated: true }) // no ending has fitted yet
      this.off = true
      return token
    }
    this.closing = true
    return this.close()
  }
  /** The next token of the ending, which the chain accepts; null: the ending is complete. */
  close() {
    const token = this.plan.shift() ?? null
    if (token !== null) this.chain.accept(token, { generated: true })
    return token
  }
}
