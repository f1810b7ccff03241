// Bytes as texts, with a character for each, and as tokens (src/aleator/grammar/spelling.py).

/** Python's white space in bytes. */
export const SPACE = ' \t\n\r\v\f'

export function binary(bytes) {
  let made = ''
  for (let at = 0; at < bytes.length; at += 4096) made += String.fromCharCode(...bytes.subarray(at, at + 4096))
  return made
}

/** A text's UTF-8. */
export const bytesOf = (text) => binary(new TextEncoder().encode(text))

/** How many of a text's last characters one of these strings may begin with. */
export function openLength(text, strings) {
  let length = Math.min(text.length, Math.max(1, ...strings.map((each) => each.length)) - 1)
  while (length > 0 && !strings.some((each) => each.startsWith(text.slice(text.length - length)))) length--
  return length
}

/** A tokenizer's spelling, made once. */
export const spellingOf = (tokenizer) => (tokenizer.spelling ??= new Spelling(tokenizer))

/** Cuts bytes into the tokens with which a model would usually spell them; `texts`: bytes of tokens, "" of control tokens. */
class Spelling {
  constructor(tokenizer) {
    const { vocabulary } = tokenizer
    this.tokenizer = tokenizer
    this.ends = [...vocabulary.eog].sort((a, b) => a - b)
    this.texts = tokenizer.allBytes().map((bytes, token) => (vocabulary.eog.has(token) || vocabulary.isSpecial(token) ? '' : binary(bytes)))
    this.ids = new Map()
    this.texts.forEach((text, token) => text && !this.ids.has(text) && this.ids.set(text, token))
    this.longest = this.texts.reduce((most, { length }) => Math.max(most, length), 0)
  }
  tokens(bytes) {
    const text = binary(bytes)
    let tokens = []
    try {
      tokens = this.tokenizer.encode(new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(bytes), { addSpecial: false })
    } catch {} // not UTF-8, or a character without a token
    if (tokens.length && this.texts[tokens[0]] === ' ' && !text.startsWith(' ')) tokens.shift() // SentencePiece begins a text with it
    return tokens.map((token) => this.texts[token]).join('') === text ? tokens : this.longestFirst(text)
  }
  longestFirst(text) {
    const tokens = []
    for (let at = 0; at < text.length; ) {
      let length = Math.min(this.longest, text.length - at)
      while (length && !this.ids.has(text.slice(at, at + length))) length--
      if (!length) break
      tokens.push(this.ids.get(text.slice(at, at + length)))
      at += length
    }
    return tokens
  }
}
