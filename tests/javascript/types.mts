// How programs use the types: checked, not run.
import { load, keptModels, forgetModel, Chain, explain, gbnf, AleatorError, PRESETS, VERSION, Cache, type GenerateOptions } from 'aleator'
const options: GenerateOptions = { seed: 4n, temperature: 0.5, stop: ['a'], maxTokens: 5, logit_bias: new Map([[1, 2]]), preset: 'greedy' }
const model = await load('a.gguf', { nCtx: 5, threads: 2, onProgress: (a, b) => console.log(a / b) })
for await (const piece of model.generate('a', options)) console.log(piece.length)
await load(new URL('https://example.org/a.gguf'), { signal: AbortSignal.timeout(9), keep: false, stallTimeout: 9_000, maxRetryAfter: 0 })
for (const { url, size, bytes } of await keptModels()) if (bytes < size) await forgetModel(url)
const ids: number[] = model.tokenizer!.encode('a', { parseSpecial: true })
const cache: Cache = model.cache({ type: 'F16' })
const answer = model.chat([{ role: 'user', content: 'Hi' }], { seed: 1, enableThinking: false })
for await (const piece of answer) console.log(piece.length)
const next: string = answer.message.content + answer.message.reasoning_content
const asked = model.chat([{ role: 'user', content: 'Hi' }, answer.message], { tools: [{ function: { name: 'f', parameters: { type: 'object' } } }], toolChoice: 'f' })
for await (const { kind, text, id } of asked.deltas()) if (kind === 'call') console.log(text + id)
const results = asked.message.tool_calls?.map(({ id, function: { arguments: given } }) => ({ role: 'tool' as const, tool_call_id: id, content: given }))
model.chat(results ?? [])
cache.seqAdd(0, 0, -1, next.length + model.threads)
model.cache({ typeK: 'Q8_0' })
const whole: boolean | null = model.generate('a', { json_schema: { type: 'object' }, completeGrammar: false }).complete
model.generate('a', { heal: true, stopLoops: { repeats: 4 }, reasoningBudget: 9, reasoningMarks: ['<a>', '</a>'] })
model.generate('a', { bannedStrings: ['b'] })
model.generate('a', { bannedRegex: ['b', ['c', 0.5], { regex: 'd', probability: 0.5 }], stopLoops: { temperature: 1.5, for: 9 } })
new Chain({ regex: 'a+' }, { tokenizer: model.tokenizer })
new Chain({ grammar: gbnf(true), json_schema: String(whole) })
// @ts-expect-error a schema is no number
model.chat([{ role: 'user', content: 'Hi' }], { json_schema: 5 })
// @ts-expect-error there is no such role
model.chat([{ role: 'king', content: 'Hi' }])
const chain = new Chain({ logit_bias: { 1: 2 }, samplers: ['top_k'] }, { tokenizer: model.tokenizer })
chain.sample(cache.decode(ids, { all: false }))
try { explain(chain, new Float32Array(3)).stages[0]!.candidates } catch (error) { if (error instanceof AleatorError) console.log(error.field, error.offset) }
// @ts-expect-error there is no such option
model.generate('a', { max_tokens: 5 })
// @ts-expect-error a tokenizer is a model's
new Chain({}, { tokenizer: { encode: () => [1], decode: () => '' } })
// @ts-expect-error made by model.cache()
new Cache()
// @ts-expect-error Python's only
new Chain({ watermark_key_file: 'a' })
new Chain({ phases: { thinking: { temperature: 0.6 }, answer: 'greedy', histories: 'own' } }).phases.length
export const v: string = VERSION + Object.keys(PRESETS)
