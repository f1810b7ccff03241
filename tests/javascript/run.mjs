// Does in Node what a test asks for: node run.mjs CASES.json, which says `what`, and gives results as JSON.
import { readFile } from 'node:fs/promises'
import { downloads, kept } from './downloads.mjs'
import { deeds, done, floats, hex, tried } from './doing.mjs'

const asked = JSON.parse(await readFile(process.argv[2], 'utf8'))
const aleator = await import(asked.package)
const { Chain, GGUF, load, native, Tokenizer, Vocabulary } = aleator
const inside = (file) => import(new URL(file, asked.package))
const { checkedMessages, textOf } = await inside('chat.js')

const tokenizerOf = async (path) => {
  const data = new native.NativeArray(Uint8Array, (await readFile(path)).length)
  data.array.set(await readFile(path))
  return new Tokenizer(new Vocabulary(new GGUF(data)))
}

const models = new Map()
const loaded = async (path) => models.get(path) ?? models.set(path, await load(path)).get(path)

const AsyncFunction = (async () => {}).constructor

/** A request for a page with the texts' ids in place of their numbers. */
function pageOf(body, ids) {
  if (!Number.isInteger(body?.texts?.[0])) return body
  const { texts, current, compare = [], draws = [] } = body
  const named = texts.map((n) => ({ id: ids[n], name: `text ${n}` }))
  return { ...body, texts: named, current: ids[current], compare: compare.map((n) => ids[n]), draws: draws.map((each) => ({ ...each, id: ids[each.id] })) }
}

const doing = {
  ...deeds(aleator),
  downloads: downloads(aleator, new URL('.', asked.package).href),
  kept: kept(aleator, new URL('.', asked.package).href),
  resolved: ({ parameters, preset }) => {
    const { samplers } = new Chain(parameters, { preset })
    return samplers.map((each) => [each.constructor.sampler, each.neutral])
  },
  tokens: async ({ path, texts }) => {
    const tokenizer = await tokenizerOf(path)
    return texts.map((text) => {
      const ids = [true, false].map((parseSpecial) => tokenizer.encode(text, { parseSpecial }))
      return [...ids, tokenizer.decode(ids[0]), [...tokenizer.vocabulary.eog].sort((a, b) => a - b)]
    })
  },
  infilled: async ({ path, prompt, suffix, marks }) => {
    const tokenizer = await tokenizerOf(path)
    Object.assign(tokenizer.vocabulary.special, marks)
    return tokenizer.infill(prompt, suffix)
  },
  templates: async ({ path, source, messages, tools = null }) => {
    const template = (await loaded(path)).template(source)
    const rendered = template.rendered(checkedMessages(messages), { tools })
    return [textOf(rendered), template.encode(rendered)]
  },
  talks: async ({ path, messages, options }) => {
    const answer = (await loaded(path)).chat(messages, options)
    let pieces = ''
    for await (const piece of answer) pieces += piece
    return { pieces, tokens: answer.tokens, message: answer.message }
  },
  // A forced reply, and the grammar that it obeys.
  forced: async ({ path, messages, options }) => {
    const answer = (await loaded(path)).chat(messages, options)
    await answer.text()
    return { tokens: answer.tokens, message: answer.message, grammar: answer.generation.chain.values.grammar, reason: answer.stopReason }
  },
  // What a reply's pieces add to its message.
  replies: async ({ template, pieces, thinking, opened, tools }) => {
    const { FAMILIES, Reply } = await inside('chats.js')
    const { fromObject, toObject } = await inside('python-text.js')
    const family = new (FAMILIES.find((each) => each.shows(template)))(template)
    const reply = new Reply(family, family.thinking ? null : thinking, opened, fromObject(tools, 'tools'), new TextEncoder().encode('key'))
    const deltas = pieces.map((piece) => reply.push(piece))
    return { name: family.name, deltas: [...deltas, reply.finish()], message: toObject(reply.message.as_json()) }
  },
  grammars: async ({ thinking, schema }) => {
    const { all, Grammar } = await inside('gbnf.js')
    const { reasoning, valueOf } = await inside('schema.js')
    const grammar = new Grammar()
    return grammar.text(all(reasoning(grammar, thinking), valueOf(schema, grammar)))
  },
  // Edits of a cache, each a name and arguments, with `decode` among them; the logits of the last tokens.
  edits: async ({ path, edits, types, nSeqs = 2 }) => {
    const cache = (await load(path)).cache({ nCtx: 256, nSeqs, ...types })
    const told = []
    for (const [name, ...given] of edits) {
      const made = await tried(() => cache[name](...given))
      if (name.startsWith('decode')) told.push(made.error ?? hex(made))
      else if (made?.error) told.push(made.error)
    }
    return [told, [...Array(nSeqs).keys()].map((seq) => cache.length(seq))]
  },
  products: ({ kind, out, data, x, shape }) => {
    const bytes = Buffer.from(data, 'base64')
    const stored = new native.NativeArray(Uint8Array, bytes.length)
    stored.array.set(bytes)
    const given = new native.NativeArray(Float32Array, shape)
    given.array.set(floats(x))
    const y = new native.NativeArray(Float32Array, [shape[0], out])
    const matrix = new native.StoredMatrix(stored, kind, out, shape[1], null)
    native.linear(new native.ThreadPool(1), matrix, given, y)
    return hex(y.array)
  },
  // The value of an expression, or what the statements of several lines return.  They may await, and have the package's
  // names, `path`, its `model` where they name it, what is `given`, and `inside`, which imports a module of the package.
  value: async ({ code, path, given }) => {
    const model = /\bmodel\b/.test(code) && (await load(path, { nCtx: 64 }))
    const names = { ...aleator, path, model, given, inside }
    return new AsyncFunction(...Object.keys(names), code[0] === '\n' ? code : `return (${code})`)(...Object.values(names))
  },
  // Answers of the page's engine (js/site): a text's lines as an array; {0} in a path, or a parent's number, is a text.
  requests: async ({ folder, path, asked }) => {
    const { Engine, toldError } = await import(`${folder}/engine/requests.js`)
    const engine = await Engine.load(path, true, () => {})
    const ids = []
    const answers = []
    for (const { method, path, body } of asked) {
      const given = body && typeof body.parent === 'number' ? { ...body, parent: ids[body.parent] } : pageOf(body, ids)
      try {
        const made = await engine.answer(method, path.replace(/\{(\d)\}/, (_, n) => ids[n]), given)
        const lines = []
        if (made.next) for await (const line of made) lines.push(line)
        if (lines.length) ids.push(lines[0].id)
        answers.push(made.next ? lines : made)
      } catch (error) {
        answers.push({ error: toldError(error) })
      }
    }
    return answers
  },
  digests: async ({ folder, parts }) => {
    const { blake2b } = await import(`${folder}/engine/fingerprint.js`)
    return parts.map((part) => blake2b(Uint8Array.from(part), 16))
  },
}

console.log(JSON.stringify(await done(doing, asked)))
