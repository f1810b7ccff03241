// Text to token ids and back (src/aleator/text/tokenizer.py).
import * as facts from './facts.js'
import { AleatorError, isText, options, parameterError } from './native.js'
import { native } from './runtime.js'
import { binary } from './spelling.js'

const BYTE_TOKENS = Array.from({ length: 256 }, (_, byte) => `<0x${byte.toString(16).toUpperCase().padStart(2, '0')}>`)
const { MAX_BREAKER_BYTES, MAX_TAIL_TOKENS, SPACE } = facts
const { UNKNOWN, CONTROL, USER_DEFINED } = facts.ATTRIBUTES
// White space as Unicode has it: JavaScript's \s lacks U+0085, and has U+FEFF.
const WHITE = '\\t-\\r \\u0085\\u00a0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000'

/** An expression of facts.js for JavaScript. */
function expression(text) {
  let made = ''
  let inside = false
  for (const part of text.match(/\\p\{\w+\}|\\.|[^\\]/gsu)) {
    if (part === '\\s') made += inside ? WHITE : `[${WHITE}]`
    else if (part === '\\S') made += `[^${WHITE}]`
    else if (part === '\\"') made += '"'
    else if (facts.UNICODE_CLASSES[part]) made += inside ? facts.UNICODE_CLASSES[part] : `[${facts.UNICODE_CLASSES[part]}]`
    else {
      if (part === '[' && inside) made += '\\'
      inside = part === '[' || (inside && part !== ']')
      made += part
    }
  }
  return new RegExp(made, 'gu')
}

/** The matches of each expression in turn, and the text between them. */
function words(cuts, text) {
  let parts = [text]
  for (const cut of cuts)
    parts = parts.flatMap((part) => {
      const made = []
      let end = 0
      for (const found of part.matchAll(cut)) {
        made.push(part.slice(end, found.index), found[0])
        end = found.index + found[0].length
      }
      return [...made, part.slice(end)].filter(Boolean)
    })
  return parts
}

export class Tokenizer {
  constructor(vocabulary) {
    this.vocabulary = vocabulary
    const parsed = [...vocabulary.attributes.keys()].filter((token) => [CONTROL, UNKNOWN, USER_DEFINED].includes(vocabulary.attributes[token]))
    const size = (token) => new TextEncoder().encode(vocabulary.text(token)).length
    const sizes = new Map(parsed.map((token) => [token, size(token)]))
    parsed.sort((a, b) => sizes.get(b) - sizes.get(a) || a - b)
    this.parsed = parsed.map((token) => [vocabulary.text(token), token])
    this.alwaysParsed = this.parsed.filter(([, token]) => !vocabulary.isSpecial(token))
    const { tokens, merges, pre, kind, characters } = vocabulary
    const names = kind === 'bpe' ? facts.BYTE_CHARACTERS : BYTE_TOKENS
    if (vocabulary.merged) {
      if (kind === 'bpe' && !Object.hasOwn(facts.PRE_TOKENIZERS, pre))
        throw new AleatorError('UnsupportedModel', `the pre-tokenizer '${pre}' (tokenizer.ggml.pre) is not supported; supported are ${Object.keys(facts.PRE_TOKENIZERS).sort().join(', ')}`)
      this.cuts = kind === 'bpe' ? facts.PRE_TOKENIZERS[pre].map(expression) : null
      this.native = new native.BytePairEncoder(tokens, merges, names, facts.WHOLE_WORDS.includes(pre), characters)
      const bad = this.native.bad_merge
      if (bad >= 0) throw new AleatorError('FileFormatError', `merge ${bad}, '${merges.__getitem__(bad)}', is not two tokens that make a third`, { field: 'tokenizer.ggml.merges' })
    } else {
      this.native = new native.SentencePieceEncoder(tokens, vocabulary.scores, BYTE_TOKENS, vocabulary.special.unk, SPACE)
    }
    this.missing = new Set([...names.keys()].filter((byte) => vocabulary.id(names[byte]) < 0))
  }
  /**
   * Token ids; parseSpecial: texts of control tokens are these tokens (never for text from strangers);
   * unread: texts of user-defined tokens that are ordinary text.
   */
  encode(text, given = {}) {
    const { vocabulary } = this
    const { addSpecial, parseSpecial, unread } = options(given, { addSpecial: true, parseSpecial: false, unread: [] })
    if (!isText(text))
      throw new AleatorError('TokenizerError', 'the text has a lone surrogate, or is no text')
    const ids = []
    let afterSpecial = true
    const parsed = (parseSpecial ? this.parsed : this.alwaysParsed).filter(([name]) => !unread.includes(name))
    for (const part of cut(text, parsed, vocabulary)) {
      if (typeof part === 'number') {
        ids.push(part)
        afterSpecial = true
        continue
      }
      const prefix = vocabulary.addSpacePrefix && afterSpecial ? SPACE : ''
      const piece = vocabulary.kind === 'spm' ? prefix + part.replaceAll(' ', SPACE) : part
      if (this.missing.size) this.checkBytes(piece)
      for (const id of this.pieces(piece)) ids.push(id)
      afterSpecial = false
    }
    const { bos, eos } = vocabulary.special
    if (addSpecial && vocabulary.addBos && bos !== undefined) ids.unshift(bos)
    if (addSpecial && vocabulary.addEos && eos !== undefined) ids.push(eos)
    return ids
  }
  /** The tokens of a prompt for what stands between two texts (`infilling` in src/aleator/server/dialects). */
  infill(prompt, suffix, given = {}) {
    const { special, addBos } = this.vocabulary
    const marks = [special.fim_pre, special.fim_suf, special.fim_mid]
    if (marks.includes(undefined))
      throw parameterError("suffix: this model's vocabulary has no tokens for text between two others: leave suffix out")
    const read = (text) => (typeof text === 'string' ? this.encode(text, { ...given, addSpecial: false }) : Array.from(text))
    const head = addBos && special.bos !== undefined ? [special.bos] : []
    return [...head, marks[0], ...read(prompt), marks[1], ...read(suffix), marks[2]]
  }
  pieces(text) {
    if (this.cuts) return this.native.encode(words(this.cuts, text))
    return this.native.encode(this.vocabulary.characters ? text.match(/[^\n]+|\n+/g) : text)
  }
  checkBytes(text) {
    const { vocabulary } = this
    if (vocabulary.kind === 'spm' && vocabulary.special.unk !== undefined && !vocabulary.merged) return
    for (const character of new Set(text)) {
      if (vocabulary.kind === 'spm' && vocabulary.id(character) >= 0) continue
      if (new TextEncoder().encode(character).some((byte) => this.missing.has(byte)))
        throw new AleatorError('TokenizerError', `the vocabulary has no tokens for the character '${character}'`)
    }
  }
  /** Text; bytes that are not UTF-8 become U+FFFD. */
  decode(ids, given = {}) {
    const stream = this.stream(options(given, { skipSpecial: false, atStart: true }))
    return Array.from(ids, (token) => stream.push(token)).join('') + stream.flush()
  }
  /** Takes one id at a time; a character is returned when its last byte arrives; shown: control tokens that are text; skip: bytes to leave out. */
  stream({ skipSpecial = true, atStart = true, shown = [], skip = 0 } = {}) {
    const { vocabulary } = this
    const decoder = new TextDecoder('utf-8', { ignoreBOM: true })
    let strip = atStart && vocabulary.addSpacePrefix
    return {
      push(token) {
        let piece = vocabulary.bytes(token)
        if (!piece.length || (skipSpecial && vocabulary.isSpecial(token) && !shown.includes(token))) return ''
        if (strip && piece[0] === 0x20) piece = piece.subarray(1)
        strip = false
        const left = piece.subarray(skip)
        skip -= piece.length - left.length
        return decoder.decode(left, { stream: true })
      },
      flush: () => decoder.decode(),
    }
  }
  /** A parser of a GBNF grammar over this vocabulary. */
  grammar(text) {
    const { vocabulary } = this
    this.trie ??= new native.TokenTrie(this.allBytes(), [...vocabulary.eog].sort((a, b) => a - b))
    const tokenOf = (token) => {
      const ids = this.encode(token, { addSpecial: false, parseSpecial: true })
      return ids.length === 1 ? ids[0] : -1
    }
    return native.compile_gbnf(text, 'root', this.trie, tokenOf, [], [])
  }
  allBytes() {
    this.bytes ??= Array.from({ length: this.vocabulary.size }, (_, token) => this.vocabulary.bytes(token))
    return this.bytes
  }
  /** The token sequences that spell one of DRY's breakers, also across tokens (src/aleator/samplers/dry.py). */
  breakers(text) {
    const breaker = new TextEncoder().encode(text).subarray(0, MAX_BREAKER_BYTES)
    const found = []
    if (!breaker.length) return found
    const texts = (this.latin ??= this.allBytes().map(binary))
    const latin = binary(breaker)
    const whole = new Set([...texts.keys()].filter((token) => texts[token].includes(latin)))
    for (const token of whole) found.push([token])
    for (let n = 1; n < latin.length; n++) {
      const rest = new TextDecoder().decode(breaker.subarray(n)).replaceAll('\ufffd', '')
      const tail = this.encode(rest, { addSpecial: false }).slice(0, MAX_TAIL_TOKENS)
      if (!tail.length) continue
      for (const token of texts.keys()) if (!whole.has(token) && texts[token].endsWith(latin.slice(0, n))) found.push([token, ...tail])
    }
    return found
  }
  /** The tokens of a bad word as it stands, and after a space if that is how it looks inside a sentence. */
  spelled(text) {
    const word = text.trimStart()
    const [plain, spaced] = [text.slice(0, text.length - word.length), ' '].map((before) => this.encode(before + word, { addSpecial: false }))
    return String(spaced.slice(-plain.length)) === String(plain) ? [plain] : [plain, spaced]
  }
}

/** Cuts tokens out of a text, the longest first: texts and ids in turn, without the white space that a token takes. */
export function cut(text, parsed, vocabulary) {
  let parts = [text]
  for (const [tokenText, token] of parsed) {
    if (!text.includes(tokenText)) continue
    const after = (piece) => (vocabulary.stripAfter.has(token) ? piece.replace(/^[ \t\n\v\f\r]+/, '') : piece)
    parts = parts.flatMap((part) => (typeof part === 'number' ? [part] : part.split(tokenText).flatMap((each, i) => (i ? [token, after(each)] : [each]))))
  }
  return parts.filter((part) => part !== '')
}
