// Chats: the model's template writes messages as a prompt, and replies are read (src/aleator/text/chat_template.py,
// text/rendered.py, chat/message.py, chat/reply.py).
import { CHAT } from './facts.js'
import { AleatorError } from './native.js'
import { cut } from './tokenizer.js'
import { Template } from './vendor/jinja.js'

const MOST_CHARACTERS = 1 << 20
const MARK = 'aleator_probe'
const PRIVATE_USE = [[0xe000, 0xf900], [0xf0000, 0xffffe], [0x100000, 0x10fffe]]
const SPACE = /^[ \t\r\n]+/
const SPACE_AT_END = /[ \t\r\n]+$/

const shown = (value) => (JSON.stringify(value) ?? String(value)).slice(0, 80)
const wrong = (where, value, why) => new AleatorError('ParameterError', `${where}=${shown(value)}: ${why}`)
const isMapping = (value) => typeof value === 'object' && value !== null && !Array.isArray(value)

/** A chat template in Jinja's language, for a tokenizer. */
export class ChatTemplate {
  constructor(source, tokenizer) {
    if (source === undefined || source === null || !source.trim())
      throw new AleatorError('TemplateError', 'the model has no chat template: give one as the option chatTemplate, or generate from a plain prompt')
    if (source.length > MOST_CHARACTERS)
      throw new AleatorError('TemplateError', `the chat template has ${source.length} characters; at most ${MOST_CHARACTERS} are read`)
    if (!/\{[{%]/.test(source))
      throw new AleatorError('TemplateError', `the chat template ${shown(source)} is plain text, which shows no message: give one in Jinja`)
    const { vocabulary } = tokenizer
    this.source = source
    this.tokenizer = tokenizer
    this.template = failing(() => new Template(source))
    const texts = vocabulary.texts()
    this.control = longestFirst(texts.filter((text, token) => text && vocabulary.isSpecial(token)))
    const structures = (text) => text.trim() && (source.includes(text) || (text.startsWith('<|') && text.endsWith('|>')))
    this.guarded = texts.filter((text, token) => vocabulary.isUserDefined(token) && structures(text))
    this.names = longestFirst([...this.control, ...this.guarded])
    this.tokens = Object.fromEntries(
      ['bos', 'eos', 'unk', 'pad'].map((name) => [`${name}_token`, vocabulary.special[name] === undefined ? '' : texts[vocabulary.special[name]]]),
    )
    const within = (marks) => marks.some((mark) => source.includes(mark))
    this.thinking =
      CHAT.THINKING.find(({ begin, end }) => within([begin, end])) ??
      CHAT.THINKING.find(({ begin, end }) => vocabulary.id(begin) >= 0 || vocabulary.id(end) >= 0)
    if (CHAT.OWN_REPLIES.some((marks) => marks.every((mark) => source.includes(mark))))
      throw new AleatorError('UnsupportedModel', "replies of this chat template are read by Python's package only")
    const marks = this.thinking ? [this.thinking.begin, this.thinking.end] : []
    this.shown = marks.map((mark) => vocabulary.id(mark)).filter((token) => token >= 0 && vocabulary.isSpecial(token))
  }
  /** The template's variables; one that it does not read is refused. */
  arguments(enableThinking, given) {
    if (!isMapping(given)) throw wrong('templateArguments', given, 'give an object')
    const reads = (name) => new RegExp(`(?<![\\w.])${name}\\b`).test(this.source)
    for (const name of Object.keys(given))
      if (!/^\w+$/.test(name) || !reads(name)) throw wrong(`templateArguments.${name}`, given[name], 'the chat template does not read it')
    if (enableThinking === undefined) return given
    if (typeof enableThinking !== 'boolean') throw wrong('enableThinking', enableThinking, 'give true or false')
    const name = ['enable_thinking', 'thinking'].find(reads)
    if (!name) throw wrong('enableThinking', enableThinking, 'the chat template does not read it')
    if (Object.hasOwn(given, name)) throw wrong('enableThinking', enableThinking, 'it is given twice, once in templateArguments')
    return { ...given, [name]: enableThinking }
  }
  /** Whether a reply to this text may reason before its content. */
  mayThink(text, opened, enableThinking) {
    return Boolean(this.thinking) && (opened || !(enableThinking === false || text.slice(-40).includes(this.thinking.end)))
  }
  /** Checked messages as text; names of control tokens in them are private characters, which `literal` explains. */
  rendered(messages, variables) {
    const read = messages.map((message) => this.asRead(message))
    const marks = new Marks([read, variables], this.names)
    const context = {
      ...this.tokens,
      add_generation_prompt: true,
      tools: null,
      documents: null,
      ...marks.mark(variables),
      messages: read.map((message) => marks.mark(message, message.role === 'assistant' ? this.guarded : [])),
    }
    return { marked: failing(() => this.template.render(context)), literal: marks.literal }
  }
  asRead(message) {
    const made = { ...message }
    if (made.role === 'developer' && !this.knowsDevelopers) made.role = 'system'
    if ('reasoning_content' in made && /\.thinking\b|\[?['"]thinking['"]/.test(this.source)) made.thinking = made.reasoning_content
    return made
  }
  /** Whether the template knows messages of developers; otherwise they must be the system's. */
  get knowsDevelopers() {
    if (!this.source.includes('developer')) return false // it may write any role
    if (this.developers === undefined) {
      const messages = [{ role: 'developer', content: MARK }, { role: 'user', content: 'a' }]
      const context = { ...this.tokens, add_generation_prompt: true, tools: null, documents: null, messages }
      try {
        this.developers = this.template.render(context).includes(MARK)
      } catch {
        this.developers = false
      }
    }
    return this.developers
  }
  /** Token ids of rendered messages: only the template's control tokens are tokens. */
  encode({ marked, literal }) {
    const { tokenizer, guarded } = this
    const { vocabulary } = tokenizer
    let ids = []
    if (![...literal.keys()].some((mark) => marked.includes(mark))) {
      ids = tokenizer.encode(marked, { addSpecial: false, parseSpecial: true })
    } else {
      for (const part of cut(marked, this.names.map((name) => [name, vocabulary.id(name)]), vocabulary))
        if (typeof part === 'number') ids.push(part)
        else for (const id of tokenizer.encode(unmarked(part, literal), { addSpecial: false, unread: guarded })) ids.push(id)
    }
    const { bos } = vocabulary.special
    if (vocabulary.addBos && bos !== undefined && ids[0] !== bos) ids.unshift(bos)
    return ids
  }
}

/** Texts with the most bytes first, each once. */
function longestFirst(texts) {
  const size = new Map(texts.map((text) => [text, new TextEncoder().encode(text).length]))
  return [...size.keys()].sort((a, b) => size.get(b) - size.get(a) || (a < b ? -1 : 1))
}

/** What a template's program gives; whatever it throws is an error of the template. */
function failing(f) {
  try {
    return f()
  } catch (error) {
    throw new AleatorError('TemplateError', `chat template: ${error?.message || error}`)
  }
}

/** Private characters that stand for names of tokens in a template's input, which may trim and quote texts. */
class Marks {
  constructor(values, names) {
    const whole = [...textsOf(values)].join('\0')
    const found = names.filter((name) => whole.includes(name))
    const free = privateCharacters(whole)
    this.literal = new Map(found.map((name) => [free.next().value, name]))
  }
  mark(value, but = []) {
    if (typeof value === 'string') {
      for (const [character, name] of this.literal) if (!but.includes(name)) value = value.replaceAll(name, () => character)
      return value
    }
    if (Array.isArray(value)) return value.map((each) => this.mark(each, but))
    if (!isMapping(value)) return value
    return Object.fromEntries(Object.entries(value).map(([key, each]) => [this.mark(key, but), this.mark(each, but)]))
  }
}

function* privateCharacters(whole) {
  for (const [from, to] of PRIVATE_USE)
    for (let code = from; code < to; code++) {
      const character = String.fromCodePoint(code)
      if (!whole.includes(character)) yield character
    }
}

function* textsOf(value) {
  if (typeof value === 'string') yield value
  else if (Array.isArray(value)) for (const each of value) yield* textsOf(each)
  else if (isMapping(value))
    for (const [key, each] of Object.entries(value)) {
      yield key
      yield* textsOf(each)
    }
}

const unmarked = (text, literal) => Array.from(text, (character) => literal.get(character) ?? character).join('')

/** The readable text. */
export const textOf = ({ marked, literal }) => unmarked(marked, literal)

/** Messages as a template takes them; an error names the message and the field. */
export function checkedMessages(messages) {
  if (!Array.isArray(messages)) throw wrong('messages', messages, 'give an array such as [{ role: "user", content: "Hi" }]')
  if (!messages.length) throw new AleatorError('ParameterError', 'messages is empty: give one at least')
  return messages.map((message, i) => checkedMessage(`messages[${i}]`, message))
}

function checkedMessage(where, message) {
  if (!isMapping(message)) throw wrong(where, message, 'give an object with role and content')
  const { role } = message
  if (!CHAT.ROLES.includes(role)) throw wrong(`${where}.role`, role, `give one of ${CHAT.ROLES.join(', ')}`)
  const made = { role }
  for (const [name, value] of Object.entries(message)) {
    if (name === 'role' || name === 'content' || value === null || value === undefined || (Array.isArray(value) && !value.length)) continue
    const known = ['role', 'content', ...CHAT.FIELDS[role]]
    if (!known.includes(name)) throw wrong(`${where}.${name}`, value, `a message of '${role}' has ${known.join(', ')}`)
    if (name === 'tool_calls' || name === 'tool_call_id') throw wrong(`${where}.${name}`, value, "calls of tools are available in Python's package")
    if (typeof value !== 'string') throw wrong(`${where}.${name}`, value, 'give a text')
    made[name] = value
  }
  const absent = message.content ?? (role === 'assistant' && 'reasoning_content' in made ? '' : message.content)
  made.content = checkedContent(`${where}.content`, absent)
  return made
}

function checkedContent(where, content) {
  if (typeof content === 'string') return content
  if (!Array.isArray(content)) throw wrong(where, content, "give a text, or an array of parts of type 'text'")
  const texts = content.map((part, i) => {
    const media = isMapping(part) && Object.hasOwn(CHAT.MEDIA, part.type) && CHAT.MEDIA[part.type]
    if (media) throw wrong(`${where}[${i}].type`, part.type, `${media} are not supported, only parts of type 'text'`)
    if (!isMapping(part) || !['text', 'input_text'].includes(part.type)) throw wrong(`${where}[${i}]`, part, 'give { type: "text", text: "..." }')
    if (typeof part.text !== 'string') throw wrong(`${where}[${i}].text`, part.text, 'give a text')
    return part.text
  })
  return texts.join('\n')
}

/** An answer while it is made, read once: pieces of its content; reasoning is apart, in `message`. */
export class ChatGeneration {
  constructor(generation, thinking, opened) {
    this.generation = generation
    this.thinking = thinking
    this.message = { role: 'assistant', content: '' }
    this.state = thinking ? (opened ? 'space' : 'begin') : 'content'
    this.held = ''
  }
  get seed() {
    return this.generation.seed
  }
  get tokens() {
    return this.generation.tokens
  }
  get stopReason() {
    return this.generation.stopReason
  }
  get complete() {
    return this.generation.complete
  }
  async text() {
    for await (const _ of this); // read to the end
    return this.message.content
  }
  async *[Symbol.asyncIterator]() {
    for await (const piece of this.generation) {
      const content = this.read(piece, false)
      if (content) yield content
    }
    const content = this.read('', true)
    if (content) yield content
  }
  /** The content that a piece of the text completes. */
  read(piece, ended) {
    this.held += piece
    while (this.state !== 'content' && this.step(ended));
    if (this.state !== 'content') return ''
    const content = this.held
    this.held = ''
    this.message.content += content
    return content
  }
  /** Read some of what comes before the content; false: more text is needed. */
  step(ended) {
    const rest = this.held.replace(SPACE, '')
    if (this.state === 'begin') {
      const { begin } = this.thinking
      if (rest.startsWith(begin)) [this.held, this.state] = [rest.slice(begin.length), 'space']
      else if (ended || !begin.startsWith(rest)) this.state = 'content'
      else return false
      return true
    }
    if (this.state === 'space' || this.state === 'after') {
      this.held = rest
      if (rest || ended) this.state = this.state === 'space' ? 'reasoning' : 'content'
      return Boolean(rest || ended)
    }
    const { end } = this.thinking
    const at = this.held.indexOf(end)
    if (at >= 0) {
      this.reason(this.held.slice(0, at).replace(SPACE_AT_END, ''))
      this.held = this.held.slice(at + end.length)
      this.state = 'after'
      return true
    }
    if (ended) {
      this.reason(this.held)
      this.held = ''
      this.state = 'content'
      return true
    }
    return false // reasoning is given at its end
  }
  reason(text) {
    if (text) this.message.reasoning_content = (this.message.reasoning_content ?? '') + text
  }
}
