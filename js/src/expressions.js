// Regular expressions that a text must not match (src/aleator/generate/expressions.py).  Texts are bytes, a character for each.
import { any_of, Reader } from './expression-parts.js'
import { EXPRESSIONS } from './facts.js'
import { isText, parameterError, shown } from './native.js'
import { Expression } from './re2.js'
import { bytesOf, openLength } from './spelling.js'
import { endsWhole } from './steering.js'

const { MAX_MATCH_BYTES, MAX_EXPRESSIONS, MOST_CHARACTERS, MOST_PROBABILITIES, MOST_SIZE, OVER } = EXPRESSIONS
const ANCHOR = new RegExp(EXPRESSIONS.ANCHOR)

const named = (value) => `bannedRegex=${shown(value)}`

/** Searchers of `bannedRegex`, one for each probability: of an expression, of { regex, probability }, or of several; JSON too. */
export function searchers(given) {
  const listed = typeof given === 'string' || isObject(given) ? [given] : given
  if (!Array.isArray(listed)) throw misread(given)
  const all = new Map(listed.map(withProbability).map((each) => [String(each), each])) // each once
  if (all.size > MAX_EXPRESSIONS) throw parameterError(`bannedRegex has ${all.size} expressions: give at most ${MAX_EXPRESSIONS}, or join some by |`)
  const groups = new Map()
  let left = MOST_SIZE
  for (const [source, probability] of all.values()) {
    const { part, size } = read(source)
    if ((left -= size) < 0) throw parameterError(`bannedRegex: together the expressions are larger than ${MOST_SIZE} of re2js's instructions: give fewer, or repeat less`)
    groups.set(probability, [...(groups.get(probability) ?? []), part])
  }
  if ([...groups.keys()].filter((each) => each < 1).length > MOST_PROBABILITIES) throw parameterError(`bannedRegex has more than ${MOST_PROBABILITIES} probabilities below 1: give fewer`)
  try {
    return Array.from(groups, ([probability, parts]) => new Searcher(any_of(parts), probability))
  } catch (error) {
    if (!(error instanceof SyntaxError)) throw error
    throw parameterError(`bannedRegex: beginnings of matches cannot be searched for (${error.message}): give shorter expressions, or bannedStrings`)
  }
}

const isObject = (value) => typeof value === 'object' && value !== null && !Array.isArray(value)
const misread = (value) => parameterError(`${named(value)}: give a regular expression, {"regex": ..., "probability": 0.5}, or a list of these`)

function withProbability(given) {
  let value = given
  if (typeof given === 'string' && given.startsWith('{"')) {
    try {
      value = JSON.parse(given)
    } catch {} // it is not JSON but an expression
  }
  if (isObject(value) && Object.keys(value).every((name) => ['regex', 'probability'].includes(name))) value = [value.regex, value.probability ?? 1]
  const [source, probability] = Array.isArray(value) && value.length === 2 ? value : [value, 1]
  if (typeof source !== 'string') throw misread(given)
  if (!(typeof probability === 'number' && probability > 0 && probability <= 1))
    throw parameterError(`bannedRegex: probability=${String(JSON.stringify(probability)).slice(0, 40)} is out of range: give a number above 0, up to 1 (default: 1)`)
  return [source, probability]
}

/** What an expression matches, and how large its program is. */
function read(source) {
  const where = named(source)
  if (!isText(source)) throw parameterError(`${where}: half of a character is in it: give a text`)
  const { length } = [...source]
  if (length > MOST_CHARACTERS) throw parameterError(`${where} has ${length} characters: give at most ${MOST_CHARACTERS}`)
  let part, size
  try {
    size = new Expression(source).size
    part = new Reader(source).alternatives()
  } catch (error) {
    if (error instanceof SyntaxError || error.name === 'ValueError') throw parameterError(`${where}: ${error.message}; write it as RE2 reads it`)
    throw error
  }
  if (part.longest > MAX_MATCH_BYTES)
    throw parameterError(`${where}: a match may have ${part.longest === Infinity ? 'any number of' : part.longest} bytes, and so much text would be held back: repeat at most so often that there are ${MAX_MATCH_BYTES}, as in {0,20} in place of * (other characters than ASCII count four)`)
  if (part.shortest === 0) throw parameterError(`${where}: an empty text matches it: let it have one character at least`)
  return { part, size }
}

/** Searches text for the matches of some expressions, each of which is banned with a probability. */
class Searcher {
  constructor(part, probability) {
    const { whole, looks_back, looks_on } = part
    this.probability = probability
    this.longest = part.longest + Number(looks_on) // bytes, with following text that a match depends on
    this.looks = looks_back || looks_on
    this.looksOn = Number(looks_on)
    this.anchored = ANCHOR.test(whole)
    this.whole = new Expression(whole)
    this.begun = new Expression(`(?:${looks_on ? `${part.begun}|${whole}` : part.begun})${OVER}`)
  }
  /** Where matches begin and end, leftmost first, from `at` on; not those that the text before `since` decides. */
  *matches(text, at, since, over) {
    const last = text.length - (over ? 0 : this.looksOn)
    for (let found; at <= last && (found = this.whole.search(text, at, last)); ) {
      at = found[1]
      if (at + this.looksOn > since) yield found
    }
  }
  /** The first place from `at` on where a match may still begin; the text's end if there is none. */
  open(text, at) {
    const n = text.length - ([1, 2, 3].find((bytes) => !endsWhole(text.slice(-bytes))) ?? 0)
    return (at <= n ? this.begun.search(text.slice(0, n), at)?.[0] : null) ?? n
  }
  /** What represents the last byte of a text, or its absence, in matches that look at preceding text. */
  before(last) {
    if (!this.looks || (!last && this.anchored)) return ''
    return /^[A-Za-z0-9_]$/.test(last) ? 'a' : last === '\n' ? last : ' '
  }
  /** Indices of the texts that match after a byte, whatever follows. */
  within(pieces, last) {
    const before = this.before(last)
    const since = before.length
    return [...pieces.keys()].filter((i) => !this.matches(before + pieces[i], since, since, false).next().done)
  }
}

/** Banned strings, with the methods of a Searcher. */
export class Strings {
  probability = 1
  constructor(strings) {
    this.strings = strings.map(bytesOf)
    this.longest = Math.max(...this.strings.map(({ length }) => length))
  }
  /** The first match, if there is one. */
  *matches(text, at, since) {
    const found = this.strings.map((each) => [text.indexOf(each, Math.max(at, since - each.length + 1)), each]).filter(([start]) => start >= 0)
    const ends = found.map(([start, each]) => [start, start + each.length])
    if (ends.length) yield ends.reduce((a, b) => (b[0] < a[0] || (b[0] === a[0] && b[1] < a[1]) ? b : a))
  }
  /** The first place where a string may begin. */
  open(text, at) {
    return text.length - openLength(text.slice(at), this.strings)
  }
  before() {
    return ''
  }
  /** Indices of the texts that contain a banned string. */
  within(pieces) {
    return [...pieces.keys()].filter((i) => this.strings.some((each) => pieces[i].includes(each)))
  }
}
