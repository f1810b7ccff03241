// A prompt may end within what the model would write as one token: its last tokens are taken back, and the first draws
// agree with their bytes (src/aleator/generate/healing.py).
import { PHASES } from './facts.js'
import { allMarks } from './phase-table.js'
import { strip } from './python-text.js'
import { binary, bytesOf, spellingOf } from './spelling.js'

/** The tokens that are left of a prompt, and those that a longer token begins with; marks of phases stay. */
export function takeBack(tokens, tokenizer, phases = []) {
  const { texts, longest } = spellingOf(tokenizer)
  const [from, end] = healable(tokens, tokenizer.vocabulary.special)
  const seen = Math.max(0, end - longest - PHASES.MAX_MARK_BYTES) // what may be taken back, and a mark before it
  const start = Math.max(from, seen + marked(tokens.slice(seen, end), tokenizer.vocabulary, allMarks(phases)))
  const beginsLonger = (text) => texts.some((each) => each.length > text.length && each.startsWith(text))
  let [text, first] = ['', end]
  for (let at = end - 1; at >= Math.max(start, end - longest); at--) {
    text = texts[tokens[at]] + text
    if (!texts[tokens[at]] || text.length >= longest) break
    if (beginsLonger(text)) first = at
  }
  return [[...tokens.slice(0, first), ...tokens.slice(end)], tokens.slice(first, end)]
}

/** Where the last mark ends, which white space around it is no part of. */
function marked(tokens, vocabulary, marks) {
  const texts = marks.filter((mark) => typeof mark === 'string').map((mark) => bytesOf(strip(mark) || mark))
  let [text, end] = ['', 0]
  for (const [at, token] of tokens.entries()) {
    const since = text.length
    text += binary(vocabulary.bytes(token))
    if (marks.includes(token) || texts.some((each) => text.includes(each, since - each.length + 1))) end = at + 1
  }
  return end
}

/** The range of tokens that may be taken back: all but the first, or what precedes a hole. */
function healable(tokens, { fim_pre, fim_suf, fim_mid }) {
  if (fim_mid === undefined || tokens.at(-1) !== fim_mid) return [1, tokens.length]
  const marks = [0, ...[...tokens.keys()].filter((i) => tokens[i] === fim_pre || tokens[i] === fim_suf)]
  const last = marks.at(-1)
  return tokens[last] === fim_suf ? [marks.at(-2) + 1, last] : [last + 1, tokens.length - 1]
}

/** Restricts the first draws to tokens that agree with the bytes of tokens that were taken back. */
export class Healing {
  constructor(tokenizer, taken) {
    this.texts = spellingOf(tokenizer).texts
    this.text = taken.map((token) => this.texts[token]).join('')
  }
  /** The logits to draw from after the tokens so far: -Infinity for tokens that do not agree. */
  masked(row, tokens) {
    const rest = this.text.slice(tokens.reduce((n, token) => n + this.texts[token].length, 0))
    if (!rest) return row
    return row.map((logit, token) => {
      const text = this.texts[token]
      return text && (text.startsWith(rest) || rest.startsWith(text)) ? logit : -Infinity
    })
  }
}
