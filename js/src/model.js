// A model: its tokenizer, its decoder, and texts.
import { Chain } from './chain.js'
import { ChatGeneration, ChatTemplate, checkedMessages, replyKey, textOf } from './chat.js'
import { Reply, checked_tools, chosen_tools } from './chats.js'
import { Cache, MOST_CELLS } from './cache.js'
import { Completion, following, pause } from './completion.js'
import { Decoder } from './decoder.js'
import { ARCHITECTURES, KINDS, NO_VOCABULARY } from './facts.js'
import { takeBack } from './healing.js'
import { readFile } from './loading.js'
import { READERS } from './models.js'
import { AleatorError, options, parameterError, whole } from './native.js'
import { check, constraintsOf, ofText, resolve } from './parameters.js'
import { withMarks } from './phase-table.js'
import { fromObject } from './python-text.js'
import { LONGEST_WAIT, WAITS } from './ranges.js'
import { callsOf, replyGrammar } from './reply-grammar.js'
import { threadPool } from './runtime.js'
import { textOptions } from './text-options.js'
import { MOST_THREADS, usualThreads } from './threads.js'
import { Tokenizer } from './tokenizer.js'
import { Vocabulary } from './vocabulary.js'

const AT_ONCE = 64 // tokens of a prompt: a second or so

/**
 * Load a GGUF file.
 * source: a URL or (in Node) a path; a File or another Blob; or the bytes.
 * given: nCtx, the positions of a text; threads, which compute it; onProgress, called with (bytes, all bytes); signal,
 * an AbortSignal; keep: what comes from a URL, on the browser's disk; stallTimeout and maxRetryAfter, in milliseconds:
 * ranges.js.
 */
export async function load(source, given = {}) {
  const { nCtx, threads, ...how } = options(given, { nCtx: undefined, threads: undefined, onProgress: () => {}, signal: undefined, keep: true, ...WAITS })
  if (nCtx !== undefined) whole('nCtx', nCtx, 1, MOST_CELLS)
  if (threads !== undefined) whole('threads', threads, 1, MOST_THREADS)
  whole('stallTimeout', how.stallTimeout, 1, LONGEST_WAIT)
  whole('maxRetryAfter', how.maxRetryAfter, 0, LONGEST_WAIT)
  if (typeof how.onProgress !== 'function') throw parameterError('onProgress: give a function')
  if (how.signal && !(how.signal instanceof AbortSignal)) throw parameterError('signal: give an AbortSignal')
  return readFile(source, how, (gguf) => new Model(gguf, nCtx, threads))
}

/** The threads that were asked for; else as many as is usual, or one where workers do not start. */
async function poolOf(threads) {
  if (threads !== undefined) return threadPool(threads)
  return threadPool(await usualThreads()).catch(() => threadPool(1))
}

/** The architecture that a file names, and the model's dimensions, every field checked (src/aleator/models/index.py). */
function readConfig(gguf) {
  const { fields } = gguf
  const kind = fields.get('general.type', 'model')
  if (kind !== 'model') throw new AleatorError('UnsupportedModel', `the file holds a '${kind}', not a model (general.type)${KINDS[kind] ?? ''}`)
  const name = fields.require('general.architecture', 'string')
  if (!Object.hasOwn(ARCHITECTURES, name))
    throw new AleatorError('UnsupportedModel', `the architecture '${name}' is not supported; here there are ${Object.keys(ARCHITECTURES).join(', ')}`)
  const architecture = ARCHITECTURES[name]
  return { architecture, config: READERS[name](gguf, architecture) }
}

export class Model {
  /** Of a file whose metadata are there; `complete` it when its tensors are. */
  constructor(gguf, nCtx, threads) {
    this.gguf = gguf
    this.threads = threads
    const { architecture, config } = readConfig(gguf)
    this.architecture = architecture
    this.config = config
    // Without a vocabulary a model has token ids only.
    const none = NO_VOCABULARY.includes(gguf.fields.get('tokenizer.ggml.model', NO_VOCABULARY[0]))
    this.vocabulary = none ? null : new Vocabulary(gguf)
    this.tokenizer = none ? null : new Tokenizer(this.vocabulary)
    for (const name of gguf.tensors.keys()) gguf.stored(name) // of a known type
    this.nCtx = nCtx ?? Math.min(config.context_length, 4096)
    const prefix = 'general.sampling.'
    const keys = gguf.fields.keys().filter((key) => key.startsWith(prefix))
    this.recommended = Object.fromEntries(keys.map((key) => [key.slice(prefix.length), gguf.fields.values.get(key)]))
  }
  async complete() {
    const decoder = new Decoder(this.gguf, this.architecture, this.config) // a wrong file is refused before workers start
    this.pool = decoder.pool = await poolOf(this.threads)
    this.threads = this.pool.threads
    this.decoder = decoder
  }
  /** A cache for texts of this model. */
  cache({ nCtx = this.nCtx, ...given } = {}) {
    return new Cache(this.decoder, { nCtx, ...given })
  }
  /** The chain of these sampling parameters, over the preset of the file's recommendations. */
  chain(parameters = {}, given = {}) {
    const { preset, completion } = options(given, { preset: undefined, completion: 0 })
    const values = resolve(parameters, preset, this.recommended)
    return new Chain({}, { values, tokenizer: this.tokenizer, completion })
  }
  /**
   * The text that continues a prompt, in pieces.
   * options: sampling parameters, seed among them; preset; maxTokens; stop, strings that end it; signal, an
   * AbortSignal; parseSpecial, for prompts with control tokens; suffix, the text after what is to be written;
   * others: text-options.js.
   */
  generate(prompt, options = {}) {
    return this.generation(prompt, options, [])
  }
  /** shown: control tokens that are part of the text. */
  generation(prompt, given, shown) {
    const { options, rest } = textOptions(this.tokenizer, given)
    const { preset, parseSpecial, suffix, completion, ...parameters } = rest
    if (typeof prompt !== 'string' && !Array.isArray(prompt) && !ArrayBuffer.isView(prompt)) throw parameterError('prompt: give a text, or an array of token ids')
    if (!this.tokenizer && typeof prompt === 'string')
      throw new AleatorError('TokenizerError', 'the model has no vocabulary (tokenizer.ggml.model): give token ids, and take the ids that come')
    if (suffix !== undefined && (typeof suffix !== 'string' || !this.tokenizer))
      throw parameterError('suffix: give a text, for a model with a vocabulary')
    const tokens =
      suffix !== undefined ? this.tokenizer.infill(prompt, suffix, { parseSpecial })
      : typeof prompt === 'string' ? this.tokenizer.encode(prompt, { parseSpecial })
      : Array.from(prompt)
    if (!tokens.length) throw parameterError('the prompt is empty, and the model has no token for the beginning of a text')
    this.decoder.check(tokens)
    if (tokens.length > this.nCtx)
      throw new AleatorError('ContextFull', `the prompt has ${tokens.length} tokens and the context ${this.nCtx} positions: shorten it, or load the model with a larger nCtx`)
    const sampling = ofText(parameters, { thinking: options.reasoningMarks }, tokens, this.tokenizer)
    const chain = this.chain(sampling, { preset, completion })
    if (options.heal && chain.constraint) throw parameterError('heal=true: not with a grammar, as both say what the first tokens are: leave one out')
    const [left, taken] = options.heal ? takeBack(tokens, this.tokenizer, chain.values.phases) : [tokens, []]
    return new Generation(this, left, chain, { ...options, shown, taken })
  }
  /**
   * The answer to messages, [{ role, content }], in pieces; names of control tokens in them are text.
   * given: those of generate; chatTemplate, in place of the model's; enableThinking and templateArguments, variables
   * that the template reads; tools, declarations of functions, and toolChoice: 'auto', 'none', 'required' or a name.
   */
  chat(messages, { chatTemplate, enableThinking, templateArguments = {}, tools, toolChoice, stop = [], ...given } = {}) {
    const checked = checkedMessages(messages)
    const [seen, forced] = chosen_tools(fromObject(toolChoice, 'toolChoice'), checked_tools(fromObject(tools, 'tools')))
    const shown = seen.length > 0
    if (!this.tokenizer) throw new AleatorError('TokenizerError', 'the model has no vocabulary (tokenizer.ggml.model): generate from token ids')
    if (given.heal) throw parameterError("heal=true: the template ends a chat's prompt, and not a word: leave it out")
    const template = this.template(chatTemplate)
    const { family, thinking } = template
    if (shown) template.checkCalls()
    const variables = { tools: shown ? seen.map(([tool]) => tool) : null, ...template.arguments(enableThinking, templateArguments) }
    const rendered = template.rendered(checked, variables)
    const text = textOf(rendered)
    const opened = Boolean(thinking) && text.trimEnd().endsWith(thinking.begin)
    const mayThink = template.mayThink(text, opened, enableThinking)
    checkConstraints(given, shown, forced)
    const made = { ...given, stop: [...this.vocabulary.chatStop, ...[stop].flat()] }
    if (forced.length || ((given.json_schema ?? null) !== null && (mayThink || family.thinking))) {
      const choices = forced.length ? callsOf(family, forced) : [family.content(fromObject(given.json_schema, 'json_schema'))]
      made.grammar = replyGrammar(this.tokenizer, choices, mayThink ? thinking : null, opened)
      made.json_schema = undefined
      made.stop = stop // the grammar says where the reply ends
      if (mayThink) made.completeGrammar ??= false // the end of reasoning cannot be searched for
    }
    markReasoning(made, thinking)
    if (made.phases !== undefined) made.phases = withMarks(check('phases', made.phases), template.phaseMarks, 'the chat template')
    const tokens = template.encode(rendered)
    const generation = this.generation(tokens, made, template.shown)
    const schemas = new Map(seen.map(([, { name, parameters }]) => [name, parameters]))
    const reads = shown || family.thinking || family.marks_content ? family : null
    return new ChatGeneration(generation, new Reply(reads, family.thinking ? null : thinking, opened, schemas, replyKey(tokens, given), forced.length > 0))
  }
  template(source = this.vocabulary.chatTemplate) {
    if (source !== this.lastTemplate?.source) this.lastTemplate = new ChatTemplate(source, this.tokenizer)
    return this.lastTemplate
  }
  /** Free its memory, and end its threads; what was made of it is of no use after that. */
  free() {
    this.gguf.data.free()
    this.pool.free()
  }
}

/** Give a reasoning budget the marks of the template. */
function markReasoning(options, thinking) {
  if ((options.reasoningBudget ?? -1) === -1) return
  if (!thinking) throw parameterError(`reasoningBudget=${options.reasoningBudget}: nothing says how this model writes its reasoning: leave it out`)
  options.reasoningMarks ??= [thinking.begin, thinking.end + thinking.after]
}

/** Refuse constraints that cannot be enforced together. */
function checkConstraints(given, shown, forced) {
  const [name, another] = constraintsOf(given)
  if (another) throw parameterError(`${name} and ${another} are both given: choose one`)
  if (forced.length && name) throw parameterError(`${name} and toolChoice both say what the reply must be: give one`)
  if (shown && (given.json_schema ?? null) !== null)
    throw parameterError("json_schema forces the content, and with tools the reply may be a call instead: give toolChoice: 'none', or leave json_schema out")
}

/** A text while it is made, read once: for await (const piece of generation), or await generation.text(). */
export class Generation {
  constructor(model, prompt, chain, options) {
    Object.assign(this, { model, prompt, chain, options, seed: chain.seed, begun: false })
    this.completion = new Completion(chain, { tokenizer: model.tokenizer, nCtx: model.nCtx, prompt, ...options })
  }
  get tokens() {
    return this.completion.tokens
  }
  get stopReason() {
    return this.completion.stopReason
  }
  get complete() {
    return this.completion.complete
  }
  async text() {
    let all = ''
    for await (const piece of this) all += piece
    return all
  }
  async *[Symbol.asyncIterator]() {
    const { model, chain, completion } = this
    const { signal } = this.options
    if (this.begun) throw new AleatorError('StateError', 'a generation is read once: call generate again, with its seed for the same text')
    this.begun = true
    const cache = model.cache()
    try {
      chain.acceptAll(this.prompt)
      let next = this.prompt
      const decoded = []
      while (!completion.stopReason) {
        if (signal?.aborted) {
          completion.stopReason = 'interrupted'
          break
        }
        const part = next.slice(0, AT_ONCE)
        const logits = cache.decode(part)
        decoded.push(...part)
        next = next.slice(AT_ONCE)
        // Whoever waits for the page's events gets them between two steps.
        if (next.length) {
          await pause()
          continue
        }
        // The matrix may have more rows than there are tokens.
        const row = completion.allowed(logits.subarray(0, model.vocabulary?.size))
        const token = await completion.draw(row, cache.length(), signal)
        if (token === null) continue
        const taken = completion.take(token, row, cache.length())
        if (taken.piece) yield taken.piece
        next = following(cache, decoded, taken)
        await pause()
      }
      const rest = completion.end()
      if (rest) yield rest
    } finally {
      cache.free()
    }
  }
}
