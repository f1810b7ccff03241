// RE2's expressions over bytes.  re2js, a port of RE2, reads and compiles them; its own machines take a byte that is no part
// of a character for U+FFFD, where RE2's match nothing, so its programs run here.  Texts are bytes, a character for each.
import { RE2JS, RE2JSException } from './vendor/re2.js'

const LAST = 0x10ffff
/** In place of a character: bytes of one that Unicode lacks, which RE2 takes where it takes all above U+7F; no character. */
const UNKNOWN = LAST + 1
const NONE = -1
const WORD = /\w/
/** Bits of a place, as re2js has them. */
const BEGINS_LINE = 1
const ENDS_LINE = 2
const BEGINS = 4
const ENDS = 8
const BETWEEN_WORDS = 16
const WITHIN_WORDS = 32

export class Expression {
  /** An error says why RE2 rejects it. */
  constructor(source) {
    let compiled
    try {
      compiled = RE2JS.compile(source)
    } catch (error) {
      if (error instanceof RE2JSException) throw new SyntaxError(error.message.replace(/^error parsing regexp: /, ''))
      throw error
    }
    const { inst, start } = compiled.re2Input.prog
    this.ops = inst[0].constructor
    this.code = inst
    this.start = start
    this.seen = new Int32Array(inst.length) // in which step an instruction was reached
    this.step = 0
  }
  /** Instructions of its program. */
  get size() {
    return this.code.length
  }
  /** Where the first match within [at, end) begins and ends, what stands around these being seen; null: there is none. */
  search(text, at = 0, end = text.length) {
    let threads = [] // [instruction, where its match begins], the likelier first
    let found = null
    for (;;) {
      const next = []
      const [character, length] = at < end ? characterAt(text, at, end) : [NONE, 1]
      this.step++
      const places = placesOf(text, at)
      let over = false
      for (const [from, start] of threads) if ((over = this.reach(from, start, places, next))) break
      if (over) found = [next.pop()[1], at]
      else if (!found && this.reach(this.start, at, places, next)) found = [next.pop()[1], at]
      if (at >= end || (!next.length && found)) return found
      threads = character === NONE ? [] : next.filter(([pc]) => this.takes(this.code[pc], character)).map(([pc, start]) => [this.code[pc].out, start])
      at += length
    }
  }
  /** Add the instructions that take a character, from one on; whether the match was reached, which is then added last. */
  reach(pc, start, places, next) {
    const { ops, code, seen, step } = this
    const left = [pc]
    while (left.length) {
      pc = left.pop()
      if (seen[pc] === step) continue
      seen[pc] = step
      const { op, out, arg } = code[pc]
      if (op === ops.MATCH) return next.push([pc, start])
      if (op === ops.ALT || op === ops.ALT_MATCH) left.push(arg, out)
      else if (op === ops.EMPTY_WIDTH) (arg & ~places) || left.push(out)
      else if (op === ops.CAPTURE || op === ops.NOP) left.push(out)
      else if (op !== ops.FAIL) next.push([pc, start])
    }
    return 0
  }
  takes(instruction, character) {
    const { ops } = this
    const { op, runes } = instruction
    if (op === ops.RUNE_ANY) return true
    if (op === ops.RUNE_ANY_NOT_NL) return character !== 10
    if (character === UNKNOWN) return runes.length > 1 && runes.at(-1) === LAST && runes.at(-2) <= 0x80
    return instruction.matchRune(character)
  }
}

/** The character at a place, and its bytes, all before `end`. */
function characterAt(text, at, end) {
  const first = text.charCodeAt(at)
  if (first < 0x80) return [first, 1]
  const length = first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0
  if (!length || at + length > end) return [NONE, 1]
  let code = first & (0x7f >> length)
  for (let i = 1; i < length; i++) {
    const byte = text.charCodeAt(at + i)
    if (byte >> 6 !== 2) return [NONE, 1]
    code = (code << 6) | (byte & 0x3f)
  }
  const least = [0, 0, 0x80, 0x800, 0x10000][length]
  return [code < least || code > LAST ? UNKNOWN : code, length]
}

/** What is true of a place. */
function placesOf(text, at) {
  const before = at > 0 && text[at - 1]
  const after = at < text.length && text[at]
  const ofLine = (before === false || before === '\n' ? BEGINS_LINE : 0) | (after === false || after === '\n' ? ENDS_LINE : 0)
  const ofText = (before === false ? BEGINS : 0) | (after === false ? ENDS : 0)
  const isWord = (each) => each !== false && WORD.test(each)
  return ofLine | ofText | (isWord(before) === isWord(after) ? WITHIN_WORDS : BETWEEN_WORDS)
}
