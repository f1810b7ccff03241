// Regular expressions as trees of gbnf.js.  A dialect says which characters its classes have, what a text of one of them
// is, and whether an expression is all of a text or is found in it.
import { MOST_COUNTED, SURROGATES, all, any, complement } from './gbnf.js'

const MOST_CHARACTERS = 20_000
const MOST_DEPTH = 50

/** What is not supported of an expression, or wrong with it; `column`: at which character, from 1. */
export class PatternError extends Error {
  constructor(what, column) {
    super(what)
    this.column = column
  }
}

const point = (character) => [character.codePointAt(), character.codePointAt()]
const joined = (parts) => ({ tree: all(...parts.map((each) => each.tree)), least: parts.reduce((n, each) => n + each.least, 0), most: parts.reduce((n, each) => n + each.most, 0) })
const either = (parts) => ({ tree: any(parts.map((each) => each.tree)), least: Math.min(...parts.map((each) => each.least)), most: Math.max(...parts.map((each) => each.most)) })
const times = (n, length) => (n === 0 || length === 0 ? 0 : n * length)

/**
 * An expression.  dialect: ranges of characters by name; controls, by the letters that escape them; `tree` makes one of
 * ranges of characters; whole: `^` and `$` are at its ends; rust: names of groups, long escapes and \A, \z are known, and
 * classes within classes.
 */
export class Pattern {
  constructor(source, dialect, grammar) {
    this.characters = Array.from(source)
    this.dialect = dialect
    this.grammar = grammar
    this.at = 0
    this.depth = 0
    this.kinds = { d: dialect.digits, w: dialect.word, s: dialect.spaces }
  }
  get next() {
    return this.characters[this.at]
  }
  take(text) {
    if (this.next !== text) return false
    this.at++
    return true
  }
  /** Whether the next characters, at most 80, begin so; they are taken. */
  begins(pattern) {
    const found = pattern.exec(this.characters.slice(this.at, this.at + 80).join(''))
    if (found) this.at += found[0].length
    return found
  }
  fail(what, at = this.at) {
    throw new PatternError(what, at + 1)
  }
  one(ranges) {
    return { tree: this.dialect.tree(ranges, this.grammar), least: 1, most: 1 }
  }
  /** All of it. */
  whole() {
    const { whole, rust } = this.dialect
    if (this.characters.length > MOST_CHARACTERS) this.fail(`the expression has more than ${MOST_CHARACTERS} characters`, MOST_CHARACTERS)
    const anything = whole ? { tree: '', least: 0, most: 0 } : { ...this.one(complement([])), least: 0, most: Infinity }
    if (!whole) anything.tree = { of: anything.tree, min: 0, max: Infinity }
    const ways = []
    do {
      const parts = this.take('^') || (rust && this.begins(/^\\A/)) ? [] : [anything]
      parts.push(this.sequence())
      if (!this.take('$') && !(rust && this.begins(/^\\z/))) parts.push(anything)
      ways.push(joined(parts))
    } while (this.take('|'))
    if (this.next !== undefined) this.fail(`${this.next} is not supported here`)
    return either(ways)
  }
  choice() {
    const ways = []
    if (++this.depth > MOST_DEPTH) this.fail('groups lie too deep in one another')
    do ways.push(this.sequence())
    while (this.take('|'))
    this.depth--
    return either(ways)
  }
  sequence() {
    const parts = []
    const ends = () => this.dialect.rust && this.next === '\\' && this.characters[this.at + 1] === 'z'
    while (this.next !== undefined && !'|)^$'.includes(this.next) && !ends()) parts.push(this.repeated(this.atom()))
    return joined(parts)
  }
  atom() {
    const begin = this.at
    if (this.take('(')) {
      const plain = this.next !== '?' || this.begins(this.dialect.rust ? /^\?(:|P?<[A-Za-z_]\w*>)/ : /^\?:/)
      if (!plain) this.fail(this.dialect.rust ? 'looking around, and flags of groups, are not supported' : 'looking around, and names of groups, are not supported', begin)
      const inside = this.choice()
      if (!this.take(')')) this.fail('a group is not closed, or has ^ or $ in it', this.next === undefined ? begin : this.at)
      return inside
    }
    if ('*+?{}]'.includes(this.next)) this.fail(`${this.next} repeats or closes nothing: write \\${this.next}`)
    return this.one(
      this.take('[') ? this.classOf()
      : this.take('.') ? complement(this.dialect.lineEnds)
      : this.single(),
    )
  }
  /** A character, or one after a backslash. */
  single() {
    const begin = this.at
    const character = this.characters[this.at++]
    if (character !== '\\') return [point(character)]
    const after = this.characters[this.at++]
    if (after === undefined) this.fail('a backslash escapes nothing', begin)
    const { controls, rust } = this.dialect
    if (Object.hasOwn(this.kinds, after)) return this.kinds[after]
    if (Object.hasOwn(this.kinds, after.toLowerCase())) return complement(this.kinds[after.toLowerCase()])
    if (Object.hasOwn(controls, after) && !(after === '0' && /[0-9]/.test(this.next))) return [[controls[after], controls[after]]]
    const digits = { x: 2, u: 4, U: rust ? 8 : 0 }[after]
    const written = digits && this.begins(rust ? new RegExp(`^(?:([0-9a-fA-F]{${digits}})|{([0-9a-fA-F]{1,8})})`) : new RegExp(`^([0-9a-fA-F]{${digits}})`))
    if (written) {
      const code = parseInt(written[1] ?? written[2], 16)
      if (SURROGATES[0] <= code && code <= SURROGATES[1]) this.fail('halves of characters are not supported: write the character itself', begin)
      if (code > 0x10ffff) this.fail('there is no such character', begin)
      return [[code, code]]
    }
    if (/[A-Za-z0-9]/.test(after) || (rust && '<>'.includes(after))) this.fail(`\\${after} is not supported`, begin)
    return [point(after)]
  }
  classOf() {
    const { rust } = this.dialect
    const begin = this.at - 1
    const negated = this.take('^')
    const made = []
    if (rust && this.next === ']') this.fail('a class begins with ], which is not supported: write \\]')
    while (this.next !== ']') {
      if (this.next === undefined) this.fail('a class is not closed', begin)
      if (rust && /^(\[|&&|--|~~)/.test(this.next + this.characters[this.at + 1])) this.fail(`classes within classes are not supported: write \\${this.next}`)
      const start = this.at
      const from = this.single()
      if (this.next !== '-' || this.characters[this.at + 1] === ']') {
        made.push(...from)
        continue
      }
      this.at++
      if (this.next === undefined) this.fail('a class is not closed', begin)
      if (rust && this.next === '-') this.fail('-- is not supported in a class: write \\-')
      const to = this.single()
      const [[a, same], [b, other]] = [from[0], to[0]]
      if (from.length > 1 || to.length > 1 || a !== same || b !== other || a > b) this.fail('a range of a class is none', start)
      made.push([a, b])
    }
    this.at++
    return negated ? complement(made) : made
  }
  repeated({ tree, least, most }) {
    const begin = this.at
    let [min, max] = [1, 1]
    if (this.take('*')) [min, max] = [0, Infinity]
    else if (this.take('+')) [min, max] = [1, Infinity]
    else if (this.take('?')) [min, max] = [0, 1]
    else if (this.take('{')) {
      const found = this.begins(/^(\d+)(,(\d*))?}/)
      if (!found) this.fail('a repetition is not {m}, {m,} or {m,n}', begin)
      min = Number(found[1])
      max = found[2] === undefined ? min : found[3] ? Number(found[3]) : Infinity
      if (max < min) this.fail('a repetition has a maximum below its minimum', begin)
      const most = this.dialect.rust && max < Infinity ? max : min
      if (most > MOST_COUNTED) this.fail(`a repetition is of more than ${MOST_COUNTED}`, begin)
    } else return { tree, least, most }
    this.take('?') // as few as possible: the same texts
    if (this.next && '*+?{'.includes(this.next)) this.fail('a repetition is repeated')
    return { tree: this.grammar.repeat(tree, min, max), least: times(min, least), most: times(max, most) }
  }
}
