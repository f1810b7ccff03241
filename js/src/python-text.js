// Python's texts, JSON, patterns and iterators where JavaScript's differ: what tools/parsers_to_javascript.py writes uses
// them.  Whole numbers of JSON are BigInts.  Halves of surrogate pairs that a literal escapes one by one become characters.
import { DIGITS, MOST_LEVELS } from './facts.js'
import { METHODS, error, inOrder, iterated } from './python.js'
export * from './python.js'

export class ValueError extends Error {}
export class StopIteration extends Error {
  constructor(value) {
    super()
    this.value = value
  }
}
const refuse = (why) => {
  throw new ValueError(why)
}

// Iterators: a loop that ends early leaves them as they are.
export function each(values) {
  const iterator = (values instanceof Map ? values.keys() : values)[Symbol.iterator]()
  return { [Symbol.iterator]: () => ({ next: () => iterator.next() }) }
}
export function next(values, otherwise) {
  if (Array.isArray(values)) return values.length ? values[0] : otherwise
  const { done, value } = values.next()
  if (done) throw new StopIteration(value)
  return value
}

// Collections.
export const dict = (pairs) => new Map(pairs)
export const new_set = () => new Set()
export const map = (f, values) => iterated(values).map((each) => f(each))
export const common = (a, b) => iterated(a).filter((each) => iterated(b).includes(each))
export const get = (all, key, otherwise = null) => (all.has(key) ? all.get(key) : otherwise)
export const items = METHODS.items
export const keys = iterated
export const index = (list, value) => list.indexOf(value)
export const append = METHODS.append
export const update = (set, values) => values.forEach((each) => set.add(each))
export function put(all, key, value) {
  if (all instanceof Map) all.set(key, value)
  else all[key] = value
}
export function setdefault(all, key, value) {
  if (!all.has(key)) all.set(key, value)
  return all.get(key)
}
const before = (a, b) => (Array.isArray(a) ? a.some((each, i) => each < b[i] && a.slice(0, i).every((one, k) => one === b[k])) : a < b)
export function least(...given) {
  const { key = (each) => each } = given.length === 2 && given[1].key ? given.pop() : {}
  return (given.length === 1 ? iterated(given[0]) : given).reduce((a, b) => (before(key(b), key(a)) ? b : a))
}
export const greatest = (values, { default: otherwise }) => (values.length ? Math.max(...values) : otherwise)

// Texts.
const SPACE = '\t\n\v\f\r\x1c\x1d\x1e\x1f \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000'
export function lstrip(text, of = SPACE) {
  let at = 0
  while (at < text.length && of.includes(text[at])) at++
  return text.slice(at)
}
export function rstrip(text, of = SPACE) {
  let at = text.length
  while (at && of.includes(text[at - 1])) at--
  return text.slice(0, at)
}
export const strip = (text, of) => lstrip(rstrip(text, of), of)
export const find = (text, part, at = 0) => text.indexOf(part, at)
export const startswith = (text, start, at = 0) => iterated(typeof start === 'string' ? [start] : start).some((each) => text.startsWith(each, at))
export const removeprefix = (text, start) => (text.startsWith(start) ? text.slice(start.length) : text)
export const removesuffix = (text, end) => (end && text.endsWith(end) ? text.slice(0, -end.length) : text)
export const replace = (of, ...given) => (typeof of === 'string' ? of.replaceAll(given[0], () => given[1]) : Object.assign(Object.create(Object.getPrototypeOf(of)), of, ...given))
export const split = (text, between) => text.split(between)
export const join = METHODS.join
export const partition = METHODS.partition
export const lower = (text) => text.toLowerCase()
export const isprintable = (text) => /^[\p{L}\p{M}\p{N}\p{P}\p{S} ]*$/u.test(text)

const WRITTEN = { '\\': '\\\\', '\n': '\\n', '\r': '\\r', '\t': '\\t' }
/** A text as Python's repr() writes it. */
export function quoted(text) {
  const mark = text.includes("'") && !text.includes('"') ? '"' : "'"
  const escaped = (character) => {
    const code = character.codePointAt(0).toString(16)
    const [letter, digits] = code.length < 3 ? ['x', 2] : code.length < 5 ? ['u', 4] : ['U', 8]
    return `\\${letter}${code.padStart(digits, '0')}`
  }
  const one = (each) => (each === mark ? `\\${each}` : (WRITTEN[each] ?? (isprintable(each) ? each : escaped(each))))
  return mark + Array.from(text, one).join('') + mark
}

// Numbers.
const MOST_DIGITS = 4300
const plain = (text) => strip(text).replace(/[^\0-\x7f]/gu, (each) => {
  const range = DIGITS.find(([a, b]) => a <= each.codePointAt() && each.codePointAt() <= b)
  return range ? String((each.codePointAt() - range[0]) % 10) : each
})
function whole(text) {
  if (/^-?\d/.test(text) && text.length - text.startsWith('-') > MOST_DIGITS && !/^-?0[xob]/i.test(text)) refuse('too many digits')
  return text.startsWith('-') ? -BigInt(text.slice(1)) : BigInt(text)
}
export function parse_int(text) {
  const given = plain(text)
  if (!/^[+-]?(?:0(?:_?0)*|[1-9](?:_?\d)*|0x(?:_?[\da-f])+|0o(?:_?[0-7])+|0b(?:_?[01])+)$/i.test(given)) refuse('no whole number')
  return whole(given.replaceAll('_', '').replace('+', ''))
}
export function parse_float(text) {
  const given = plain(text)
  if (!/^[+-]?(?:\d(?:_?\d)*(?:\.(?:\d(?:_?\d)*)?)?|\.\d(?:_?\d)*)(?:e[+-]?\d(?:_?\d)*)?$/i.test(given)) refuse('no number')
  return Number(given.replaceAll('_', ''))
}
/** A float as Python writes it. */
export function float_text(number) {
  if (!Number.isFinite(number)) return Number.isNaN(number) ? 'nan' : number > 0 ? 'inf' : '-inf'
  if (Object.is(number, -0)) return '-0.0'
  const [digits, power] = number.toExponential().split('e')
  if (Number(power) < -4 || Number(power) >= 16) return `${digits}e${power[0]}${power.slice(1).padStart(2, '0')}`
  const text = Number(power) < 0 ? number.toFixed(digits.replace(/[-.]/g, '').length - 1 - Number(power)) : String(number)
  return text.includes('.') ? text : `${text}.0`
}

// JSON.
const CONSTANTS = { null: null, true: true, false: false, NaN, Infinity, '-Infinity': -Infinity }
const TOKEN = /"(?:[^"\\\0-\x1f]|\\(?:["\\/bfnrt]|u[\da-fA-F]{4}))*"|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?|null|true|false|NaN|-?Infinity|[[\]{},:]/y
const JSON_SPACE = /[ \t\n\r]*/y

class JsonReader {
  constructor(text, at, constant) {
    Object.assign(this, { text, at, constant, depth: 0 })
  }
  space() {
    JSON_SPACE.lastIndex = this.at
    this.at += JSON_SPACE.exec(this.text)[0].length
  }
  token() {
    TOKEN.lastIndex = this.at
    const [said] = TOKEN.exec(this.text) ?? refuse(`a value is missing (character ${this.at})`)
    this.at += said.length
    return said
  }
  /** Whether this sign comes next, which is read. */
  sign(sign) {
    const comes = this.text[this.at] === sign
    this.at += comes
    return comes
  }
  value() {
    const said = this.token()
    if (said[0] === '"') return JSON.parse(said)
    if (said === '{' || said === '[') return this.several(said === '{')
    if (/[\]},:]/.test(said)) refuse(`a value is missing (character ${this.at})`)
    if (/^-?\d/.test(said)) return /[.eE]/.test(said) ? Number(said) : whole(said)
    return /[NI]/.test(said) && this.constant ? this.constant(said) : CONSTANTS[said]
  }
  several(keyed) {
    if (++this.depth > MOST_LEVELS) refuse('nested too deeply')
    const made = keyed ? new Map() : []
    const close = keyed ? '}' : ']'
    this.space()
    for (let first = true; first ? !this.sign(close) : true; first = false) {
      this.space()
      if (keyed) {
        if (this.text[this.at] !== '"') refuse(`a name is missing (character ${this.at})`)
        const key = JSON.parse(this.token())
        this.space()
        if (!this.sign(':')) refuse(`a colon is missing (character ${this.at})`)
        this.space()
        made.set(key, this.value())
      } else made.push(this.value())
      this.space()
      if (this.sign(close)) break
      if (!this.sign(',')) refuse(`a comma is missing (character ${this.at})`)
    }
    this.depth--
    return made
  }
}
export function loads(text, { parse_constant } = {}) {
  const reader = new JsonReader(text, 0, parse_constant)
  reader.space()
  const value = reader.value()
  reader.space()
  return reader.at === text.length ? value : refuse(`more than one value (character ${reader.at})`)
}
/** Refuses a text with too many levels. */
export function check_levels(text) {
  loads(text)
}
/** A value at an index, and where it ends. */
export function raw_decode(text, at, { parse_constant }) {
  const reader = new JsonReader(text, at, parse_constant)
  return [reader.value(), reader.at]
}
export function dumps(value, { ensure_ascii = true, allow_nan = true, indent = null, separators, sort_keys = false } = {}) {
  const [between, colon] = separators ?? [indent === null ? ', ' : ',', ': ']
  const line = (depth) => (indent === null ? '' : `\n${' '.repeat(Math.max(0, indent) * depth)}`)
  const several = ([open, close], parts, depth) => open + (parts.length ? line(depth + 1) + parts.join(between + line(depth + 1)) + line(depth) : '') + close
  const written = (each, depth) => {
    if (Array.isArray(each)) return several('[]', each.map((one) => written(one, depth + 1)), depth)
    if (each instanceof Map) {
      const pairs = sort_keys ? [...each].sort(([a], [b]) => inOrder(a, b)) : [...each]
      return several('{}', pairs.map(([key, one]) => `${written(String(key))}${colon}${written(one, depth + 1)}`), depth)
    }
    if (typeof each === 'number') return Number.isFinite(each) ? float_text(each) : allow_nan ? String(each) : refuse('no number of JSON')
    if (typeof each === 'bigint' && String(each).replace('-', '').length > MOST_DIGITS) refuse('too many digits')
    if (typeof each !== 'string') return String(each)
    const text = JSON.stringify(each)
    return ensure_ascii ? text.replace(/[^ -~]/g, (one) => `\\u${one.charCodeAt().toString(16).padStart(4, '0')}`) : text
  }
  return written(value, 0)
}

// Literals.
const ESCAPES = { '\n': '', '\\': '\\', "'": "'", '"': '"', a: '\x07', b: '\b', f: '\f', n: '\n', r: '\r', t: '\t', v: '\v' }
/** The value of a text in Python's quotes; names of characters, as in \N{BULLET}, are not known. */
export function literal_eval(given) {
  const literal = given.replace(/\r\n?/g, '\n')
  const quotes = /^('''|"""|'|")/.exec(literal)[1]
  const inner = literal.slice(quotes.length, -quotes.length)
  if (inner.includes('\0') || (quotes.length === 1 && /(?:^|[^\\])(?:\\\\)*\n/.test(inner))) refuse('no text')
  return inner.replace(/\\([0-7]{1,3}|x[\da-fA-F]{2}|u[\da-fA-F]{4}|U[\da-fA-F]{8}|[^])/g, (_, said) => {
    if (/^[0-7]/.test(said)) return String.fromCharCode(parseInt(said, 8))
    if (said in ESCAPES) return ESCAPES[said]
    const code = said.length > 1 ? parseInt(said.slice(1), 16) : Infinity
    return code <= 0x10ffff ? String.fromCodePoint(code) : refuse('an escape of another form')
  })
}

// Data of JavaScript.
/** Objects as Maps, without what is undefined, and whole numbers as BigInts; name: of the option. */
export function fromObject(value, name, depth = 0) {
  if (depth > MOST_LEVELS) throw error('ParameterError', `${name}: objects and arrays are nested more than ${MOST_LEVELS} deep, or within themselves: give less deep ones`)
  const inner = (each) => fromObject(each, name, depth + 1)
  if (Array.isArray(value)) return value.map(inner)
  if (Number.isSafeInteger(value)) return BigInt(value)
  if (typeof value !== 'object' || value === null || value instanceof Map) return value ?? null
  return new Map(Object.entries(value).filter(([, each]) => each !== undefined).map(([key, each]) => [key, inner(each)]))
}
/** Maps as objects. */
export function toObject(value) {
  if (Array.isArray(value)) return value.map(toObject)
  if (typeof value === 'bigint') return Number(value)
  return value instanceof Map ? Object.fromEntries(Array.from(value, ([name, each]) => [name, toObject(each)])) : value
}
