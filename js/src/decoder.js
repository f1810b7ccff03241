// A decoder: its layers as native code reads them, made by models.js, and how they are computed over a cache
// (src/aleator/models/decoder.py, native_decoder.py).
import * as models from './models.js'
import { AleatorError, parameterError } from './native.js'
import { native } from './runtime.js'
import { frequencies, logarithm } from './rotation.js'
import { LayerSource, Weights } from './weights.js'

export class Decoder {
  constructor(gguf, architecture, config) {
    this.data = gguf.data
    this.pool = null // the threads that compute it
    this.weights = new Weights(gguf, architecture, config)
    this.config = config
    this.architecture = architecture
    const { n_vocab: nVocab, n_embd: nEmbd, n_layers: nLayers, per_layer: perLayer } = config
    const outside = new LayerSource(this.weights, -1)
    this.embedding = outside.matrix(['token_embd'], nEmbd, [nVocab])
    this.layers = Array.from({ length: nLayers }, (_, layer) => this.layer(layer))
    this.embeddings = perLayer && {
      parts: new models.LayerEmbeddings(outside),
      table: outside.matrix([models.TABLE], nLayers * perLayer.width, [perLayer.n_vocab])[0].matrix,
    }
    this.nPositions = architecture.position_embedding ? this.weights.tensor('position_embd.weight').shape[0] : null
    const attending = this.layers.flatMap(({ attention }) => attention ?? [])
    this.shape = {
      embedding: this.embedding,
      output: config.tied ? this.embedding : outside.matrix(['output'], nEmbd, [nVocab]),
      output_norm: architecture.output_norm ? outside.norm(architecture.output_norm) : null,
      eps: config.rms_eps,
      attention_scale: attending[0]?.scale ?? 1,
      embedding_scale: architecture.scaled_embedding ? Math.sqrt(nEmbd) : config.embedding_scale,
      gate: models.gate_of(outside),
      raw_keys: false,
      layer_norm: architecture.norm === 'layer',
      head_norm: attending.map((each) => each.head_norm_kind).sort().at(-1) ?? '',
      residual_scale: config.residual_scale,
      softcap: config.attention_softcap,
      clamp: config.qkv_clamp,
      parallel: config.parallel,
      norm_sums: architecture.sum_norm,
      embedding_norm: architecture.embedding_norm ? outside.norm('token_embd_norm') : null,
      slopes: config.alibi ? alibiSlopes(config.n_heads[0], config.alibi) : null,
      position_embedding: this.nPositions === null ? null : outside.matrix(['position_embd'], nEmbd, [this.nPositions]),
    }
    this.rotations = new Map()
    this.growths = new Map()
  }
  /** The parts of a layer: attention, a state, or neither. */
  layer(layer) {
    const { config } = this
    const source = new LayerSource(this.weights, layer)
    const made = { windowed: this.windowed(layer) }
    if (this.keepsState(layer)) made.state = models.stateful(source, 0)
    else if (!config.attends(layer)) made.feedForward = new models.FeedForwardAlone(source)
    if (!config.attends(layer)) return made
    made.attention = new models.Attention(source, made.windowed, 0)
    if (config.per_layer) made.embedding = new models.LayerEmbedding(source)
    return made
  }
  windowed(layer) {
    return this.config.window !== null && this.config.window.layers[layer]
  }
  keepsState(layer) {
    return this.architecture.recurrent !== null && this.config.keeps_state(layer)
  }
  /** A native step without layers, for contexts of nCtx positions. */
  step(nCtx) {
    const { rope, window } = this.config
    const rotation = this.rotation(rope, nCtx, true)
    const own = window && JSON.stringify(window.rope) !== JSON.stringify(rope)
    const windowRotation = own ? this.rotation(window.rope, nCtx, false) : rotation
    const step = new native.DecoderStep({ ...this.shape, rotation, window_rotation: windowRotation })
    if (this.embeddings) step.set_per_layer(this.embeddings.table, this.embeddings.parts)
    return step
  }
  /** A rotary embedding; file: with the file's own divisors.  Longrope has a table for contexts longer than the trained one. */
  rotation(rope, nCtx, file) {
    const long = nCtx > rope.original_context
    const stem = rope.scaling !== 'longrope' ? 'rope_freqs' : long ? 'rope_factors_long' : 'rope_factors_short'
    const key = `${stem} ${file} ${JSON.stringify(rope)}`
    if (!this.rotations.has(key)) {
      const divisors = file || rope.scaling === 'longrope' ? this.divisors(`${stem}.weight`) : null
      const made = frequencies(rope, divisors)
      this.rotations.set(key, { ...made, dim: rope.dim, offset: rope.offset, interleaved: rope.style === 'norm' })
    }
    return this.rotations.get(key)
  }
  divisors(name) {
    const { rope } = this.config
    if (!this.weights.has(name) || rope.style === 'none') return null
    const numbers = this.weights.floats(name, [rope.dim / 2])
    if (!numbers.every((x) => x > 0)) throw new AleatorError('FileFormatError', `tensor ${name} must be positive`, { field: name })
    return numbers
  }
  /** Factors of queries that grow with their positions; null: they do not. */
  queryScales(positions) {
    const growth = this.config.query_growth
    if (!growth) return null
    return Float32Array.from(positions, (position) => {
      const times = Math.floor((position + growth.ahead) / growth.context)
      if (!this.growths.has(times)) this.growths.set(times, 1 + growth.rate * logarithm(1 + times))
      return this.growths.get(times)
    })
  }
  /** Rows of logits as the model gives them. */
  finish(logits) {
    const { logit_scale: scale, logit_softcap: cap } = this.config
    const factor = Math.fround(scale)
    if (factor !== 1) logits.array.forEach((x, i, all) => (all[i] = x * factor))
    if (cap) native.soften_logits(logits, cap)
    return logits.array.slice()
  }
  /** Refuse tokens that the model does not have, and a model that was freed. */
  check(tokens) {
    const { n_vocab: nVocab } = this.config
    if (this.data.freed) throw new AleatorError('StateError', 'the model was freed: load it again')
    const wrong = tokens.findIndex((token) => !Number.isInteger(token) || token < 0 || token >= nVocab)
    if (wrong >= 0) throw parameterError(`tokens[${wrong}]=${String(tokens[wrong])}: the model has tokens 0 to ${nVocab - 1}`)
  }
}

/** How fast the scores of each head fall with the distance (`alibi_slopes` in src/aleator/models/decoder.py). */
function alibiSlopes(nHeads, largest) {
  const whole = 2 ** Math.floor(Math.log2(nHeads))
  const exponents = Array.from({ length: nHeads }, (_, head) =>
    head < whole ? (largest * (head + 1)) / whole : (largest / 2) * (2 * (head - whole) + 1) / whole)
  return Float32Array.from(exponents, (exponent) => 2 ** -exponent)
}
