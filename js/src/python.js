// Python's operators where JavaScript's differ: what tools/to_javascript.py writes uses them.  Dictionaries are
// Maps, tuples and lists arrays.
import { AleatorError } from './native.js'
import { logarithm, power } from './rotation.js'

/** Whether Python takes a value for true. */
export const truth = (value) => (Array.isArray(value) ? value.length > 0 : value instanceof Map ? value.size > 0 : Boolean(value))

/** `a and b`, `a or b`: values that are made when they are needed. */
export function both(...makers) {
  let value
  for (const make of makers) if (!truth((value = make()))) break
  return value
}
export function either(...makers) {
  let value
  for (const make of makers) if (truth((value = make()))) break
  return value
}

export const iterated = (value) => (Array.isArray(value) ? value : value instanceof Map ? [...value.keys()] : [...value])
export function item(value, key) {
  const found = value instanceof Map ? value.get(key) : value.at(Number(key))
  if (found === undefined) throw new RangeError(`there is no item ${String(key)}`)
  return found
}
export const sorted = (values) => [...iterated(values)].sort(inOrder)
/** Below 0 where a comes before b: texts by their code points. */
export function inOrder(a, b) {
  if ((typeof a === 'string') !== (typeof b === 'string')) throw new TypeError('texts and others have no order')
  if (typeof a !== 'string') return a < b ? -1 : Number(a > b)
  let at = 0
  while (at < a.length && a[at] === b[at]) at++
  const [x, y] = [a, b].map((text) => text.codePointAt(at) ?? -1)
  return x - y
}
export const reversed = (values) => [...iterated(values)].reverse()
export const len = (value) => (value instanceof Map ? value.size : value.length)
export function equal(a, b) {
  if (Array.isArray(a) && Array.isArray(b)) return a.length === b.length && a.every((each, i) => equal(each, b[i]))
  return a === b || (a == null && b == null)
}

export function contains(all, value) {
  if (typeof all === 'string') return all.includes(value)
  if (Array.isArray(all)) return all.some((each) => equal(each, value))
  return all.has(value)
}

// Operators of numbers, of texts and of lists.
export function add(a, b) {
  if (Array.isArray(a) && Array.isArray(b)) return [...a, ...b]
  return typeof a === 'string' && typeof b === 'string' ? a + b : known(a) + known(b)
}
export const multiply = (a, b) => (typeof a === 'string' ? a.repeat(b) : Array.isArray(a) ? Array.from({ length: b }, () => a).flat(1) : known(a) * known(b))
export const remainder = (a, b) => ((known(a) % known(b)) + b) % b
function known(value) {
  if (typeof value === 'number' || typeof value === 'boolean') return value
  throw new TypeError(`${String(value)} is no number`)
}

export const replace = (data, changes) => Object.assign(Object.create(Object.getPrototypeOf(data)), data, changes)
export const error = (name, message) => new AleatorError(name, message)

export function is_a(value, kind) {
  if (kind === 'list') return Array.isArray(value)
  if (kind === 'mapping') return value instanceof Map
  if (kind === 'integer') return Number.isInteger(value)
  return typeof value === kind
}

export const str = (value) => (Array.isArray(value) ? `[${value.map(repr).join(', ')}]` : (NAMES.get(value) ?? String(value)))
const NAMES = new Map([[null, 'None'], [true, 'True'], [false, 'False']])
export const repr = (value) => (typeof value === 'string' ? `'${value}'` : str(value))

// Functions and types of the same names.
export function range(from, to, step = 1) {
  const [first, end] = to === undefined ? [0, from] : [from, to]
  return Array.from({ length: Math.max(0, Math.ceil((end - first) / step)) }, (_, i) => first + i * step)
}
export const tuple = (values) => [...iterated(values)]
export const list = tuple
export const set = (values) => [...new Set(iterated(values))]
export const any = (values) => iterated(values).some(truth)
export const all = (values) => iterated(values).every(truth)
export const sum = (values) => iterated(values).reduce((a, b) => a + Number(known(b)), 0)
export const max = (...values) => Math.max(...several(values))
export const min = (...values) => Math.min(...several(values))
export const enumerate = (values) => iterated(values).map((each, i) => [i, each])
/** Strictly: of the same length. */
export function zip(...all) {
  const lists = all.map(iterated)
  if (lists.some(({ length }) => length !== lists[0].length)) throw new RangeError('zip of other lengths')
  return lists[0].map((_, i) => lists.map((each) => each[i]))
}
/** Numbers that are given, or those of the one list. */
function several(values) {
  const numbers = (values.length === 1 ? iterated(values[0]) : values).map(known)
  if (!numbers.length) throw new RangeError('the greatest or least of nothing')
  return numbers
}
export const bool = truth
export const int = Math.trunc
export const float = Number
export const float32 = Math.fround
export const log = logarithm
export const sqrt = Math.sqrt
export { power }

/** A method of Python's texts, lists or dictionaries. */
export function method(value, name) {
  const own = METHODS[name]
  return own ? (...given) => own(value, ...given) : (...given) => value[name](...given)
}
export const METHODS = {
  get: (all, key, otherwise = null) => all.get(key) ?? otherwise,
  values: (all) => [...all.values()],
  items: (all) => [...all.entries()],
  append: (all, value) => void all.push(value),
  startswith: (text, start, at = 0) => text.startsWith(start, at),
  isascii: (text) => /^[\0-\x7f]*$/.test(text),
  isdigit: (text) => /^\d+$/.test(text),
  encode: (text) => new TextEncoder().encode(text),
  join: (between, texts) => iterated(texts).join(between),
  partition(text, mark) {
    const at = text.indexOf(mark)
    return at < 0 ? [text, '', ''] : [text.slice(0, at), mark, text.slice(at + mark.length)]
  },
  union: (a, b) => set([...iterated(a), ...iterated(b)]),
  difference: (a, b) => iterated(a).filter((each) => !contains(b, each)),
  intersection: (a, b) => iterated(a).filter((each) => contains(b, each)),
}

/** A regular expression; what it finds is a Map of groups, by number and by name. */
export class Pattern {
  constructor(source, flags) {
    this.here = new RegExp(source, `uy${flags}`)
    this.whole = new RegExp(`^(?:${source})$`, `u${flags}`)
    this.every = new RegExp(source, `ug${flags}`)
  }
  search(text) {
    return found(this.every, text)
  }
  match(text, at = 0) {
    return found(this.here, text, at)
  }
  fullmatch(text) {
    return found(this.whole, text)
  }
  sub(f, text) {
    return text.replace(this.every, (...given) => f(given.slice(0, given.findIndex((each) => typeof each === 'number')).map(absent)))
  }
}
class Match extends Map {
  end() {
    return this.last
  }
  groups() {
    return this.numbered.slice(1)
  }
}
function found(expression, text, at = 0) {
  expression.lastIndex = at
  const match = expression.exec(text)
  if (!match) return null
  const numbered = Array.from(match, absent)
  const named = Object.entries(match.groups ?? {}).map(([name, group]) => [name, absent(group)])
  return Object.assign(new Match([...numbered.entries(), ...named]), { last: match.index + match[0].length, numbered })
}
const absent = (group) => group ?? null
