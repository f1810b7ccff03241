// Chats: the model's template writes messages as a prompt, and replies are read (src/aleator/text/chat_template.py,
// text/rendered.py, chat/prompt.py); chats.js is translated from src/aleator/chat.
import { FAMILIES, checked_messages } from './chats.js'
import { sha256, word } from './digest.js'
import { CHAT } from './facts.js'
import { Template } from './jinja.js'
import { AleatorError, parameterError, shown, wrong } from './native.js'
import { dumps, fromObject, toObject } from './python-text.js'
import { cut } from './tokenizer.js'

const { MAX_SOURCE } = CHAT.LIMITS
const MARK = 'aleator_probe'
const PRIVATE_USE = [[0xe000, 0xf900], [0xf0000, 0xffffe], [0x100000, 0x10fffe]]

/** Variables that a chat sets. */
const OWN = new Set(['messages', 'tools', 'documents', 'add_generation_prompt', 'bos_token', 'eos_token', 'unk_token', 'pad_token'])
/** What of a template's parts is a name, and no variable that is read. */
const NAMED = { MemberExpression: 'property', FilterExpression: 'filter', TestExpression: 'test', KeywordArgumentExpression: 'key', Set: 'assignee' }

/** A chat template in Jinja's language, for a tokenizer. */
export class ChatTemplate {
  constructor(source, tokenizer) {
    if (source === undefined || source === null || !source.trim())
      throw new AleatorError('TemplateError', 'the model has no chat template: give one as the option chatTemplate, or generate from a plain prompt')
    if (source.length > MAX_SOURCE)
      throw new AleatorError('TemplateError', `the chat template has ${source.length} characters; at most ${MAX_SOURCE} are read`)
    if (!/\{[{%]/.test(source))
      throw new AleatorError('TemplateError', `the chat template ${shown(source)} is plain text, which shows no message: give one in Jinja`)
    const { vocabulary } = tokenizer
    this.source = source
    this.tokenizer = tokenizer
    this.template = failing(() => new Template(source))
    this.variables = variablesOf(this.template.parsed)
    const texts = vocabulary.texts()
    this.control = longestFirst(texts.filter((text, token) => text && vocabulary.isSpecial(token)))
    const structures = (text) => text.trim() && (source.includes(text) || (text.startsWith('<|') && text.endsWith('|>')))
    this.guarded = texts.filter((text, token) => vocabulary.isUserDefined(token) && structures(text))
    this.names = longestFirst([...this.control, ...this.guarded])
    this.tokens = Object.fromEntries(
      ['bos', 'eos', 'unk', 'pad'].map((name) => [`${name}_token`, vocabulary.special[name] === undefined ? '' : texts[vocabulary.special[name]]]),
    )
    const within = (marks) => marks.some((mark) => source.includes(mark))
    this.family = new (FAMILIES.find((family) => family.shows(source)))(source)
    this.thinking =
      this.family.thinking ??
      CHAT.THINKING.find(({ begin, end }) => within([begin, end])) ??
      CHAT.THINKING.find(({ begin, end }) => vocabulary.id(begin) >= 0 || vocabulary.id(end) >= 0)
    const marks = [...this.family.marks, ...(this.thinking ? [this.thinking.begin, this.thinking.end] : [])]
    this.shown = marks.map((mark) => vocabulary.id(mark)).filter((token) => token >= 0 && vocabulary.isSpecial(token))
  }
  /** Refuse tools where the template does not show them, or nothing here reads the model's calls. */
  checkCalls() {
    if (!this.variables.has('tools'))
      throw parameterError("tools: this chat template does not show tools to the model: give a chatTemplate that reads 'tools', or describe them in a message")
    const mark = ['hermes', 'llama3', 'generic'].includes(this.family.name) && CHAT.FOREIGN.find((each) => this.source.includes(each))
    if (mark) throw parameterError(`tools: this model writes calls with '${mark}', which are not read yet: describe the tools in a message, or give a chatTemplate with calls in another form`)
  }
  /** The template's variables; one that it does not read is refused. */
  arguments(enableThinking, given) {
    if (typeof given !== 'object' || given === null || Array.isArray(given)) throw wrong('templateArguments', given, 'give an object')
    for (const name of Object.keys(given)) {
      if (OWN.has(name)) throw wrong(`templateArguments.${name}`, given[name], 'chat gives it to the template itself: leave it out')
      if (!this.variables.has(name)) throw wrong(`templateArguments.${name}`, given[name], 'the chat template does not read it')
    }
    if (enableThinking === undefined) return given
    if (typeof enableThinking !== 'boolean') throw wrong('enableThinking', enableThinking, 'give true or false')
    const name = ['enable_thinking', 'thinking'].find((each) => this.variables.has(each))
    if (!name) throw wrong('enableThinking', enableThinking, 'the chat template does not read it')
    if (Object.hasOwn(given, name)) throw wrong('enableThinking', enableThinking, 'it is given twice, once in templateArguments')
    return { ...given, [name]: enableThinking }
  }
  /** The marks of a reply's phases, as far as they are known. */
  get phaseMarks() {
    const { thinking, family } = this
    return { tool: CHAT.AROUND_CALLS[family.name] ?? [], ...(thinking && { thinking: [thinking.begin, thinking.end + thinking.after] }) }
  }
  /** Whether a reply to this text may reason before its content. */
  mayThink(text, opened, enableThinking) {
    return Boolean(this.thinking) && (opened || !(enableThinking === false || text.slice(-40).includes(this.thinking.end)))
  }
  /** Checked messages as text; names of control tokens in them are private characters, which `literal` explains. */
  rendered(messages, variables) {
    const read = this.family.turns(messages).map((message) => this.asRead(message))
    const given = fromObject(variables, 'templateArguments')
    const marks = new Marks([read, given], this.names)
    const marked = read.map((message) => marks.mark(message, message.get('role') === 'assistant' ? this.guarded : []))
    return { marked: failing(() => this.render(marked, true, marks.mark(given))), literal: marks.literal }
  }
  render(messages, add_generation_prompt, variables = []) {
    return this.template.render(new Map([...Object.entries({ ...this.tokens, add_generation_prompt, tools: null, documents: null }), ...variables, ['messages', messages]]))
  }
  asRead(message) {
    const made = new Map(message)
    if (made.has('tool_calls') && !this.takesMappings) made.set('tool_calls', made.get('tool_calls').map(withText))
    if (made.get('role') === 'developer' && !this.knowsDevelopers) made.set('role', 'system')
    if (made.has('reasoning_content') && /\.thinking\b|\[?['"]thinking['"]/.test(this.source)) made.set('thinking', made.get('reasoning_content'))
    return made
  }
  /** Whether the template knows messages of developers; otherwise they must be the system's. */
  get knowsDevelopers() {
    if (!this.source.includes('developer')) return false // it may write any role
    return (this.developers ??= this.tried([{ role: 'developer', content: MARK }, { role: 'user', content: 'a' }], true)?.includes(MARK) ?? false)
  }
  /** Whether the template serializes a call's arguments itself; otherwise they must be JSON text. */
  get takesMappings() {
    const call = { id: 'abcdefghi', type: 'function', function: { name: 'f', arguments: { [MARK]: 1 } } }
    const messages = [{ role: 'user', content: 'a' }, { role: 'assistant', content: '', tool_calls: [call] }]
    const text = `{'${MARK}': 1}` // no model uses Python's repr
    return (this.mappings ??= !(this.tried(messages, false) ?? text).includes(text))
  }
  /** The text of messages; null: the template refuses them. */
  tried(messages, add_generation_prompt) {
    try {
      return this.render(fromObject(messages, 'messages'), add_generation_prompt)
    } catch {
      return null
    }
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

/** A call with JSON text in place of its arguments. */
function withText(call) {
  const named = call.get('function')
  return new Map([...call, ['function', new Map([...named, ['arguments', dumps(named.get('arguments'), { ensure_ascii: false })]])]])
}

/** Names of the variables that a parsed template reads, those that it sets and its operators among them. */
function variablesOf(parsed) {
  const found = new Set()
  const left = [parsed]
  while (left.length) {
    const node = left.pop()
    if (node.type === 'Identifier') found.add(node.value)
    const named = node.computed ? undefined : NAMED[node.type]
    const inner = node instanceof Map ? [...node].flat() : Object.entries(node).flatMap(([key, each]) => (key === named && each.type === 'Identifier' ? [] : [each]))
    for (const each of inner) if (typeof each === 'object' && each !== null) left.push(each)
  }
  return found
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
    return value instanceof Map ? new Map(Array.from(value, ([key, each]) => [this.mark(key, but), this.mark(each, but)])) : value
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
  else if (Array.isArray(value) || value instanceof Map) for (const each of [...value].flat()) yield* textsOf(each)
}

const unmarked = (text, literal) => Array.from(text, (character) => literal.get(character) ?? character).join('')

/** What the ids of a reply's calls are made of. */
export function replyKey(tokens, { seed, completion }) {
  const known = [...new Uint8Array(Int32Array.from(tokens).buffer), ...new TextEncoder().encode(String(seed ?? 'None'))]
  return sha256([...known, ...(completion ? word(completion) : [])])
}

/** The readable text. */
export const textOf = ({ marked, literal }) => unmarked(marked, literal)

/** Messages as a template takes them; an error names the message and the field. */
export const checkedMessages = (messages) => checked_messages(fromObject(messages, 'messages'))

/** An answer while it is made, read once: pieces of its content; `deltas` gives reasoning and calls, too. */
export class ChatGeneration {
  /** reply: reads the text (chats.js). */
  constructor(generation, reply) {
    this.generation = generation
    this.reply = reply
  }
  get seed() {
    return this.generation.seed
  }
  get tokens() {
    return this.generation.tokens
  }
  get stopReason() {
    const calls = this.reply.message.tool_calls
    const { stopReason } = this.generation
    return stopReason && stopReason !== 'interrupted' && calls.length && calls.every(({ complete }) => complete) ? 'tool_calls' : stopReason
  }
  get complete() {
    return this.generation.complete
  }
  /** What was read so far; a call that was cut off is left out. */
  get message() {
    return toObject(this.reply.message.as_json())
  }
  async text() {
    for await (const _ of this); // read to the end
    return this.message.content
  }
  async *deltas() {
    for await (const piece of this.generation) yield* this.reply.push(piece)
    yield* this.reply.finish()
  }
  async *[Symbol.asyncIterator]() {
    for await (const { kind, text } of this.deltas()) if (kind === 'content') yield text
  }
}
