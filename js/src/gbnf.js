// Grammars as trees, and their text in GBNF (docs/grammar.md).  A tree is a text, which stands for itself, or
// { set: ranges of code points }, { all: trees, one after the other }, { any: trees, one of them },
// { of: a tree, min, max: how often }, { rule: a name } or { token: an id }.
import { AleatorError } from './native.js'

const MOST_RULES = 100_000
const MOST_REPEATED = 2000 // GBNF takes a larger maximum for none
const BLOCK = 1000
/** The largest number that is counted. */
export const MOST_COUNTED = 100_000

export const all = (...parts) => ({ all: parts })
export const any = (parts) => ({ any: parts })
export const maybe = (part) => ({ of: part, min: 0, max: 1 })
export const NOTHING = any([])

/** Rules by name; `root` is where a text begins. */
export class Grammar {
  rules = new Map()
  /** A rule of this tree, which may be set later; `hint`: what its name begins with. */
  rule(hint, tree = NOTHING) {
    if (this.rules.size >= MOST_RULES) throw new AleatorError('GrammarError', `the grammar asks for more than ${MOST_RULES} rules: ask for less, or for shorter parts`)
    const rule = `${hint.replace(/[^A-Za-z0-9]+/g, '-')}-${this.rules.size}`
    this.rules.set(rule, tree)
    return { rule }
  }
  /** A tree so often; `max`: at most MOST_COUNTED are allowed, unless infinite. */
  repeat(of, min, max) {
    if (max < min) return NOTHING
    if (max === Infinity || max <= MOST_REPEATED) return { of, min, max }
    let more = Math.min(max, MOST_COUNTED) - min
    let rest = { of, min: 0, max: more % BLOCK }
    const fewer = this.rule('fewer', { of, min: 0, max: BLOCK - 1 })
    const block = this.rule('block', { of, min: BLOCK, max: BLOCK })
    for (; more >= BLOCK; more -= BLOCK) rest = this.rule('more', any([fewer, all(block, rest)]))
    return all({ of, min, max: min }, rest)
  }
  /** A text up to a mark, which is the first of its kind in it, with the mark. */
  upTo(mark) {
    const characters = Array.from(mark)
    const states = characters.map(() => this.rule('before'))
    // How much of the mark has been read after another character.
    const next = (read, character) => {
      const text = [...characters.slice(0, read), character].join('')
      let most = Math.min(read + 1, characters.length)
      while (most && !text.endsWith(characters.slice(0, most).join(''))) most--
      return most
    }
    const known = [...new Set(characters)]
    states.forEach(({ rule }, read) => {
      const to = (n) => states[n] ?? ''
      const ways = known.map((character) => all(character, to(next(read, character))))
      this.rules.set(rule, any([...ways, all(but(known), states[0])]))
    })
    return states[0]
  }
  /** The text of the grammar; ways that never end are left out; null: all ways are such. */
  text(root) {
    const ending = new Set()
    const ends = (tree) =>
      typeof tree === 'string' ? true
      : tree.set ? tree.set.length > 0
      : tree.all ? tree.all.every(ends)
      : tree.any ? tree.any.some(ends)
      : tree.of !== undefined ? tree.min === 0 || ends(tree.of)
      : tree.token !== undefined ? true
      : ending.has(tree.rule)
    let left = [...this.rules].reverse()
    for (let before = -1; before !== left.length; ) {
      before = left.length
      left = left.filter(([name, tree]) => !ends(tree) || !ending.add(name)).reverse() // forwards and backwards
    }
    if (!ends(root)) return null
    // GBNF repeats no empty text.
    const empty = (tree) =>
      tree === '' || (tree.all ? tree.all.every(empty) : tree.any ? tree.any.filter(ends).every(empty) : tree.of !== undefined && (tree.max === 0 || !ends(tree.of) || empty(tree.of)))
    // inside: what a tree is a part of, which says whether it needs brackets.
    const written = (tree, inside = '') => {
      if (typeof tree === 'string') return literal(tree)
      if (tree.set) return `[${tree.set.map(([a, b]) => (a === b ? escaped(a) : `${escaped(a)}-${escaped(b)}`)).join('')}]`
      if (tree.rule) return tree.rule
      if (tree.token !== undefined) return `<[${tree.token}]>`
      if (tree.of !== undefined) {
        if (empty(tree)) return '""'
        const made = written(tree.of, 'of') + times(tree)
        return inside === 'of' ? `(${made})` : made
      }
      const kind = tree.all ? 'all' : 'any'
      const ways = (tree.all ?? tree.any).filter(ends)
      const parts = ways.filter((each) => !empty(each))
      if (tree.any && parts.length && parts.length < ways.length) return written(maybe(any(parts)), inside)
      if (parts.length < 2) return parts.length ? written(parts[0], inside) : '""'
      const made = parts.map((each) => written(each, kind)).join(tree.all ? ' ' : ' | ')
      return inside === 'of' || (inside === 'all' && kind === 'any') ? `(${made})` : made
    }
    const rules = [...this.rules].filter(([name]) => ending.has(name))
    return [['root', root], ...rules].map(([name, tree]) => `${name} ::= ${written(tree)}\n`).join('')
  }
}

/** A text in quotes. */
const literal = (text) => JSON.stringify(text).replace(/\\./g, (pair) => (pair === '\\b' ? '\\x08' : pair === '\\f' ? '\\x0c' : pair))

const times = ({ min, max }) => (min === max ? `{${min}}` : min === 0 && max === 1 ? '?' : min === 0 && max === Infinity ? '*' : max === Infinity ? `{${min},}` : `{${min},${max}}`)

/** A code point in a class. */
function escaped(code) {
  const text = String.fromCodePoint(code)
  if (/[A-Za-z0-9]/.test(text)) return text
  const digits = code.toString(16)
  return code < 0x100 ? `\\x${digits.padStart(2, '0')}` : code < 0x10000 ? `\\u${digits.padStart(4, '0')}` : `\\U${digits.padStart(8, '0')}`
}

export const SURROGATES = [0xd800, 0xdfff]
const LAST = 0x10ffff

/** All code points but those in these ranges, and but surrogates, which are no characters. */
export function complement(ranges) {
  const made = []
  let next = 0
  for (const [a, b] of [...ranges, SURROGATES].sort(([a], [b]) => a - b)) {
    if (a > next) made.push([next, a - 1])
    next = Math.max(next, b + 1)
  }
  if (next <= LAST) made.push([next, LAST])
  return made
}
export const common = (a, b) => complement([...complement(a), ...complement(b)])
/** Any character but these. */
export const but = (characters) => ({ set: complement(characters.map((each) => [each.codePointAt(), each.codePointAt()])) })
