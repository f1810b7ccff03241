// Regular expressions that a whole text matches, as GBNF; characters are those of Rust's, which Python's package has
// (src/aleator/samplers/regex.py).
import { DIGITS, SPACES, WORD } from './facts.js'
import { Grammar, complement } from './gbnf.js'
import { AleatorError } from './native.js'
import { Pattern, PatternError } from './pattern.js'

const FEW = 20 // ranges that are written where they stand

const RUST = {
  digits: DIGITS,
  word: WORD,
  spaces: SPACES,
  lineEnds: [[10, 10]],
  controls: { a: 7, t: 9, n: 10, v: 11, f: 12, r: 13 },
  whole: true,
  rust: true,
  tree(ranges, grammar) {
    const set = complement(complement(ranges))
    if (set.length === 1 && set[0][0] === set[0][1]) return String.fromCodePoint(set[0][0])
    if (set.length <= FEW) return { set }
    grammar.classes ??= new Map()
    const key = String(set)
    if (!grammar.classes.has(key)) grammar.classes.set(key, grammar.rule('class', { set }))
    return grammar.classes.get(key)
  },
}

/** The GBNF of a regular expression. */
export function ofRegex(source) {
  const grammar = new Grammar()
  let text
  try {
    text = grammar.text(new Pattern(source, RUST, grammar).whole().tree)
  } catch (error) {
    if (!(error instanceof PatternError)) throw error
    const { message, column } = error
    throw new AleatorError('GrammarError', `the regular expression is wrong, or not supported in JavaScript: line 1, column ${column}: ${message}`, { line: 1, column })
  }
  if (text === null) throw new AleatorError('GrammarError', 'the regular expression cannot be used: no text obeys it')
  return text
}
