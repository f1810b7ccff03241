// A decoder: the parts of its layers, as native code reads them (src/aleator/models/layers/parts.py,
// native_decoder.py), and its steps over a cache.
import { AleatorError, options, whole } from './native.js'
import { native } from './runtime.js'
import { frequencies } from './rotation.js'
import { pool, Weights } from './weights.js'

const MOST_AT_ONCE = 512 // tokens of a step

export class Decoder {
  constructor(gguf, architecture, config) {
    this.data = gguf.data
    const weights = new Weights(gguf, architecture, config)
    const { nVocab, nEmbd, nLayers } = config
    this.config = config
    this.architecture = architecture
    const embedding = [weights.matrix('token_embd', nVocab, nEmbd)]
    const layers = Array.from({ length: nLayers }, (_, layer) => attention(weights, architecture, config, layer))
    const divisors = weights.has('rope_freqs.weight') && config.rope.style !== 'none' ? positive(weights, config.rope.dim / 2) : null
    this.layers = layers
    this.nPositions = architecture.position_embedding ? weights.tensors.get('position_embd.weight')?.shape[0] ?? 0 : null
    this.shape = {
      embedding,
      output: config.tied ? embedding : [weights.matrix('output', nVocab, nEmbd)],
      output_norm: weights.norm(architecture.output_norm),
      rotation: { ...frequencies(config.rope, divisors), interleaved: config.rope.style === 'norm', offset: 0 },
      window_rotation: null,
      eps: config.eps,
      attention_scale: 1 / Math.sqrt(config.headDim),
      embedding_scale: architecture.scaled_embedding ? Math.sqrt(nEmbd) : 1,
      gate: gate(architecture),
      raw_keys: false,
      layer_norm: architecture.norm === 'layer',
      head_norm: layers.some((each) => each.q_norm) ? architecture.head_norm_kind : '',
      residual_scale: 1,
      softcap: 0,
      clamp: 0,
      parallel: architecture.parallel,
      norm_sums: architecture.sum_norm,
      embedding_norm: architecture.embedding_norm ? weights.norm('token_embd_norm') : null,
      slopes: null,
      position_embedding: this.nPositions === null ? null : [weights.matrix('position_embd', this.nPositions, nEmbd)],
    }
  }
  /** Refuse tokens that the model does not have, and a model that was freed. */
  check(tokens) {
    const { nVocab } = this.config
    if (this.data.freed) throw new AleatorError('StateError', 'the model was freed: load it again')
    const wrong = tokens.findIndex((token) => !Number.isInteger(token) || token < 0 || token >= nVocab)
    if (wrong >= 0) throw new AleatorError('ParameterError', `tokens[${wrong}]=${String(tokens[wrong])}: the model has tokens 0 to ${nVocab - 1}`)
  }
}

// GGUF files' GELU is the approximation in either case, rounded as in llama.cpp.
const gate = ({ activation }) => (activation.startsWith('gelu') ? 'gelu_rounded' : activation)

function positive(weights, n) {
  const numbers = weights.floats('rope_freqs.weight', n)
  if (!numbers.every((x) => x > 0)) throw new AleatorError('FileFormatError', 'tensor rope_freqs.weight must be positive', { field: 'rope_freqs.weight' })
  return numbers
}

function attention(weights, architecture, config, layer) {
  const at = `blk.${layer}.`
  const { nEmbd, headDim, headDimV } = config
  const [heads, kvHeads, nFf] = [config.nHeads[layer], config.nKvHeads[layer], config.nFf[layer]]
  const matrix = (name, out, into, bias = false) => weights.matrix(at + name, out, into, bias)
  const norm = (name, ...rest) => weights.norm(at + name, ...rest)
  const headNorm = (name, n) => {
    const kind = architecture.head_norm_kind
    return kind === 'all' ? norm(name, n * headDim) : kind === 'each' ? norm(name, n * headDim, [n, headDim]) : norm(name, headDim)
  }
  const normed = architecture.head_norm || weights.has(`${at}attn_q_norm.weight`)
  const gated = architecture.attention_gate
  const { qkv_bias: bias, parallel, pre_norm: preNorm } = architecture
  return {
    windowed: false,
    rotated: true,
    grows: false,
    gated,
    latent: null,
    n_heads: heads,
    attn_norm: preNorm ? norm('attn_norm') : null,
    qkv: [
      matrix('attn_q', heads * headDim * (gated ? 2 : 1), nEmbd, bias),
      matrix('attn_k', kvHeads * headDim, nEmbd, bias),
      matrix('attn_v', kvHeads * headDimV, nEmbd, bias),
    ],
    output: [matrix('attn_output', nEmbd, heads * headDimV)],
    q_norm: normed ? headNorm('attn_q_norm', heads) : null,
    k_norm: normed ? headNorm('attn_k_norm', kvHeads) : null,
    v_norm: null,
    sinks: architecture.sinks ? weights.floats(`${at}attn_sinks.weight`, heads) : null,
    ffn_norm: preNorm && !parallel ? norm(architecture.ffn_norm) : null,
    post_norms: architecture.post_norm ? [norm('post_attention_norm'), norm('post_ffw_norm')] : null,
    output_scale: null,
    ffn: {
      gate_up: (architecture.gated ? ['ffn_gate', 'ffn_up'] : ['ffn_up']).map((name) => matrix(name, nFf, nEmbd)),
      down: [matrix('ffn_down', nEmbd, nFf)],
    },
  }
}

/** Keys and values of sequences, in cells; steps of a decoder compute over it. */
export class Cache {
  /** nCtx: cells; nSeqs: sequences; type: of keys and values, F16, BF16 or F32. */
  constructor(decoder, given = {}) {
    const { nCtx, nSeqs, type } = options(given, { nCtx: 4096, nSeqs: 1, type: 'F16' })
    if (!['F16', 'F32', 'BF16'].includes(type)) throw new AleatorError('ParameterError', `type=${String(type)}: give F16, BF16 or F32`)
    this.decoder = decoder
    this.cells = new native.Cells(whole('nCtx', nCtx, 1, 2 ** 31 - 1), whole('nSeqs', nSeqs, 1, 4096))
    this.nCtx = nCtx
    this.nSeqs = nSeqs
    this.arrays = []
    const memory = (heads, dim) => {
      const bytes = new native.NativeArray(Uint8Array, nCtx * heads * dim * (type === 'F32' ? 4 : 2))
      bytes.array.fill(0)
      this.arrays.push(bytes)
      return new native.CacheMemory(bytes, type, nCtx, heads, dim)
    }
    this.step = new native.DecoderStep(decoder.shape)
    const { nKvHeads, headDim, headDimV } = decoder.config
    try {
      decoder.layers.forEach((layer, i) => this.step.add_attention(layer, memory(nKvHeads[i], headDim), memory(nKvHeads[i], headDimV)))
    } catch (error) {
      this.free()
      throw error
    }
  }
  /** Positions that a sequence has, 0 to length. */
  length(seq = 0) {
    return this.cells.seq_pos_max(seq) + 1
  }
  /** Remove positions [p0, p1) of a sequence; negative: from the beginning, to the end. */
  seqRm(seq, p0 = -1, p1 = -1) {
    this.cells.seq_rm(seq, p0, p1)
  }
  /** Let another sequence have these positions, too. */
  seqCp(from, to, p0 = -1, p1 = -1) {
    this.cells.seq_cp(from, to, p0, p1)
  }
  /** Forget all other sequences. */
  seqKeep(seq) {
    this.cells.seq_keep(seq)
  }
  clear() {
    this.cells.clear()
  }
  /** Append tokens to a sequence; the logits after the last one, or after each, one row after the other. */
  decode(tokens, given = {}) {
    const { seq, all } = options(given, { seq: 0, all: false })
    const rows = []
    if (this.freed) throw new AleatorError('StateError', 'the cache was freed: make another by model.cache()')
    whole('seq', seq, 0, this.nSeqs - 1)
    if (!tokens?.length) throw new AleatorError('ParameterError', 'tokens is empty: give an array with one token at least')
    this.decoder.check(tokens)
    const first = this.length(seq)
    const most = this.decoder.nPositions
    if (most !== null && first + tokens.length > most) throw new AleatorError('ContextFull', `the model has embeddings of positions 0 to ${most - 1} only: start a new text`)
    if (this.cells.used + tokens.length > this.nCtx)
      throw new AleatorError('ContextFull', `${tokens.length} tokens do not fit: ${this.cells.used} of ${this.nCtx} positions are taken; load the model with a larger nCtx`)
    this.cells.begin()
    try {
      for (let at = 0; at < tokens.length; at += MOST_AT_ONCE) {
        const part = tokens.slice(at, at + MOST_AT_ONCE)
        rows.push(this.decodePart(part, first + at, seq, all ? [...part.keys()] : at + part.length === tokens.length ? [part.length - 1] : []))
      }
    } catch (error) {
      this.cells.rollback()
      throw error
    }
    this.cells.commit()
    if (rows.length === 1) return rows[0]
    const joined = new Float32Array(rows.reduce((n, row) => n + row.length, 0))
    rows.reduce((n, row) => (joined.set(row, n), n + row.length), 0)
    return joined
  }
  decodePart(tokens, first, seq, wanted) {
    const n = tokens.length
    const positions = Int32Array.from(tokens, (_, i) => first + i)
    const { words } = this.cells
    const owners = new BigUint64Array(n * words)
    owners.shape = [n, words]
    for (let i = 0; i < n; i++) owners[i * words + (seq >> 6)] = 1n << BigInt(seq & 63)
    const cells = this.cells.place(positions, owners)
    const seen = native.seen_cells(this.cells, positions, new Int32Array(n).fill(seq), true, null)
    const logits = new native.NativeArray(Float32Array, [wanted.length, this.decoder.config.nVocab])
    try {
      const ids = BigInt64Array.from(tokens, BigInt)
      this.step.run(pool, ids, null, positions, cells, ...seen, BigInt64Array.from(wanted, BigInt), logits)
      return logits.array.slice()
    } finally {
      logits.free()
    }
  }
  free() {
    this.freed = true
    this.step.free()
    this.cells.free()
    for (const array of this.arrays) array.free()
  }
}
