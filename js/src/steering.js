// Ends a text's reasoning after a number of tokens (src/aleator/generate/steering.py).  Texts are bytes, a character for each.
import { parameterError } from './native.js'
import { lstrip, rstrip } from './python-text.js'
import { SPACE, binary, bytesOf, spellingOf } from './spelling.js'

const CLOSERS = bytesOf('*_`)]}\'"\u2019\u201d\u00bb\u300d\u300f')
const SENTENCE_ENDS = Array.from('.!?\u2026\u3002\uff01\uff1f\uff61\u0964\u061f', bytesOf)

export class ReasoningBudget {
  /**
   * budget: tokens of reasoning; marks: texts that begin and end it; message: text before its end; grace: more tokens
   * until a sentence ends; prompt: token ids, which may end within reasoning.
   */
  constructor(tokenizer, { budget, marks: [begin, end], message, grace }, prompt) {
    const spelling = spellingOf(tokenizer)
    const spelled = spelling.tokens(new TextEncoder().encode(message))
    if (spelled.map((token) => spelling.texts[token]).join('') !== bytesOf(message))
      throw parameterError("reasoningBudgetMessage: the model's vocabulary cannot spell it: give characters that it has")
    const endTokens = [...spelled, ...tokenizer.encode(end, { addSpecial: false, parseSpecial: true })]
    const before = tokenizer.decode(prompt)
    const opened = before.lastIndexOf(begin) > before.lastIndexOf(end)
    Object.assign(this, { budget, grace, endTokens, inside: opened, over: false, text: '', n: 0, forced: [] })
    Object.assign(this, { begin: bytesOf(begin), end: bytesOf(end) })
  }
  /** The token that is forced now; null: the chain draws it. */
  next() {
    const spent = this.inside && !this.over && this.n >= this.budget
    if (spent && !this.forced.length && endsWhole(this.text) && (this.n >= this.budget + this.grace || sentenceEnded(this.text))) this.forced = [...this.endTokens]
    return this.forced[0] ?? null
  }
  /** Take in a token, drawn or forced, with its bytes. */
  take(token, bytes) {
    if (this.over) return
    if (this.forced.length) {
      this.forced.shift()
      this.over = !this.forced.length
      return
    }
    this.text += binary(bytes)
    if (this.inside) {
      this.n++
      this.over = this.text.includes(this.end)
      return
    }
    const text = lstrip(this.text, SPACE)
    if (text.startsWith(this.begin)) {
      this.inside = true
      this.text = text.slice(this.begin.length)
    } else this.over = !this.begin.startsWith(text)
  }
}

/** Whether a text ends with a sentence or a line, or is empty. */
function sentenceEnded(text) {
  const bare = rstrip(text, SPACE)
  if (!bare || text.slice(bare.length).includes('\n')) return true
  return SENTENCE_ENDS.some((end) => rstrip(bare, CLOSERS).endsWith(end))
}

/** Whether a text ends with a complete character. */
export function endsWhole(text) {
  const decoder = new TextDecoder('utf-8', { fatal: true })
  try {
    decoder.decode(Uint8Array.from(text, (each) => each.charCodeAt()), { stream: true })
  } catch {
    return true // it is no UTF-8 before its end
  }
  try {
    decoder.decode()
    return true
  } catch {
    return false
  }
}
