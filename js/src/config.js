// A model's dimensions (src/aleator/models/gguf_config.py), for architectures that need no reader of their own.
import { ARCHITECTURES, LIMITS } from './facts.js'
import { AleatorError } from './native.js'

const MAX_THETA = 1e30
const unsupported = (what) => new AleatorError('UnsupportedModel', `the model needs ${what}, which is not supported`)

/** The architecture's facts and the model's dimensions. */
export function readConfig(gguf) {
  const { fields } = gguf
  const kind = fields.get('general.type', 'string', 'model')
  if (kind !== 'model') throw new AleatorError('UnsupportedModel', `the file holds a '${kind}', not a model (general.type)`)
  const name = fields.get('general.architecture', 'string')
  const architecture = Object.hasOwn(ARCHITECTURES, name) && ARCHITECTURES[name]
  const able = Object.keys(ARCHITECTURES).filter((each) => ARCHITECTURES[each])
  if (!architecture) {
    const where = Object.hasOwn(ARCHITECTURES, name) ? "is computed by Python's package only" : 'is not supported'
    throw new AleatorError('UnsupportedModel', `the architecture '${name}' ${where}; here there are ${able.join(', ')}`)
  }
  for (const key of fields.keys())
    if (key.startsWith(`${name}.`) && !architecture.keys.includes(key.slice(name.length + 1)))
      throw new AleatorError('UnsupportedModel', `the field ${key} is understood by Python's package only`)
  return { architecture: { ...architecture, name }, config: transformer(gguf, architecture, name) }
}

function transformer(gguf, architecture, name) {
  const { fields, tensors } = gguf
  if (fields.get(`${name}.expert_count`, 'integer', 0)) throw unsupported(`a mixture of experts (${name}.expert_count)`)
  if (!fields.get(`${name}.attention.causal`, 'boolean', true)) throw unsupported('attention without a causal mask')
  const nLayers = fields.layers(`${name}.block_count`)
  const nEmbd = fields.width(`${name}.embedding_length`)
  const heads = `${name}.attention.head_count`
  const nHeads = perLayer(fields, heads, nLayers)
  const nKvHeads = fields.has(`${heads}_kv`) ? perLayer(fields, `${heads}_kv`, nLayers) : nHeads
  nHeads.forEach((n, layer) => {
    if (n % nKvHeads[layer]) throw fields.error(`${heads}_kv`, `layer ${layer}: ${n} heads are not a multiple of ${nKvHeads[layer]} KV heads`)
  })
  const headDim = (key) => {
    const most = Math.max(...nHeads)
    if (!fields.has(key) && nEmbd % most) throw fields.error(key, `${key} is missing, and the width ${nEmbd} not a multiple of ${most} heads`)
    return fields.integer(key, 1, 65536, fields.has(key) ? undefined : nEmbd / most)
  }
  const dim = headDim(`${name}.attention.key_length`)
  const contextLength = fields.length(`${name}.context_length`)
  return {
    nVocab: readVocabularySize(gguf, name),
    nLayers,
    nEmbd,
    nHeads,
    nKvHeads,
    nFf: perLayer(fields, `${name}.feed_forward_length`, nLayers),
    headDim: dim,
    headDimV: headDim(`${name}.attention.value_length`),
    eps: fields.number(`${name}.attention.layer_norm${architecture.norm === 'rms' ? '_rms' : ''}_epsilon`, 0, 1),
    contextLength,
    tied: !tensors.has('output.weight'),
    rope: readRope(fields, architecture, name, dim, contextLength),
  }
}

function perLayer(fields, key, n) {
  const value = fields.value(key)
  if (!Array.isArray(value)) return new Array(n).fill(fields.width(key))
  if (value.length !== n) throw fields.error(key, `${key} has ${value.length} entries for ${n} layers`)
  value.forEach((each, layer) => {
    if (!Number.isInteger(each) || each < 1 || each > LIMITS.MAX_WIDTH) throw fields.error(key, `${key}[${layer}] is ${each}; it must be between 1 and ${LIMITS.MAX_WIDTH}`)
  })
  return value
}

function readVocabularySize(gguf, name) {
  const key = 'tokenizer.ggml.tokens'
  const entry = gguf.fields.entries.get(key)
  const tokens = entry?.isArray ? entry.count : 0
  const embedding = gguf.tensors.get('token_embd.weight')
  if (!embedding) return gguf.fields.length(`${name}.vocab_size`, tokens || undefined)
  if (tokens > embedding.shape[0]) throw gguf.fields.error(key, `the tokenizer has ${tokens} tokens and token_embd.weight ${embedding.shape[0]} rows`)
  return embedding.shape[0]
}

function readRope(fields, architecture, name, headDim, contextLength) {
  const prefix = `${name}.rope`
  if (architecture.rope_style === 'none') return { dim: Math.floor(headDim / 2) * 2, style: 'none' }
  const dim = fields.integer(`${prefix}.dimension_count`, 2, headDim, headDim)
  if (dim % 2) throw fields.error(`${prefix}.dimension_count`, `${dim} rotated channels per head of ${headDim}; must be even`)
  const theta = fields.number(`${prefix}.freq_base`, 1, MAX_THETA, 10000)
  let factorKey = `${prefix}.scaling.factor`
  if (!fields.has(factorKey) && fields.has(`${prefix}.scale_linear`)) factorKey = `${prefix}.scale_linear`
  const factor = fields.number(factorKey, 0, 1e6, 1) || 1
  let scaling = fields.get(`${prefix}.scaling.type`, 'string', 'linear')
  if (!['none', 'linear', 'yarn'].includes(scaling)) throw unsupported(`rotary scaling of type '${scaling}' (${prefix}.scaling.type)`)
  for (const [key, neutral] of [['yarn_ext_factor', [1, -1]], ['yarn_attn_factor', [1]]])
    if (!neutral.includes(fields.get(`${prefix}.scaling.${key}`, 'number', 1))) throw unsupported(`${prefix}.scaling.${key} other than 1`)
  if (scaling === 'linear' && factor === 1) scaling = 'none'
  if (fields.number(`${prefix}.scaling.yarn_log_multiplier`, 0, 1e6, 0)) throw unsupported(`${prefix}.scaling.yarn_log_multiplier`)
  const rope = {
    theta,
    dim,
    style: architecture.rope_style,
    scaling,
    factor: scaling === 'none' ? 1 : factor,
    originalContext: fields.length(`${prefix}.scaling.original_context_length`, contextLength),
    attnFactor: fields.number(`${prefix}.scaling.attn_factor`, 0, 1e6, 1),
    betaFast: fields.number(`${prefix}.scaling.yarn_beta_fast`, 0, 1e6, 32),
    betaSlow: fields.number(`${prefix}.scaling.yarn_beta_slow`, 0, 1e6, 1),
  }
  const wrong = scaling === 'yarn' && (factor < 1 || rope.betaFast <= rope.betaSlow || rope.betaSlow < 1e-6 || theta <= 1)
  if (wrong) throw fields.error(`${prefix}.scaling`, 'the numbers of yarn are out of range')
  return rope
}
