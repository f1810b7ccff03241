// Strings of JSON schemas: lengths, patterns, formats and names of properties, as trees of gbnf.js.
import { all, any, common, complement } from './gbnf.js'
import { Pattern } from './pattern.js'

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
const LABEL = '[A-Za-z0-9]{1,30}(-[A-Za-z0-9]{1,30})?'
const HOST = `(${LABEL}\\.){0,2}[A-Za-z](${LABEL})?`
const GROUPS = '[0-9a-f]{1,4}(:[0-9a-f]{1,4})'
const [URI_PART, NUMBER] = ['[A-Za-z0-9._~-]*', '[0-9]{1,9}']
const DAYS = `(${NUMBER}Y(${NUMBER}M(${NUMBER}D)?)?|${NUMBER}M(${NUMBER}D)?|${NUMBER}D)`
const HOURS = `T(${NUMBER}H(${NUMBER}M(${NUMBER}S)?)?|${NUMBER}M(${NUMBER}S)?|${NUMBER}S)`
/** Texts of these formats, if not all. */
export const FORMATS = {
  date: `^${DATE}$`,
  time: `^${TIME}$`,
  'date-time': `^${DATE}T${TIME}$`,
  uuid: '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$',
  ipv4: `^(${OCTET}\\.){3}${OCTET}$`,
  ipv6: `^${GROUPS}{7}$|^(${GROUPS}{0,2})?::(${GROUPS}{0,2})?$`,
  hostname: `^${HOST}$`,
  uri: `^(https?|ftp)://${HOST}(:[1-9][0-9]{0,3})?(/${URI_PART})*(\\?[A-Za-z0-9=&._~-]*)?(#${URI_PART})?$`,
  duration: `^P(${DAYS}(${HOURS})?|${HOURS}|${NUMBER}W)$`,
  email: `^${LETTERS}([._+-]${LETTERS})*@(${LETTERS}(-${LETTERS})*\\.)+[A-Za-z]{2,}$`,
}

const ECMASCRIPT = {
  digits: [range('09')],
  word: [range('09'), range('AZ'), range('_'), range('az')],
  spaces: [[9, 13], [32, 32], [0xa0, 0xa0], [0x1680, 0x1680], [0x2000, 0x200a], [0x2028, 0x2029], [0x202f, 0x202f], [0x205f, 0x205f], [0x3000, 0x3000], [0xfeff, 0xfeff]],
  lineEnds: [[10, 10], [13, 13], [0x2028, 0x2029]],
  controls: { t: 9, n: 10, v: 11, f: 12, r: 13, 0: 0 },
  whole: false,
  rust: false,
  tree: one,
}

/**
 * The strings, without their quotes, in which an ECMAScript expression is found; `least` and `most`: their lengths.
 * Throws a PatternError that says what is not supported.
 */
export function patternOf(source, grammar) {
  return new Pattern(source, ECMASCRIPT, grammar).whole()
}
