// Sampling parameters: checked, and made into samplers in order (src/aleator/samplers/params.py, order.py).
import * as facts from './facts.js'
import { parameterError, shown } from './native.js'
import { checkedPhases, paramsOf, within, withMarks, withStart } from './phase-table.js'
import { Phases } from './phases.js'
import { ofRegex } from './regex.js'
import { gbnf } from './schema.js'
import { binary } from './spelling.js'

const { PARAMETERS, PRESETS } = facts
const ORDERED = new Map(facts.SAMPLERS.filter((cls) => cls.ordered).map((cls) => [cls.sampler, cls]))
const RANK = new Map([...ORDERED.keys()].map((name, rank) => [name, rank]))
const SPELLINGS = new Map([...ORDERED.values()].flatMap((cls) => [cls.sampler, ...cls.aliases].map((s) => [s, cls.sampler])))
const ALIASES = new Map(Object.entries(PARAMETERS).flatMap(([name, p]) => (p.aliases ?? []).map((s) => [s, name])))
const NEUTRAL = Object.fromEntries(Object.entries(PARAMETERS).map(([name, p]) => [name, p.neutral]))

/** The value as a parameter stores it. */
export function check(name, value) {
  const p = PARAMETERS[name]
  const fail = (why) => {
    throw parameterError(`${name}=${shown(value)} ${why}`)
  }
  if ((value === null || value === undefined) && p.optional) return null
  if (facts.ELSEWHERE.includes(name) && shown(value) !== shown(p.neutral))
    throw parameterError(`${name} is not available in JavaScript: leave it out, or use Python's package`)
  if (p.choices && !p.choices.includes(value)) fail(`must be one of ${p.choices.join(', ')}`)
  if (name === 'numerics' && value !== 'portable') fail("is available in Python's package: leave it out")
  if (name === 'draw' && ['watermark', 'synthid'].includes(value)) fail("is available in Python's package: it needs a key")
  if (name === 'seed') return checkSeed(value)
  if (name === 'samplers') return parseNames(value)
  if (name === 'phases') return checkedPhases(value, checked)
  if (p.type === 'bool' && typeof value !== 'boolean') fail('is not a switch: give true or false')
  if (p.type === 'str' && typeof value !== 'string') fail('is not text')
  if (p.type === 'int' || p.type === 'float') {
    if (typeof value !== 'number' || Number.isNaN(value)) fail('is not a number')
    if (p.type === 'int' && !Number.isInteger(value)) fail(`must be a whole number in ${p.range}`)
    const below = p.low !== undefined && (value < p.low || (p.openLow && value === p.low))
    const above = p.high !== undefined && value > p.high
    if ((below || above) && value !== p.beyond) fail(`is out of range: give a number in ${p.range} (default: ${p.neutral})`)
    if (!Number.isFinite(value)) fail(`must be finite: give a number in ${p.range}`)
  }
  if (name === 'logit_bias') return checkBiases(value)
  if (name === 'grammar' && typeof value !== 'string') fail('is not GBNF text')
  if (name === 'regex' && typeof value !== 'string') fail('is no text of a regular expression')
  if (p.type === 'tuple') {
    if (!Array.isArray(value)) fail('is no array')
    if (p.most !== undefined && value.length > p.most) throw parameterError(`${name} has ${value.length} entries: give at most ${p.most}`)
    if (name.endsWith('token_ids')) return checkIds(name, value)
    for (const each of value) {
      if (Array.isArray(each) ? each.length === 0 : typeof each !== 'string' || (name === 'bad_words' && !each.trim()))
        throw parameterError(`${name} has ${shown(each)}: give texts, or arrays of token ids`)
      if (Array.isArray(each)) checkIds(name, each)
    }
  }
  return value
}

function checkSeed(value) {
  if (value === -1 || value === -1n || value === null || value === undefined) return null
  if (typeof value === 'number' ? !Number.isSafeInteger(value) : typeof value !== 'bigint')
    throw parameterError(`seed=${shown(value)} must be a whole number in [0, 2^64), as a BigInt from 2^53 on`)
  if (value < 0 || BigInt(value) >= 1n << 64n) throw parameterError(`seed=${shown(value)} is out of range: give 0 to 2^64 - 1, or -1 for random`)
  return BigInt(value)
}

function checkIds(name, value) {
  for (const id of value)
    if (!Number.isInteger(id) || id < 0 || id >= 1 << 24) throw parameterError(`${name} names token ${shown(id)}: give ids from 0 to 16,777,215`)
  return name.endsWith('token_ids') ? [...new Set(value)].sort((a, b) => a - b) : value
}

function checkBiases(value) {
  const table = typeof value === 'object' && value !== null
  const entries = () => Object.entries(value).map(([id, bias]) => [/^\d+$/.test(id) ? Number(id) : NaN, bias])
  const pairs = !table ? [value] : typeof value[Symbol.iterator] === 'function' ? [...value] : entries()
  for (const pair of pairs) {
    const [token, bias] = Array.isArray(pair) ? pair : []
    if (typeof bias !== 'number' || Number.isNaN(bias) || (typeof token === 'string' ? token === '' : !Number.isInteger(token)))
      throw parameterError(`logit_bias=${shown(value)} must map token ids or texts to numbers, as in {15: -1.5}`)
    if (typeof token === 'number') checkIds('logit_bias', [token])
  }
  return pairs
}

function parseNames(value) {
  if (typeof value !== 'string' && !Array.isArray(value)) throw parameterError(`samplers=${shown(value)}: give names of samplers`)
  const given = (typeof value === 'string' ? value.split(';') : value).map((name) => String(name).trim().toLowerCase())
  return given.filter(Boolean).map((name) => {
    if (!SPELLINGS.has(name)) throw parameterError(`samplers: there is no sampler ${shown(name)} to be named; the names are ${[...ORDERED.keys()].join(', ')}`)
    return SPELLINGS.get(name)
  })
}

/** A sampler with these values of its parameters. */
export const made = (cls, values) => Object.assign(new cls(), values)

const missing = (order, values) => [...ORDERED].filter(([name, cls]) => !order.includes(name) && cls.asked_for(values)).map(([name]) => name)

function place(order, name) {
  const rank = RANK.get(name)
  const last = (other) => facts.LAST.includes(other)
  const writes = (other) => ORDERED.get(other).writes
  const indices = (test) => order.flatMap((other, i) => (test(other) ? [i] : []))
  if (name === 'smoothing' && order.includes('temperature')) return order.indexOf('temperature') + 1
  if (last(name)) return order.length
  if (writes(name)) return 1 + Math.max(-1, ...indices((other) => writes(other) && RANK.get(other) < rank))
  const cuts = indices((other) => !writes(other) && !last(other) && other !== 'softmax')
  const after = cuts.filter((i) => RANK.get(order[i]) > rank)
  if (after.length) return after.reduce((a, b) => (RANK.get(order[b]) < RANK.get(order[a]) ? b : a))
  const before = cuts.length ? cuts : indices((other) => RANK.get(other) < rank && !last(other))
  return 1 + Math.max(-1, ...before)
}

function completed(order, names) {
  const all = [...order]
  for (const name of [...names].sort((a, b) => RANK.get(a) - RANK.get(b))) all.splice(place(all, name), 0, name)
  return all
}

function checked(given) {
  const all = {}
  if (typeof given !== 'object' || given === null) throw parameterError(`parameters=${shown(given)}: give an object`)
  for (const [spelling, value] of Object.entries(given)) {
    if (value === undefined) continue
    const name = ALIASES.get(spelling) ?? spelling
    if (!Object.hasOwn(NEUTRAL, name) || name === 'allowed') throw parameterError(`there is no sampling parameter ${shown(spelling)}`)
    if (Object.hasOwn(all, name)) throw parameterError(`${name} is given twice, once as ${spelling}`)
    all[name] = check(name, value)
  }
  return all
}

/** Given values over those of `base`, over neutral ones; samplers that they ask for stand in the order. */
export function settle(given, base = {}) {
  const own = checked(given)
  const values = { ...NEUTRAL, ...base, ...own }
  const order = values.samplers
  if ('samplers' in own) {
    for (const name of missing(order, { ...NEUTRAL, ...own }))
      throw parameterError(`a parameter of ${name} would have no effect: samplers=${shown(order.join(';'))} leaves it out; name it there`)
    for (const name of missing(order, values))
      for (const p of ORDERED.get(name).parameters) if (!(p in own) && p !== 'seed') values[p] = NEUTRAL[p]
  } else {
    values.samplers = completed(order, missing(order, values))
  }
  const draws = values.mirostat ? 'mirostat' : values.samplers.includes('adaptive_p') ? 'adaptive_target' : null
  if (draws && values.draw !== 'inverse') {
    if ('draw' in own) throw parameterError(`draw=${shown(values.draw)} would have no effect: ${draws} draws the token in its own way`)
    values.draw = 'inverse'
  }
  byPhase(values)
  return values
}

/** The values of each phase, [name, values], the answer's first; none without phases. */
function byPhase(values) {
  const ofTexts = Object.fromEntries(facts.PHASES.OF_TEXTS.map((name) => [name, name === 'phases' ? [] : values[name]]))
  const made = ({ preset, ...own }) => (preset === undefined ? settle({ ...own, phases: [] }, values) : resolve({ ...ofTexts, ...own }, preset))
  return values.phases.length ? paramsOf(values.phases).map(([name, own]) => [name, within(name, () => made(own))]) : []
}

/** Parameters of a text: its phases have the `known` marks that they lack, and it begins in the one whose mark ends the prompt. */
export function ofText(parameters, known, tokens, tokenizer) {
  if (parameters.phases === undefined) return parameters
  const table = withMarks(check('phases', parameters.phases), known, 'the options of a text')
  const textOf = (token) => (tokenizer ? binary(tokenizer.vocabulary.bytes(token)) : '.')
  return { ...parameters, phases: table.length ? withStart(table, tokens, textOf) : table }
}

/** Explicit values over a preset, or over the model file's own over the default preset. */
export function resolve(explicit, preset, metadata = {}) {
  if (preset !== undefined && !Object.hasOwn(PRESETS, preset)) throw parameterError(`preset: there is no preset ${shown(preset)}; the names are ${Object.keys(PRESETS).join(', ')}`)
  let values = settle(PRESETS[preset ?? facts.DEFAULT_PRESET])
  if (preset === undefined) values = settle(fromMetadata(metadata), values)
  if (explicit.mirostat) values = settle(Object.fromEntries(facts.TRUNCATION.map((name) => [name, NEUTRAL[name]])), values)
  return settle(explicit, values)
}

function fromMetadata(metadata) {
  const byKey = new Map(Object.entries(PARAMETERS).map(([name, p]) => [p.metadata ?? name, name]))
  const values = {}
  for (const [key, value] of Object.entries(metadata)) {
    if (!byKey.has(key)) throw parameterError(`the model file asks for general.sampling.${key}=${shown(value)}, which is not known here: name a preset to use instead`)
    values[byKey.get(key)] = value
  }
  return values
}

/** What a text obeys: the parameters of which one may be given. */
const CONSTRAINTS = ['grammar', 'json_schema', 'regex']
export const constraintsOf = (values) => CONSTRAINTS.filter((name) => (values[name] ?? null) !== null)

/** The GBNF that a text obeys; null: nothing. */
export function grammarOf(values) {
  const [name, another] = constraintsOf(values)
  if (another) throw parameterError(`${name} and ${another} are both given: choose one`)
  if (name === 'json_schema') return gbnf(values.json_schema)
  return name === 'regex' ? ofRegex(values.regex) : values.grammar ?? null
}

/** The samplers in order, the one that chooses the token last; `tokenizer`: for texts, and ends of a text. */
export function samplersOf(values, tokenizer) {
  const phases = byPhase(values).map(([name, own]) => [name, samplersOf(own, tokenizer)])
  if (phases.length) return [new Phases(values.phases, phases, tokenizer)]
  const all = { ...values }
  const needed = (what) => {
    if (!tokenizer) throw parameterError(`${what} needs a tokenizer: give it as the option tokenizer`)
    return tokenizer
  }
  const ends = (what) => [...needed(what).vocabulary.eog].sort((a, b) => a - b)
  if (constraintsOf(all).length && all.repetition_under_grammar === 'none') all.repetition_penalty = 1
  all.logit_bias = [...biases(all.logit_bias, needed)]
  if (all.ignore_eos) for (const id of ends('ignore_eos')) all.logit_bias = [...all.logit_bias.filter((b) => b[0] !== id), [id, -Infinity]]
  all.logit_bias.sort((a, b) => a[0] - b[0])
  all.end_tokens = all.min_tokens ? [...new Set([...ends('min_tokens'), ...all.stop_token_ids])].sort((a, b) => a - b) : []
  all.allowed = all.allowed_token_ids === null ? null : packed(all.allowed_token_ids)
  all.sequences = all.bad_words.flatMap((word) => (typeof word === 'string' ? needed('bad_words').spelled(word) : [word]))
  const breaking = all.dry_multiplier !== 0 && all.dry_penalty_last_n !== 0
  all.breakers = breaking ? all.dry_sequence_breakers.flatMap((b) => (typeof b === 'string' ? needed('dry_sequence_breakers').breakers(b) : [b])) : []
  if (all.samplers.includes('infill')) throw parameterError("samplers: infill is available in Python's package only")
  const chain = facts.FIRST.filter((cls) => cls.asked_for(all)).map((cls) => made(cls, all))
  const adaptive = all.samplers.includes('adaptive_p')
  if (adaptive && all.mirostat) throw parameterError('mirostat and adaptive_p both choose the token: give one')
  for (const name of all.samplers) if (name !== 'adaptive_p') chain.push(made(ORDERED.get(name), all))
  const last = adaptive ? 'adaptive_p' : ['dist', 'mirostat', 'mirostat_v2'][all.mirostat]
  chain.push(made(facts.SAMPLERS.find((cls) => cls.sampler === last), all))
  return chain
}

function biases(pairs, needed) {
  const byId = new Map()
  for (const [token, bias] of pairs)
    for (const id of typeof token === 'string' ? needed('logit_bias').encode(token, { addSpecial: false }) : [token]) {
      if (byId.has(id) && (byId.get(id) !== bias || typeof token === 'number')) throw parameterError(`logit_bias gives token ${id} twice: give its bias once, by id`)
      byId.set(id, bias)
    }
  return byId
}

/** Ids as bits in words of 32. */
function packed(ids) {
  if (ids.length === 0) throw parameterError('allowed_token_ids is empty: name one token at least, or null for all')
  const words = new Array((ids.at(-1) >> 5) + 1).fill(0)
  for (const id of ids) words[id >> 5] = (words[id >> 5] | (1 << (id & 31))) >>> 0
  return words
}
