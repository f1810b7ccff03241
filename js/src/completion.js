// A text as its tokens come: what it says, and why it ends (src/aleator/generate/completion.py).
import { GrammarCompleter } from './complete-grammar.js'
import { Healing } from './healing.js'
import { LoopDetector } from './loops.js'
import { ReasoningBudget } from './steering.js'

const NO_TEXT = { push: () => '', flush: () => '' }

export class Completion {
  /**
   * chain: it has accepted what comes before; tokenizer: null without a vocabulary; nCtx: positions of the text.
   * prompt: its tokens; taken: those of it that were taken back; begun: tokens of the text that are there already;
   * shown: control tokens that are part of the text.
   * others: what textOptions gives.
   */
  constructor(chain, { tokenizer, nCtx, prompt, taken = [], begun = [], shown, maxTokens, stops, loops = null, reasoning = null, completeGrammar = true }) {
    Object.assign(this, { chain, tokenizer, nCtx, maxTokens, tokens: [], complete: null })
    this.stopReason = maxTokens === 0 ? 'length' : null
    this.healing = taken.length ? new Healing(tokenizer, taken) : null
    const skip = this.healing?.text.length ?? 0
    const atStart = prompt.every((token) => tokenizer?.vocabulary.isSpecial(token)) && !skip
    this.stream = tokenizer?.stream({ atStart, shown, skip }) ?? NO_TEXT
    this.matcher = new StopMatcher(stops)
    this.loops = loops && new LoopDetector(loops)
    this.budget = reasoning && new ReasoningBudget(tokenizer, reasoning, prompt)
    for (const token of begun) {
      this.stream.push(token)
      this.loops?.push(token)
      this.budget?.next()
      this.budget?.take(token, tokenizer.vocabulary.bytes(token))
    }
    this.completer = completeGrammar && !reasoning && chain.constraint ? new GrammarCompleter(chain, tokenizer) : null
  }
  /** The logits to draw from. */
  allowed(row) {
    return this.healing ? this.healing.masked(row, this.tokens) : row
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
    const more = this.maxTokens - this.tokens.length
    return more <= room ? [more, 'length'] : [room, 'context']
  }
  /** The text that a token completes; notes why the text ends, if it does. */
  feed(token, used) {
    const { matcher } = this
    const { values } = this.chain
    this.tokens.push(token)
    this.budget?.take(token, this.tokenizer.vocabulary.bytes(token))
    const looping = this.loops?.push(token)
    if (this.tokenizer?.vocabulary.eog.has(token) && !values.ignore_eos) this.stopReason = 'eog'
    else if (values.stop_token_ids.includes(token)) this.stopReason = 'stop_token'
    if (this.stopReason) return ''
    const piece = matcher.push(this.stream.push(token))
    if (matcher.matched !== null) this.stopReason = 'stop'
    else if (looping) this.stopReason = 'loop'
    else if (this.tokens.length >= this.maxTokens) this.stopReason = 'length'
    else if (this.chain.finished) this.stopReason = 'grammar'
    else if (used >= this.nCtx) this.stopReason = 'context'
    return piece
  }
  /** The rest of the text, which has ended. */
  end() {
    const { matcher } = this
    const { constraint } = this.chain
    const rest = ['eog', 'grammar', 'stop_token'].includes(this.stopReason) ? matcher.push(this.stream.flush()) : ''
    if (matcher.matched !== null) this.stopReason = 'stop'
    if (constraint) this.complete = this.stopReason === 'eog' || (this.stopReason !== 'stop' && constraint.complete)
    return rest + (matcher.matched === null ? matcher.flush() : '')
  }
}

/** Passes text through until one of several strings is in it; what may become one is held back. */
class StopMatcher {
  constructor(stops) {
    this.stops = stops
    this.longest = Math.max(0, ...stops.map((each) => each.length))
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
    let open = Math.min(text.length, this.longest - 1)
    while (open > 0 && !this.stops.some((stop) => stop.startsWith(text.slice(-open)))) open--
    open = Math.max(0, open)
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
