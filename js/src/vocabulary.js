// A vocabulary in GGUF metadata (src/aleator/text/vocabulary.py, gguf_vocabulary.py, special_tokens.py).
import * as facts from './facts.js'
import { AleatorError } from './native.js'
import { native } from './runtime.js'

const { NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, UNDEFINED, BYTE } = facts.ATTRIBUTES
const BYTE_OF = new Map(facts.BYTE_CHARACTERS.map((character, byte) => [character, byte]))

export class Vocabulary {
  constructor(gguf) {
    const { fields } = gguf
    const model = fields.require('tokenizer.ggml.model', 'string')
    if (!Object.hasOwn(facts.VOCABULARIES, model))
      throw new AleatorError('UnsupportedModel', `tokenizer.ggml.model is '${model}'; supported are ${Object.keys(facts.VOCABULARIES).join(', ')}`)
    this.pre = model === 'gemma4' ? model : fields.get('tokenizer.ggml.pre', 'default')
    this.merged = model !== 'llama'
    this.characters = this.merged && facts.CHARACTERS.includes(this.pre)
    this.kind = this.characters ? 'spm' : facts.VOCABULARIES[model]
    this.tokens = this.readTokens(gguf)
    const twice = this.tokens.first_twice()
    if (twice) throw fields.error('tokenizer.ggml.tokens', `tokens ${twice[0]} and ${twice[1]} are both '${this.text(twice[0])}'`)
    this.readAttributes(fields)
    const named = this.readSpecial(fields)
    this.resolve(named)
    this.readStripping(fields)
    this.readFlags(fields)
    this.chatTemplate = fields.get('tokenizer.chat_template', null, 'string')
    this.chatStop = fields.get('aleator.chat.stop', [], 'list').filter(Boolean)
    if (this.merged) this.merges = strings(gguf, 'tokenizer.ggml.merges')
    else this.readScores(fields)
  }
  readTokens(gguf) {
    const stored = strings(gguf, 'tokenizer.ggml.tokens')
    if (!stored.length) throw gguf.fields.error('tokenizer.ggml.tokens', 'the vocabulary has no tokens')
    if (!stored.has_empty) return stored
    return stringArray(Array.from({ length: stored.length }, (_, i) => stored.__getitem__(i) || `[EMPTY_${i}]`))
  }
  readAttributes(fields) {
    const key = 'tokenizer.ggml.token_type'
    if (!fields.has(key)) this.attributes = new Uint8Array(this.size).fill(NORMAL)
    else {
      const types = fields.require(key, 'list')
      if (types.length !== this.size) throw fields.error(key, `${key} has ${types.length} values for ${this.size} tokens`)
      const wrong = types.findIndex((type) => !Object.values(facts.ATTRIBUTES).includes(type))
      if (wrong >= 0) throw fields.error(key, `the type of token ${wrong} is ${types[wrong]}; it must be between 0 and 6`)
      this.attributes = Uint8Array.from(types)
    }
    if (this.kind === 'spm')
      this.attributes.forEach((attribute, token) => {
        if (attribute === BYTE && !/^<0x[0-9a-fA-F]{2}>$/.test(this.text(token)))
          throw fields.error('tokenizer.ggml.tokens', `token ${token} is a byte, but its text is not <0xXX>`)
      })
  }
  readSpecial(fields) {
    const named = !this.merged && this.size > 2 ? { unk: 0, bos: 1, eos: 2 } : {}
    for (const [kind, own] of Object.entries(facts.SPECIAL_KEYS)) {
      const key = `tokenizer.ggml.${kind}_token_id`
      if (fields.has(key)) named[own] = fields.integer(key, 0, this.size - 1)
    }
    return named
  }
  /** The special tokens as llama.cpp finds them, and what ends a generation. */
  resolve(named) {
    const found = { ...named }
    const id = (text) => this.id(text)
    const known = (texts) => texts.map(id).filter((token) => token >= 0)
    for (const [name, texts] of Object.entries(facts.KNOWN_TEXTS)) {
      const [token] = known(texts)
      if (name in named || token === undefined) continue
      found[name] = token
      this.attributes[token] = CONTROL
    }
    const ends = new Set(known(facts.END_TEXTS))
    for (const token of ends) this.attributes[token] = CONTROL
    for (const token of known(facts.MESSAGE_PARTS)) this.attributes[token] = USER_DEFINED
    for (const name of facts.END_SPECIALS) if (name in found) ends.add(found[name])
    const has = (text) => id(text) >= 0
    if (has('<|return|>') && (has('<|call|>') || has('<|calls|>')) && has('<|end|>')) {
      ends.delete(id('<|end|>'))
      this.attributes[id('<|end|>')] = USER_DEFINED
    }
    if (has('<|tool_response>') && has('</s>')) {
      ends.delete(id('</s>'))
      this.attributes[id('</s>')] = NORMAL
    }
    this.special = found
    this.eog = ends
  }
  /** The tokens that take the white space after them when a text is encoded. */
  readStripping(fields) {
    const name = fields.get('general.name', '').toLowerCase()
    const strips = facts.STRIPPING_MODELS.some((each) => name.includes(each))
    const parsed = (token) => this.isSpecial(token) || this.isUserDefined(token)
    const keep = facts.NOT_STRIPPING.map((text) => this.id(text))
    this.stripAfter = new Set(strips ? [...this.attributes.keys()].filter((token) => parsed(token) && !keep.includes(token)) : [])
  }
  readFlags(fields) {
    const flag = (name, otherwise) => fields.get(`tokenizer.ggml.${name}`, otherwise, 'boolean')
    const given = { bos: flag('add_bos_token', null), eos: flag('add_eos_token', false) }
    for (const [name, wanted] of Object.entries(given))
      if (wanted && this.special[name] === undefined)
        throw fields.error(`tokenizer.ggml.${name}_token_id`, `tokenizer.ggml.add_${name}_token is set, but no token is named`)
    const hasBos = this.special.bos !== undefined
    if (this.characters) this.addBos = hasBos
    else this.addBos = given.bos ?? ((this.kind === 'spm' || facts.ADDS_BOS.includes(this.pre)) && hasBos)
    this.addEos = given.eos
    this.addSpacePrefix = !this.merged && flag('add_space_prefix', true)
  }
  readScores(fields) {
    const key = 'tokenizer.ggml.scores'
    const scores = fields.require(key, 'list')
    if (scores.length !== this.size) throw fields.error(key, `${key} has ${scores.length} values for ${this.size} tokens`)
    const wrong = scores.findIndex((score) => typeof score !== 'number' || Number.isNaN(score))
    if (wrong >= 0) throw fields.error(key, `the score of token ${wrong} is not a number`)
    this.scores = Float32Array.from(scores)
  }
  get size() {
    return this.tokens.length
  }
  /** The token's text as the file stores it. */
  text(token) {
    if (!Number.isInteger(token) || token < 0 || token >= this.size)
      throw new AleatorError('TokenizerError', `token id ${token} is outside the vocabulary of ${this.size} tokens`)
    return this.tokens.__getitem__(token)
  }
  /** The id of a text, -1 if no token has it. */
  id(text) {
    return this.tokens.find(text)
  }
  /** The texts of all tokens. */
  texts() {
    return Array.from({ length: this.size }, (_, token) => this.tokens.__getitem__(token))
  }
  isUserDefined(token) {
    return this.attributes[token] === USER_DEFINED
  }
  isSpecial(token) {
    return this.attributes[token] === CONTROL || this.attributes[token] === UNKNOWN
  }
  /** The bytes that a token stands for; empty for an unused one. */
  bytes(token) {
    const text = this.text(token)
    const attribute = this.attributes[token]
    const encode = (each) => new TextEncoder().encode(each)
    if ([CONTROL, UNKNOWN, USER_DEFINED].includes(attribute)) return encode(text)
    if (attribute === UNUSED || attribute === UNDEFINED) return new Uint8Array()
    if (this.kind === 'bpe') return Uint8Array.from([...text].flatMap((c) => (BYTE_OF.has(c) ? [BYTE_OF.get(c)] : [...encode(c)])))
    if (attribute === BYTE) return Uint8Array.of(parseInt(text.slice(3, 5), 16))
    return encode(text.replaceAll(facts.SPACE, ' '))
  }
}

function strings(gguf, key) {
  const entry = gguf.fields.strings(key)
  const made = new native.StringArray(gguf.data, entry.offset, entry.count)
  if (made.length < entry.count) throw gguf.error(key, `string ${made.length} is not UTF-8`, made.broken)
  return made
}

function stringArray(texts) {
  const parts = texts.map((text) => new TextEncoder().encode(text))
  const data = new Uint8Array(parts.reduce((n, part) => n + 8 + part.length, 0))
  let at = 0
  for (const part of parts) {
    new DataView(data.buffer).setBigUint64(at, BigInt(part.length), true)
    data.set(part, at + 8)
    at += 8 + part.length
  }
  return new native.StringArray(data, 0, texts.length)
}
