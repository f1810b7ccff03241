// A text as its tokens come: what it says, and why it ends (src/aleator/generate/completion.py).
import { Bans } from './bans.js'
import { GrammarCompleter } from './complete-grammar.js'
import { BAN } from './facts.js'
import { Healing } from './healing.js'
import { LoopWatch } from './loops.js'
import { native } from './runtime.js'
import { binary, openLength } from './spelling.js'
import { ReasoningBudget } from './steering.js'

const NO_TEXT = { push: () => '', flush: () => '' }

export class Completion {
  /**
   * chain: it has accepted what comes before; tokenizer: null without a vocabulary; nCtx: positions of the text.
   * prompt: its tokens; taken: those of it that were taken back; begun: tokens of the text that are there already;
   * shown: control tokens that are part of the text.
   * others: what textOptions gives.
   */
  constructor(chain, { tokenizer, nCtx, prompt, taken = [], begun = [], shown, maxTokens, stops, loops = null, reasoning = null, banned = [], completeGrammar = true }) {
    Object.assign(this, { chain, tokenizer, nCtx, maxTokens, tokens: [], complete: null })
    this.stopReason = maxTokens === 0 ? 'length' : null
    this.healing = taken.length ? new Healing(tokenizer, taken) : null
    const skip = this.healing?.text.length ?? 0
    const atStart = prompt.every((token) => tokenizer?.vocabulary.isSpecial(token)) && !skip
    this.stream = tokenizer?.stream({ atStart, shown, skip }) ?? NO_TEXT
    this.matcher = new StopMatcher(stops)
    this.loops = loops && new LoopWatch(loops, chain)
    this.budget = reasoning && new ReasoningBudget(tokenizer, reasoning, prompt)
    this.banned = banned.length ? this.bans(banned, { begun, skip, strip: atStart && tokenizer.vocabulary.addSpacePrefix && !begun.length, shown }) : null
    for (const token of begun) {
      this.stream.push(token)
      this.loops?.push(token)
      this.budget?.next()
      this.budget?.take(token, tokenizer.vocabulary.bytes(token))
    }
    this.completer = completeGrammar && !reasoning && !this.banned && chain.constraint ? new GrammarCompleter(chain, tokenizer) : null
  }
  bans(bans, { begun, skip, strip, shown = [] }) {
    const { vocabulary } = this.tokenizer
    const silent = (token) => this.isEnd(token) || this.isStop(token) || (vocabulary.isSpecial(token) && !shown.includes(token))
    const bytesOf = (token) => (silent(token) ? '' : binary(vocabulary.bytes(token)))
    const coin = (place) => {
      const [low, up] = native.philox4x32([0, place, 0, (BAN * 2 ** 28 + this.chain.completion) >>> 0], BigInt(this.chain.seed))
      return Number((BigInt(up) << 32n) | BigInt(low)) / 2 ** 64
    }
    return new Bans(bans, { bytesOf, size: vocabulary.size, coin, begun, skip, strip })
  }
  /** The logits to draw from. */
  allowed(row) {
    const held = this.banned?.held.map(({ token }) => token) ?? []
    if (this.healing) row = this.healing.masked(row, [...this.tokens, ...held])
    return this.banned ? this.banned.masked(row) : row
  }
  /** The token drawn from these, `used` positions being taken; null: the text has ended without one. */
  async draw(row, used, signal) {
    const forced = this.budget?.next() ?? null
    if (forced !== null) {
      this.chain.accept(forced, { generated: true })
      return forced
    }
    if (!this.completer) return this.chain.sample(row)
    const [left, reason] = this.limits(used)
    const token = await worked(this.completer.sample(row, left), signal)
    if (token === null) this.stopReason = reason // the ending that was found is over
    return token ?? null
  }
  /** How many tokens may still be drawn, and why the text ends after them. */
  limits(used) {
    const room = this.nCtx - used + 1
    const more = this.maxTokens - this.tokens.length - (this.banned?.held.length ?? 0)
    return more <= room ? [more, 'length'] : [room, 'context']
  }
  /**
   * Take in a token that was drawn from a row: the text that comes of it; the token that is decoded `next`, null: the
   * last one that was, again; and how many decoded ones are to be forgotten before.
   */
  take(token, row, used) {
    const { banned, chain } = this
    let forget = 0
    let ready = [token]
    if (banned) {
      let over = this.endsWith(token, used)
      for (let n; (n = banned.take(token, row, over)); ) {
        const gone = banned.back(n)
        chain.rollback(n)
        forget += n - 1
        if (!gone.row) return { piece: '', next: null, forget }
        row = gone.row
        token = chain.sample(banned.masked(row))
        over = this.endsWith(token, used - forget)
      }
      ready = banned.ready(over)
    }
    const piece = ready.map((each) => this.feed(each)).join('')
    if (!this.stopReason && chain.finished) this.stopReason = 'grammar'
    if (!this.stopReason && used - forget >= this.nCtx) this.stopReason = 'context'
    return { piece, next: token, forget }
  }
  /** Whether the text ends with a token that was drawn. */
  endsWith(token, used) {
    return this.isEnd(token) || this.isStop(token) || this.limits(used)[0] === 1 || this.chain.finished
  }
  isEnd(token) {
    return this.tokenizer?.vocabulary.eog.has(token) && !this.chain.values.ignore_eos
  }
  isStop(token) {
    return this.chain.values.stop_token_ids.includes(token)
  }
  /** The text that a token completes; notes why the text ends, if it does. */
  feed(token) {
    const { matcher } = this
    if (this.stopReason) return ''
    this.tokens.push(token)
    this.budget?.take(token, this.tokenizer.vocabulary.bytes(token))
    const looping = this.loops?.push(token)
    if (this.isEnd(token)) this.stopReason = 'eog'
    else if (this.isStop(token)) this.stopReason = 'stop_token'
    if (this.stopReason) return ''
    const piece = matcher.push(this.stream.push(token))
    if (matcher.matched !== null) this.stopReason = 'stop'
    else if (looping) this.stopReason = 'loop'
    else if (this.tokens.length >= this.maxTokens) this.stopReason = 'length'
    return piece
  }
  /** The rest of the text, which has ended. */
  end() {
    const { matcher } = this
    const { constraint } = this.chain
    this.loops?.end()
    const rest = ['eog', 'grammar', 'stop_token'].includes(this.stopReason) ? matcher.push(this.stream.flush()) : ''
    if (matcher.matched !== null) this.stopReason = 'stop'
    if (constraint) this.complete = this.stopReason === 'eog' || (this.stopReason !== 'stop' && constraint.complete)
    return rest + (matcher.matched === null ? matcher.flush() : '')
  }
}

/** What is decoded after some of the tokens that a cache has were forgotten; next: as `take` gives it. */
export function following(cache, decoded, { next, forget }) {
  if (!forget && next !== null) return [next]
  const token = next ?? decoded.at(-1 - forget)
  decoded.length -= forget + (next === null ? 1 : 0)
  try {
    cache.seqRm(0, decoded.length)
  } catch (error) {
    if (error.name !== 'CannotRewind') throw error
    cache.clear()
    return [...decoded.splice(0), token]
  }
  return [token]
}

/** Passes text through until one of several strings is in it; what may become one is held back. */
class StopMatcher {
  constructor(stops) {
    this.stops = stops
    this.matched = null
    this.held = ''
  }
  push(piece) {
    if (this.matched !== null) return ''
    const text = this.held + piece
    let end = Infinity
    for (const stop of this.stops) {
      const at = text.indexOf(stop)
      if (at < 0) continue
      const own = at + stop.length
      if (own < end || (own === end && stop.length > this.matched.length)) {
        end = own
        this.matched = stop
      }
    }
    this.held = ''
    if (this.matched !== null) return text.slice(0, end - this.matched.length)
    const open = openLength(text, this.stops)
    this.held = text.slice(text.length - open)
    return text.slice(0, text.length - open)
  }
  flush() {
    const held = this.held
    this.held = ''
    return held
  }
}

// Not setTimeout, which waits for 1 to 4 ms.
export const pause = globalThis.setImmediate
  ? () => new Promise((done) => setImmediate(done))
  : () =>
      new Promise((done) => {
        const { port1, port2 } = new MessageChannel()
        port1.onmessage = () => {
          port1.close()
          done()
        }
        port2.postMessage(null)
      })

const PART = 8 // milliseconds

/** What work in parts gives, which whoever waits for the page's events does not notice; undefined: it was interrupted. */
async function worked(work, signal) {
  for (let until = performance.now() + PART; ; ) {
    const { done, value } = work.next()
    if (done) return value
    if (performance.now() < until) continue
    await pause()
    if (signal?.aborted) return work.return(undefined).value
    until = performance.now() + PART
  }
}
