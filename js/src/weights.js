// The tensors of a model, checked when they are asked for (src/aleator/models/weights.py, layers/layer_source.py).
import { TENSOR_TYPES } from './facts.js'
import { AleatorError } from './native.js'
import { native } from './runtime.js'

/** One thread: see docs/plan.md. */
export const pool = new native.ThreadPool(1)

export class Weights {
  constructor(gguf, architecture, config) {
    this.tensors = new Map([...gguf.tensors.keys()].map((name) => [name, gguf.stored(name)]))
    this.architecture = architecture
    this.config = config
    for (let layer = 0; layer < config.nLayers; layer++) {
      const at = `blk.${layer}.`
      const q = config.nHeads[layer] * config.headDim
      const kv = config.nKvHeads[layer]
      this.separate(`${at}attn_qkv`, { attn_q: q, attn_k: kv * config.headDim, attn_v: kv * config.headDimV }, at)
      if (architecture.fused_gate) this.separate(`${at}ffn_up`, { ffn_gate: config.nFf[layer], ffn_up: config.nFf[layer] }, at)
    }
  }
  /** A tensor in place of which there are its parts, so many rows each. */
  separate(name, parts, at) {
    const sum = Object.values(parts).reduce((a, b) => a + b, 0)
    for (const kind of ['weight', 'bias']) {
      const whole = this.tensors.get(`${name}.${kind}`)
      if (!whole || whole.shape[0] !== sum) continue
      this.tensors.delete(`${name}.${kind}`)
      const size = whole.data.length / sum
      let first = 0
      for (const [part, n] of Object.entries(parts)) {
        const own = `${at}${part}.${kind}`
        this.tensors.set(own, { ...whole, name: own, shape: [n, ...whole.shape.slice(1)], data: whole.data.part(first * size, n * size) })
        first += n
      }
    }
  }
  has(name) {
    return this.tensors.has(name)
  }
  /** The tensor, of this shape. */
  stored(name, shape) {
    const tensor = this.tensors.get(name)
    if (!tensor) throw new AleatorError('FileFormatError', `the tensor '${name}' is missing`, { field: name })
    if (String(tensor.shape) !== String(shape))
      throw new AleatorError('FileFormatError', `the tensor '${name}' is of shape [${tensor.shape}]; the configuration asks for [${shape}]`, { field: name })
    this.checkFinite(tensor)
    return tensor
  }
  checkFinite({ name, type, data }) {
    const { exponents, width, mask, size } = TENSOR_TYPES.find((each) => each.name === type)
    for (const offset of exponents)
      if (native.find_nonfinite(data, offset, size, width, mask) >= 0)
        throw new AleatorError('FileFormatError', `the tensor '${name}' holds NaN or an infinity: the file is damaged, or its training diverged`, { field: name })
  }
  /** Its numbers as a Float32Array. */
  floats(name, ...shape) {
    const { type, data } = this.stored(name, shape)
    const columns = shape.at(-1)
    const rows = shape.reduce((a, b) => a * b, 1) / columns
    const stored = new native.StoredMatrix(data, type, rows, columns, null)
    const made = new native.NativeArray(Float32Array, [rows, columns])
    native.read_rows(pool, stored, BigInt64Array.from({ length: rows }, (_, i) => BigInt(i)), made)
    const numbers = made.array.slice()
    made.free()
    stored.free()
    return numbers
  }
  /** A matrix [out, in] as native code takes it, with its bias if there is one, or must be. */
  matrix(name, nOut, nIn, bias = false) {
    const { type, data } = this.stored(`${name}.weight`, [nOut, nIn])
    const added = bias || this.has(`${name}.bias`) ? this.floats(`${name}.bias`, nOut) : null
    return { matrix: new native.StoredMatrix(data, type, nOut, nIn, added) }
  }
  /** The weights of a norm; after them a layer norm's biases. */
  norm(name, n = this.config.nEmbd, shape = [n]) {
    const weight = this.floats(`${name}.weight`, ...shape)
    if (this.architecture.norm === 'rms') return weight
    const both = new Float32Array(2 * weight.length)
    both.set(weight)
    if (this.has(`${name}.bias`)) both.set(this.floats(`${name}.bias`, ...shape), weight.length)
    return both
  }
}
