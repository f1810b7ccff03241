import type { SamplingParameters } from './parameters.js'
export type { SamplingParameters }

/** Named sets of sampling parameters. */
export const PRESETS: Record<string, SamplingParameters>
export const VERSION: string

/**
 * `name` is the class of the error in Python's package, such as "ParameterError" or "FileFormatError"; "DownloadError": a
 * URL could not be read.
 */
export class AleatorError extends Error {
  /** Of a file: the field or tensor that is wrong, and where. */
  readonly field?: string
  readonly offset?: number
  /** Of a grammar: where its text is wrong, or the token that it does not allow. */
  readonly line?: number
  readonly column?: number
  readonly token?: number
}

/** Texts and token ids; a model has one. */
export class Tokenizer {
  private constructor()
  private readonly native
  encode(text: string, options?: { addSpecial?: boolean; parseSpecial?: boolean }): number[]
  /** A prompt for what stands between two texts. */
  infill(prompt: string | Iterable<number>, suffix: string, options?: { parseSpecial?: boolean }): number[]
  decode(ids: Iterable<number>, options?: { skipSpecial?: boolean; atStart?: boolean }): string
}

/** Samplers in order over one sequence: equal logits and seeds give equal tokens on every machine. */
export class Chain {
  constructor(parameters?: SamplingParameters, options?: { preset?: string; tokenizer?: Tokenizer | null; completion?: number })
  readonly seed: bigint
  readonly history: number[]
  /** How many tokens were generated, which keys the draws. */
  readonly position: number
  /** The phase that drew each token of the history; none for a chain without phases. */
  readonly phases: string[]
  /** Whether a grammar's text is complete. */
  readonly finished: boolean
  /** Choose a token, and accept it. */
  sample(logits: Float32Array): number
  accept(token: number, options?: { generated?: boolean }): void
  acceptAll(tokens: Iterable<number>, options?: { generated?: boolean }): void
  rollback(n: number): void
  reset(): void
  clone(): Chain
  free(): void
}

export interface Stage {
  sampler: string
  /** Whether its parameters make it do nothing. */
  neutral: boolean
  /** How many tokens are left after it. */
  left: number
  /** The most likely of these. */
  candidates: { token: number; logit: number; p: number }[]
}
/** What each sampler makes of a row of logits; the chain stays as it is. */
export function explain(chain: Chain, logits: Float32Array, top?: number): { stages: Stage[]; token: number | null; seed: bigint; position: number }

/**
 * The grammar that a JSON schema becomes: an object, true, or JSON text.  As `grammar` it gives the same text in Python's
 * package, too.
 */
export function gbnf(schema: boolean | string | Record<string, unknown>): string

/** Keys and values of sequences. Positions are [p0, p1); negative: from the beginning, to the end. */
export class Cache {
  private constructor()
  readonly nCtx: number
  length(seq?: number): number
  seqRm(seq: number, p0?: number, p1?: number): void
  seqCp(from: number, to: number, p0?: number, p1?: number): void
  seqKeep(seq: number): void
  /** Add to positions, or divide them; keys are rotated to where they move. */
  seqAdd(seq: number, p0: number, p1: number, delta: number): void
  seqDiv(seq: number, p0: number, p1: number, divisor: number): void
  /** Forget positions after the first `keep` (4), half of them or `discard`, and move up the later ones; how many were forgotten. */
  slide(seq: number, keep?: number, discard?: number | null): number
  /** Give a sequence cells of its own for those that it shares with others. */
  unshare(seq: number, p0?: number, p1?: number): void
  /** Move the last cells into the holes before them. */
  defrag(): void
  clear(): void
  /** Append tokens; the logits after the last, or after each. */
  decode(tokens: number[] | Int32Array, options?: { seq?: number; all?: boolean }): Float32Array
  /** The same for several sequences in one step: their logits in this order. */
  decodeBatch(texts: { seq: number; tokens: number[] | Int32Array }[], all?: boolean): Float32Array
  free(): void
}

export type StopReason = 'eog' | 'tool_calls' | 'grammar' | 'stop' | 'stop_token' | 'loop' | 'length' | 'context' | 'interrupted'

/** A text while it is made, read once: `for await (const piece of generation)`. */
export interface Generation extends AsyncIterable<string> {
  /** All of it. */
  text(): Promise<string>
  readonly seed: bigint
  readonly tokens: number[]
  readonly stopReason: StopReason | null
  /** Once it has ended: whether the text is all that its grammar or JSON schema asks for; null without one. */
  readonly complete: boolean | null
}

export interface Message {
  role: 'system' | 'developer' | 'user' | 'assistant' | 'tool'
  content?: string | { type: 'text'; text: string }[] | null
  name?: string
  /** What a model wrote before its answer. */
  reasoning_content?: string
  /** Of an assistant. */
  tool_calls?: ToolCall[]
  /** Of a tool's result: the call that it answers. */
  tool_call_id?: string
}

/** A call of a tool; its arguments are JSON text. */
export interface ToolCall {
  id?: string
  type?: 'function'
  function: { name: string; arguments?: string | Record<string, unknown> }
}

/** A declaration of a tool; `parameters` is the JSON schema of its arguments. */
export interface Tool {
  type?: 'function'
  function: { name: string; description?: string; parameters?: Record<string, unknown>; strict?: boolean }
}

/** A piece of a message: of a call its beginning (`text` is the tool's name), arguments, and end. */
export interface Delta {
  kind: 'content' | 'reasoning' | 'call' | 'arguments' | 'call_end'
  text: string
  /** Of calls: which of the message's, and where it begins its id. */
  index: number
  id: string
}

/** An answer while it is made, read once: pieces of its content. */
export interface ChatGeneration extends Generation {
  /** What was read so far, with reasoning and calls: for the next call's messages.  A call that was cut off is left out. */
  readonly message: Omit<Message, 'tool_calls'> & { role: 'assistant'; content: string; tool_calls?: { id: string; type: 'function'; function: { name: string; arguments: string } }[] }
  /** All pieces, in place of those of the content. */
  deltas(): AsyncIterable<Delta>
}

export type BannedExpression = string | [string, number] | { regex: string; probability?: number }

export interface GenerateOptions extends SamplingParameters {
  preset?: string
  maxTokens?: number
  /** Strings that end the text. */
  stop?: string | string[]
  signal?: AbortSignal
  /** Whether texts of control tokens in the prompt are these tokens; never for text from strangers. */
  parseSpecial?: boolean
  /** The text after what is to be written, for models with tokens for that. */
  suffix?: string
  completion?: number
  /** Whether a text with a grammar or JSON schema is brought to its end before maxTokens or the context cuts it off; default true. */
  completeGrammar?: boolean
  /** Take back the prompt's last tokens that a longer token begins with, and write them anew; not with a grammar. */
  heal?: boolean
  /**
   * End a text whose last tokens are so many repeats of one cycle, and so many tokens: { repeats: 4, min_tokens: 64 }; with a
   * temperature, go on at that `for` so many tokens.
   */
  stopLoops?: { repeats?: number; min_tokens?: number; temperature?: number; for?: number } | number[] | string | null
  /** Tokens of reasoning at most; after these its end is forced.  -1 or null: no limit. */
  reasoningBudget?: number | null
  /** Text that ends reasoning whose budget is spent, before its end. */
  reasoningBudgetMessage?: string
  /** Tokens beyond the budget in which a sentence may end. */
  reasoningBudgetGrace?: number
  /** Texts that begin and end reasoning; a chat knows those of its template. */
  reasoningMarks?: [string, string]
  /** Texts that never occur: where one does, its tokens are taken back and drawn anew. */
  bannedStrings?: string | string[]
  /** The same of matches of regular expressions, as RE2 reads them; with a probability, of some matches. */
  bannedRegex?: BannedExpression | BannedExpression[] | null
}

export interface ChatOptions extends Omit<GenerateOptions, 'parseSpecial' | 'suffix' | 'heal'> {
  /** In Jinja's language, in place of the model's. */
  chatTemplate?: string
  enableThinking?: boolean
  tools?: Tool[]
  /** 'required': a call of some tool is forced; a name, also as { function: { name } }: of this one. */
  toolChoice?: 'auto' | 'none' | 'required' | (string & {}) | { type?: 'function'; function: { name: string } }
    | { type: 'allowed_tools'; allowed_tools: { mode: 'auto' | 'required'; tools: { type?: 'function'; function: { name: string } }[] } }
  /** Other variables that the template reads. */
  templateArguments?: Record<string, unknown>
}

/** How caches store keys or values. */
export type CacheType = 'F16' | 'BF16' | 'F32' | 'Q8_0' | 'Q5_1' | 'Q5_0' | 'Q4_1' | 'Q4_0' | 'IQ4_NL'

export interface Model {
  readonly nCtx: number
  readonly threads: number
  /** null: the model has no vocabulary. */
  readonly tokenizer: Tokenizer | null
  generate(prompt: string | number[] | Int32Array, options?: GenerateOptions): Generation
  /** The answer to messages; names of control tokens in them are text. */
  chat(messages: Message[], options?: ChatOptions): ChatGeneration
  chain(parameters?: SamplingParameters, options?: { preset?: string; completion?: number }): Chain
  cache(options?: { nCtx?: number; nSeqs?: number; type?: CacheType; typeK?: CacheType; typeV?: CacheType }): Cache
  free(): void
}

export interface LoadOptions {
  /** Positions of a text. */
  nCtx?: number
  /**
   * 1 to 32; half of the processors, at most four, where it is left out.  Where memory cannot be shared, as in a page
   * that is not isolated or in its own thread, there is one.  Logits have the same bits with any number.
   */
  threads?: number
  /** Called as bytes come. */
  onProgress?: (bytes: number, all: number) => void
  /** Ends the loading with its reason. */
  signal?: AbortSignal
  /** Whether what comes from a URL is kept on the browser's disk, where it has one for pages (OPFS); default true. */
  keep?: boolean
  /** Milliseconds without a byte of a URL after which it is asked for again, from there: 1 to 2^31 - 1; default 30,000. */
  stallTimeout?: number
  /** Milliseconds that a server's Retry-After is waited for at most: 0 to 2^31 - 1; default 60,000. */
  maxRetryAfter?: number
}

/** Load a GGUF file: a URL, a path in Node, a File, or the bytes. */
export function load(source: string | URL | Blob | ArrayBuffer | ArrayBufferView, options?: LoadOptions): Promise<Model>

/** Models of URLs that are kept on the browser's disk, with their bytes; fewer than `size` after an interrupted download. */
export function keptModels(): Promise<{ url: string; size: number; bytes: number }[]>
/** Remove what is kept of a URL. */
export function forgetModel(url: string | URL): Promise<void>
