// Chains of samplers: logits in, a token out.
import { options, parameterError, whole } from './native.js'
import { native } from './runtime.js'
import { kernelsOf, make } from './kernels.js'
import { constraintsOf, grammarOf, resolve, samplersOf, settle } from './parameters.js'
import { Phases } from './phases.js'
import { Tokenizer } from './tokenizer.js'

/** Samplers in order over one sequence; equal logits and seeds give equal tokens on every machine. */
export class Chain {
  /**
   * parameters: SamplingParameters, neutral where not given; or those of a preset.
   * given: preset; tokenizer, for texts among the parameters; completion, the index among several texts.
   */
  constructor(parameters = {}, given = {}) {
    const { preset, tokenizer, completion, values } = options(given, { preset: undefined, tokenizer: undefined, completion: 0, values: undefined })
    if (tokenizer && !(tokenizer instanceof Tokenizer)) throw parameterError('tokenizer: give the one of a model, model.tokenizer')
    this.values = values ?? (preset === undefined ? settle(parameters) : resolve(parameters, preset))
    this.samplers = samplersOf(this.values, tokenizer)
    this.seed = this.values.seed ?? freshSeed()
    const kernels = kernelsOf(this.samplers, this.seed)
    this.grammar = grammarOf(this.values)
    if (this.grammar !== null) {
      if (!tokenizer) throw parameterError(`${constraintsOf(this.values)[0]} needs a tokenizer: give it as the option tokenizer`)
      kernels.unshift(new native.ConstraintSampler(tokenizer.grammar(this.grammar), [...tokenizer.vocabulary.eog]))
    }
    this.completion = whole('completion', completion, 0, 2 ** 32 - 1)
    this.kernels = new native.Chain(kernels, this.completion)
  }
  /** The token chosen from a row of logits, a Float32Array; the chain has accepted it. */
  sample(logits) {
    return this.kernels.sample(logits)
  }
  /** Take note of a token; generated: it is part of the text, not of the prompt. */
  accept(token, { generated = false } = {}) {
    this.kernels.accept(token, generated)
  }
  acceptAll(tokens, { generated = false } = {}) {
    const ids = Array.from(tokens)
    const wrong = ids.findIndex((id) => id !== (id | 0))
    if (wrong >= 0) throw parameterError(`tokens[${wrong}]=${String(ids[wrong])} is no token id`)
    this.kernels.accept_many(Int32Array.from(ids), generated)
  }
  rollback(n) {
    this.kernels.rollback(n)
  }
  reset() {
    this.kernels.reset()
  }
  /** Put a sampler, which draws no random numbers, before the one at a place; it sees the tokens accepted so far. */
  insert(i, sampler) {
    const [name, given] = sampler.native({ seed: this.seed, ordinal: 0 })
    this.kernels.insert(this.first + i, make(name, given))
    this.samplers = [...this.samplers.slice(0, i), sampler, ...this.samplers.slice(i)]
  }
  remove(i) {
    this.kernels.remove(this.first + i)
    this.samplers = this.samplers.filter((_, at) => at !== i)
  }
  replace(i, sampler) {
    this.insert(i, sampler)
    this.remove(i + 1)
  }
  /** Among the kernels, which a grammar's is before, the place of the first sampler. */
  get first() {
    return this.grammar === null ? 0 : 1
  }
  /** An equal chain in the same state. */
  clone() {
    const copy = Object.create(Chain.prototype)
    return Object.assign(copy, this, { kernels: this.kernels.clone() })
  }
  /** Its phases; null: it has one chain for all of a text. */
  get divided() {
    const last = this.samplers.at(-1)
    return last instanceof Phases ? last : null
  }
  /** The phase that drew each token of the history; none without phases. */
  get phases() {
    return this.divided ? Array.from(this.kernels.samplers.at(-1).before, (phase) => this.divided.chains[phase][0]) : []
  }
  /** The chain of the phase that draws the next token, in the same state; to be freed. */
  get present() {
    if (!this.divided) return this.clone()
    const [, samplers] = this.divided.chains[this.kernels.samplers.at(-1).present]
    return Object.assign(Object.create(Chain.prototype), this, { kernels: this.kernels.present(), samplers: [...this.samplers.slice(0, -1), ...samplers] })
  }
  /** All samplers, those of every phase. */
  get members() {
    return this.samplers.flatMap((each) => (each instanceof Phases ? each.flattened : [each]))
  }
  get history() {
    return this.kernels.history
  }
  /** How many tokens were generated, which keys the draws. */
  get position() {
    return this.kernels.position
  }
  /** Whether a grammar's text is complete, so that nothing but its end may follow. */
  get finished() {
    return this.constraint !== null && this.kernels.samplers[0].constrained.finished
  }
  /** The parser of its grammar; null: it has none. */
  get constraint() {
    return this.grammar === null ? null : this.kernels.samplers[0].constrained.constraint
  }
  free() {
    this.kernels.free()
  }
}

/** What each sampler of a chain makes of a row of logits; the chain stays as it is. */
export function explain(chain, logits, top = 10) {
  whole('top', top, 0)
  const { kernels: copy, samplers } = chain.present
  const candidates = new native.Candidates(Float32Array.from(logits))
  const { first } = chain
  const state = (sampler, neutral) => {
    const { ids, logits: values, weights } = candidates
    const mass = weights.reduce((a, b) => a + BigInt(b), 0n)
    const p = Array.from(weights, (w) => Number((BigInt(w) * 1_000_000_000n) / (mass || 1n)) / 1e9)
    const order = Array.from(ids.keys()).sort((a, b) => values[b] - values[a] || ids[a] - ids[b]).slice(0, top)
    return { sampler, neutral, left: ids.length, candidates: order.map((i) => ({ token: ids[i], logit: values[i], p: p[i] })) }
  }
  const stages = [state('logits', false)]
  try {
    for (let i = 0; i < first; i++) copy.apply_one(candidates, i), stages.push(state('grammar', false))
    samplers.forEach((sampler, i) => {
      copy.apply_one(candidates, first + i)
      stages.push(state(sampler.constructor.sampler, sampler.neutral))
    })
    return { stages, token: candidates.selected ?? null, seed: chain.seed, position: chain.position }
  } finally {
    candidates.free()
    copy.free()
  }
}

function freshSeed() {
  return globalThis.crypto.getRandomValues(new BigUint64Array(1))[0]
}
