// Strings of JSON schemas: lengths, patterns, formats and names of properties, as trees of gbnf.js.
import { MOST_COUNTED, SURROGATES, all, any, common, complement } from './gbnf.js'

const code = (text) => text.codePointAt()
const range = (text) => [code(text), code(Array.from(text).at(-1))]
const QUOTE = code('"')
const BACKSLASH = code('\\')
const RAW = complement([[0, 31], [QUOTE, QUOTE], [BACKSLASH, BACKSLASH]])
const ESCAPED = [...Array(32).keys(), QUOTE, BACKSLASH]
const escape = (point) => JSON.stringify(String.fromCodePoint(point)).slice(1, -1)

const HEX = { set: [range('09'), range('AF'), range('af')] }
/** A character of a string, written in any way, but not as two halves, which would count as two. */
export const CHARACTER = any([
  { set: RAW },
  all('\\', any([
    { set: [...'"/\\bfnrt'].map(range) },
    all('u', any([
      all({ set: [range('09'), range('AC'), range('EF'), range('ac'), range('ef')] }, HEX, HEX, HEX),
      all({ set: [range('D'), range('d')] }, { set: [range('07')] }, HEX, HEX),
    ])),
  ])),
])

/** One of these characters in a string, written in the usual way. */
function one(ranges) {
  const has = (point) => ranges.some(([a, b]) => a <= point && point <= b)
  return any([{ set: common(ranges, RAW) }, ...ESCAPED.filter(has).map(escape)])
}

/** Names of properties but these, without their quotes; written in one way only, so that a name has one text. */
export function otherNames(names, grammar) {
  const short = ESCAPED.map(escape).filter((text) => text.length === 2)
  const other = (taken) => any([{ set: common(RAW, complement(taken.filter((text) => text.length < 2 || text[0] !== '\\').map(range))) }, ...short.filter((text) => !taken.includes(text))])
  const unit = (grammar.unit ??= grammar.rule('unit', other([])))
  const tree = { next: new Map() }
  for (const name of names) {
    let node = tree
    for (const text of Array.from(name, (character) => escape(code(character)))) {
      if (!node.next.has(text)) node.next.set(text, { next: new Map() })
      node = node.next.get(text)
    }
    node.taken = true
  }
  const ruleOf = ({ next, taken }) => {
    const rule = grammar.rule('name')
    const known = [...next.keys()]
    const ways = known.map((text) => [text, next.get(text)])
    const rest = { of: unit, min: 0, max: Infinity }
    waiting.push(() => grammar.rules.set(rule.rule, any([...ways.map(([text, node]) => all(text, ruleOf(node))), all(other(known), rest), ...(taken ? [] : [''])])))
    return rule
  }
  const waiting = []
  const root = ruleOf(tree)
  while (waiting.length) waiting.pop()() // not by recursion: a name may be long
  return root
}

const day = '(0[1-9]|1[0-9]|2[0-8])'
const DATE = `[1-9][0-9]{3}-((0[13578]|1[02])-(${day}|29|30|31)|(0[469]|11)-(${day}|29|30)|02-${day})`
const TIME = '([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])'
const OCTET = '(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])'
const LETTERS = '[A-Za-z0-9]+'
/** Texts of these formats, if not all. */
export const FORMATS = {
  date: `^${DATE}$`,
  time: `^${TIME}$`,
  'date-time': `^${DATE}T${TIME}$`,
  uuid: '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$',
  ipv4: `^(${OCTET}\\.){3}${OCTET}$`,
  email: `^${LETTERS}([._+-]${LETTERS})*@(${LETTERS}(-${LETTERS})*\\.)+[A-Za-z]{2,}$`,
}

const SPACES = [[9, 13], [32, 32], [0xa0, 0xa0], [0x1680, 0x1680], [0x2000, 0x200a], [0x2028, 0x2029], [0x202f, 0x202f], [0x205f, 0x205f], [0x3000, 0x3000], [0xfeff, 0xfeff]]
const WORD = [range('09'), range('AZ'), range('_'), range('az')]
const LINE_ENDS = [[10, 10], [13, 13], [0x2028, 0x2029]]
const KINDS = { d: [range('09')], w: WORD, s: SPACES }
const CONTROLS = { t: 9, n: 10, v: 11, f: 12, r: 13, 0: 0 }

/**
 * The strings, without their quotes, in which an ECMAScript expression is found; `least` and `most`: their lengths.
 * Throws an Error that says what is not supported.
 */
export function patternOf(source, grammar) {
  return new Pattern(source, grammar).whole()
}

const joined = (parts) => ({ tree: all(...parts.map((each) => each.tree)), least: parts.reduce((n, each) => n + each.least, 0), most: parts.reduce((n, each) => n + each.most, 0) })
const either = (parts) => ({ tree: any(parts.map((each) => each.tree)), least: Math.min(...parts.map((each) => each.least)), most: Math.max(...parts.map((each) => each.most)) })
const times = (n, length) => (n === 0 || length === 0 ? 0 : n * length)

class Pattern {
  constructor(source, grammar) {
    this.characters = Array.from(source)
    this.grammar = grammar
    this.at = 0
    this.depth = 0
  }
  get next() {
    return this.characters[this.at]
  }
  take(text) {
    if (this.next !== text) return false
    this.at++
    return true
  }
  fail(what) {
    throw new Error(`${what} (character ${this.at + 1})`)
  }
  whole() {
    const anything = { tree: { of: one(complement([])), min: 0, max: Infinity }, least: 0, most: Infinity }
    const ways = []
    do {
      const parts = this.take('^') ? [] : [anything]
      parts.push(this.sequence())
      if (!this.take('$')) parts.push(anything)
      ways.push(joined(parts))
    } while (this.take('|'))
    if (this.next !== undefined) this.fail(`${this.next} is not supported here`)
    return either(ways)
  }
  choice() {
    const ways = []
    if (++this.depth > 50) this.fail('groups lie too deep in one another')
    do ways.push(this.sequence())
    while (this.take('|'))
    this.depth--
    return either(ways)
  }
  sequence() {
    const parts = []
    while (this.next !== undefined && !'|)^$'.includes(this.next)) parts.push(this.repeated(this.atom()))
    return joined(parts)
  }
  atom() {
    if (this.take('(')) {
      if (this.take('?') && !this.take(':')) this.fail('looking around, and names of groups, are not supported')
      const inside = this.choice()
      if (!this.take(')')) this.fail('a group is not closed, or has ^ or $ in it')
      return inside
    }
    if ('*+?{}]'.includes(this.next)) this.fail(`${this.next} repeats or closes nothing: write \\${this.next}`)
    const ranges =
      this.take('[') ? this.classOf()
      : this.take('.') ? complement(LINE_ENDS)
      : this.single()
    return { tree: one(ranges), least: 1, most: 1 }
  }
  /** A character, or one after a backslash. */
  single() {
    const character = this.characters[this.at++]
    if (character !== '\\') return [range(character)]
    const after = this.characters[this.at++]
    if (after === undefined) this.fail('a backslash escapes nothing')
    if (Object.hasOwn(KINDS, after)) return KINDS[after]
    if (Object.hasOwn(KINDS, after.toLowerCase())) return complement(KINDS[after.toLowerCase()])
    if (Object.hasOwn(CONTROLS, after) && !(after === '0' && /[0-9]/.test(this.next))) return [[CONTROLS[after], CONTROLS[after]]]
    const digits = { x: 2, u: 4 }[after]
    const written = digits && this.characters.slice(this.at, this.at + digits).join('')
    if (digits && /^[0-9a-fA-F]+$/.test(written) && written.length === digits) {
      this.at += digits
      const point = parseInt(written, 16)
      if (SURROGATES[0] <= point && point <= SURROGATES[1]) this.fail('halves of characters are not supported: write the character itself')
      return [[point, point]]
    }
    if (/[A-Za-z0-9]/.test(after)) this.fail(`\\${after} is not supported`)
    return [range(after)]
  }
  classOf() {
    const negated = this.take('^')
    let made = []
    while (this.next !== ']') {
      if (this.next === undefined) this.fail('a class is not closed')
      const from = this.single()
      if (this.next !== '-' || this.characters[this.at + 1] === ']') {
        made.push(...from)
        continue
      }
      this.at++
      if (this.next === undefined) this.fail('a class is not closed')
      const to = this.single()
      const [[a, same], [b, other]] = [from[0], to[0]]
      if (from.length > 1 || to.length > 1 || a !== same || b !== other || a > b) this.fail('a range of a class is none')
      made.push([a, b])
    }
    this.at++
    return negated ? complement(made) : made
  }
  repeated({ tree, least, most }) {
    let [min, max] = [1, 1]
    if (this.take('*')) [min, max] = [0, Infinity]
    else if (this.take('+')) [min, max] = [1, Infinity]
    else if (this.take('?')) [min, max] = [0, 1]
    else if (this.take('{')) {
      const end = this.characters.indexOf('}', this.at)
      const found = /^(\d+)(,(\d*))?$/.exec(this.characters.slice(this.at, Math.max(this.at, end)).join(''))
      if (!found) this.fail('a repetition is not {m}, {m,} or {m,n}')
      this.at = end + 1
      min = Number(found[1])
      max = found[2] === undefined ? min : found[3] ? Number(found[3]) : Infinity
      if (max < min) this.fail('a repetition has a maximum below its minimum')
      if (min > MOST_COUNTED) this.fail(`a repetition is of more than ${MOST_COUNTED}`)
    } else return { tree, least, most }
    this.take('?') // as few as possible: the same texts
    if (this.next && '*+?{'.includes(this.next)) this.fail('a repetition is repeated')
    return { tree: this.grammar.repeat(tree, min, max), least: times(min, least), most: times(max, most) }
  }
}
