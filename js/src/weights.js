// The tensors of a model, checked when they are asked for (src/aleator/models/weights.py, layers/layer_source.py).
import { DIMENSIONS, TENSOR_TYPES } from './facts.js'
import { AleatorError, product, shaped } from './native.js'
import { native } from './runtime.js'

/** For what is computed once, when a model is loaded. */
const pool = new native.ThreadPool(1)

const FLOATS = ['F32', 'F16', 'BF16']
const GATE_UP = ['ffn_gate', 'ffn_up']
const sum = (numbers) => numbers.reduce((a, b) => a + b, 0)
const missing = (name) => new AleatorError('FileFormatError', `the tensor '${name}' is missing`, { field: name })

/** A tensor with the dimensions of size 1 that ggml does not write, as those of a single expert. */
function withOnes(tensor) {
  const [, wanted = 0] = Object.entries(DIMENSIONS).find(([end]) => tensor.name.endsWith(end)) ?? []
  const missing = Math.max(0, wanted - tensor.shape.length)
  return { ...tensor, shape: [...new Array(missing).fill(1), ...tensor.shape] }
}

export class Weights {
  constructor(gguf, architecture, config) {
    this.tensors = new Map([...gguf.tensors.keys()].map((name) => [name, withOnes(gguf.stored(name))]))
    this.architecture = architecture
    this.config = config
    this.finite = new Set()
    separate(this.tensors, architecture, config)
  }
  has(name) {
    return this.tensors.has(name)
  }
  tensor(name) {
    if (!this.has(name)) throw missing(name)
    return this.tensors.get(name)
  }
  /** The tensor, of this shape. */
  stored(name, shape) {
    const tensor = this.tensor(name)
    if (String(tensor.shape) !== String(shape))
      throw new AleatorError('FileFormatError', `the tensor '${name}' is of shape [${tensor.shape}]; the configuration asks for [${shape}]`, { field: name })
    this.checkFinite(tensor)
    return tensor
  }
  checkFinite({ name, type, data }) {
    if (this.finite.has(name)) return
    const { exponents, width, mask, size } = TENSOR_TYPES.find((each) => each.name === type)
    for (const offset of exponents)
      if (native.find_nonfinite(data, offset, size, width, mask) >= 0)
        throw new AleatorError('FileFormatError', `the tensor '${name}' holds NaN or an infinity: the file is damaged, or its training diverged`, { field: name })
    this.finite.add(name)
  }
  /** Its numbers as a Float32Array with this shape. */
  floats(name, shape) {
    const made = widened(this.stored(name, shape))
    const numbers = shaped(made.array.slice(), shape)
    made.free()
    return numbers
  }
  /** A matrix [out, in] as native code takes it, with its bias if there is one, or must be. */
  matrix(name, nOut, nIn, bias = false) {
    const { type, data } = this.stored(`${name}.weight`, [nOut, nIn])
    const added = bias || this.has(`${name}.bias`) ? this.floats(`${name}.bias`, [nOut]) : null
    return matrixOf(data, type, nOut, nIn, added)
  }
}

/** The numbers of a tensor, in the native code's memory. */
function widened({ type, shape, data }) {
  const columns = shape.at(-1)
  const rows = product(shape) / columns
  const stored = new native.StoredMatrix(data, type, rows, columns, null)
  const made = new native.NativeArray(Float32Array, [rows, columns])
  native.read_rows(pool, stored, BigInt64Array.from({ length: rows }, (_, i) => BigInt(i)), made)
  stored.free()
  return made
}

const matrixOf = (data, type, nOut, nIn, bias) => ({ matrix: new native.StoredMatrix(data, type, nOut, nIn, bias) })

/** The tensors of one layer as native code takes them; layer -1: those outside the layers (layers/stored.py). */
export class LayerSource {
  constructor(weights, layer) {
    this.weights = weights
    this.prefix = layer < 0 ? '' : `blk.${layer}.`
    this.config = weights.config
    this.architecture = weights.architecture
    this.layer = layer
    this.kind = 'gguf'
  }
  has(name) {
    return this.weights.has(this.prefix + name)
  }
  values(name, shape) {
    return this.weights.floats(this.prefix + name, shape)
  }
  found(name, shape) {
    return this.has(name) ? this.values(name, shape) : null
  }
  /** A tensor of n elements, whatever its shape. */
  flat(name, n) {
    const { shape } = this.weights.tensor(this.prefix + name)
    return shaped(this.values(name, product(shape) === n ? shape : [n]), [n])
  }
  scaled(values, by) {
    const factor = Math.fround(by)
    return values.map((x) => x * factor)
  }
  ones(n) {
    return new Float32Array(n).fill(1)
  }
  constant(name) {
    throw new AleatorError('UnsupportedModel', `the tensor '${name}.bias', which encoders have, is not supported`)
  }
  matrix(names, nIn, nOuts, bias = false) {
    return names.map((name, i) => this.weights.matrix(this.prefix + name, nOuts[i], nIn, bias))
  }
  /** The weights of a norm; after them a layer norm's biases. */
  norm(name, given = []) {
    const shape = given.length ? given : [this.config.n_embd]
    const weighed = this.architecture.norm_weights
    const weight = weighed ? this.values(this.has(name) ? name : `${name}.weight`, shape) : this.ones(product(shape))
    if (this.architecture.norm === 'rms') return weight
    const bias = this.has(`${name}.bias`) ? this.values(`${name}.bias`, shape) : new Float32Array(weight.length)
    const [n] = shape.slice(-1)
    const both = shaped(new Float32Array(2 * weight.length), [...shape.slice(0, -1), 2 * n])
    for (let at = 0; at < weight.length; at += n) {
      both.set(weight.subarray(at, at + n), 2 * at)
      both.set(bias.subarray(at, at + n), 2 * at + n)
    }
    return both
  }
  stacked(name, n, nIn, nOut) {
    return this.stack(name, n, nIn, nOut).map(({ data, type }) => [matrixOf(data, type, nOut, nIn, null)])
  }
  experts(names, nIn, nOuts, bias = false) {
    const n = this.config.experts.n_experts
    if (String(names) === String(GATE_UP) && this.has('ffn_gate_up_exps.weight'))
      return this.stack('ffn_gate_up_exps', n, nIn, sum(nOuts), bias).map((each) => this.divided(each, nIn, nOuts))
    const columns = names.map((name, i) => {
      const apart = !this.has(`${name}_exps.weight`) && this.has(`${name}.0.weight`)
      if (apart) return Array.from({ length: n }, (_, expert) => this.weights.matrix(`${this.prefix}${name}.${expert}`, nOuts[i], nIn))
      return this.stack(`${name}_exps`, n, nIn, nOuts[i], bias).map((each) => matrixOf(each.data, each.type, nOuts[i], nIn, each.bias))
    })
    return columns[0].map((_, expert) => columns.map((column) => column[expert]))
  }
  /** The matrices of one tensor [n, out, in]. */
  stack(name, n, nIn, nOut, bias = false) {
    const { type, data } = this.weights.stored(`${this.prefix}${name}.weight`, [n, nOut, nIn])
    const biases = bias || this.has(`${name}.bias`) ? this.values(`${name}.bias`, [n, nOut]) : null
    const size = data.length / n
    return Array.from({ length: n }, (_, i) => ({
      type,
      data: data.part(i * size, size),
      bias: biases && biases.slice(i * nOut, (i + 1) * nOut),
    }))
  }
  divided({ type, data, bias }, nIn, nOuts) {
    const row = data.length / sum(nOuts)
    let first = 0
    return nOuts.map((n) => {
      const made = matrixOf(data.part(first * row, n * row), type, n, nIn, bias && bias.slice(first, first + n))
      first += n
      return made
    })
  }
}

/** Replace fused tensors by their parts, as `separated` in src/aleator/models/weights.py says. */
function separate(tensors, architecture, config) {
  for (let layer = 0; layer < config.n_layers; layer++) {
    const at = `blk.${layer}.`
    const named = (parts) => Object.fromEntries(Object.entries(parts).map(([name, n]) => [at + name, n]))
    if (config.delta != null && config.keeps_state(layer)) separateDelta(tensors, at, config.delta)
    else if (config.n_heads.length) {
      const [dim, dimV] = config.head_dims(layer)
      const gates = architecture.attention_gate && !tensors.has(`${at}attn_gate.weight`)
      const q = config.n_heads[layer] * dim * (gates ? 2 : 1)
      const kv = config.n_kv_heads[layer]
      divide(tensors, `${at}attn_qkv`, named({ attn_q: q, attn_k: kv * dim, attn_v: kv * dimV }))
      if (architecture.attention_gate) joinGate(tensors, at, config.n_heads[layer], architecture.head_gates ? dim : 1)
    }
    if (config.latent?.compressed) separateLatent(tensors, at, config.n_heads[layer], config.rope.dim, config.latent)
    const nFf = config.n_ff[layer]
    if (architecture.fused_gate && nFf !== undefined) divide(tensors, `${at}ffn_up`, named({ ffn_gate: nFf, ffn_up: nFf }))
    const shared = config.experts?.n_ff_shared
    if (shared) divide(tensors, `${at}ffn_gate_up_shexp`, named({ ffn_gate_shexp: shared, ffn_up_shexp: shared }))
    else if (config.experts == null && nFf !== undefined) {
      // Without other experts the shared expert is the feed-forward part.
      divide(tensors, `${at}ffn_gate_up_shexp`, named({ ffn_gate: nFf, ffn_up: nFf }))
      const down = `${at}ffn_down_shexp.weight`
      if (tensors.has(`${at}ffn_gate.weight`) && tensors.has(down)) put(tensors, `${at}ffn_down.weight`, take(tensors, down))
    }
  }
}

const put = (tensors, name, tensor) => tensors.set(name, { ...tensor, name })
function take(tensors, name) {
  const tensor = tensors.get(name)
  tensors.delete(name)
  return tensor
}

function divide(tensors, name, parts) {
  for (const kind of ['weight', 'bias']) {
    const whole = tensors.get(`${name}.${kind}`)
    if (!whole || whole.shape[0] !== sum(Object.values(parts))) continue
    tensors.delete(`${name}.${kind}`)
    const size = whole.data.length / whole.shape[0]
    let first = 0
    for (const [part, n] of Object.entries(parts)) {
      put(tensors, `${part}.${kind}`, { ...whole, shape: [n, ...whole.shape.slice(1)], data: whole.data.part(first * size, n * size) })
      first += n
    }
  }
}

/** A tensor of the same type with `rows` of another, by their numbers. */
function rowsOf(whole, rows, shape) {
  const size = whole.data.length / product(whole.shape.slice(0, -1))
  const data = new native.NativeArray(Uint8Array, rows.length * size)
  const [to, from] = [data.array, whole.data.array]
  rows.forEach((row, i) => to.set(from.subarray(row * size, (row + 1) * size), i * size))
  return { ...whole, shape, data }
}

/** Behind each head's query its gate, where the file has these apart; each of its rows becomes `wide` rows. */
function joinGate(tensors, at, heads, wide) {
  const names = [`${at}attn_q.weight`, `${at}attn_gate.weight`]
  let pair = names.map((name) => tensors.get(name))
  if (wide > 1 && pair[1]?.shape.length === 2) {
    const [rows, nIn] = pair[1].shape
    pair[1] = rowsOf(pair[1], counted(rows * wide, (i) => Math.floor(i / wide)), [rows * wide, nIn])
  }
  if (!pair.every((each) => each?.shape.length === 2 && String(each.shape) === String(pair[0].shape))) return
  if (pair[0].shape[0] % heads) return
  const wider = pair[0].type === pair[1].type ? [] : pair.map(widened)
  if (wider.length) pair = pair.map((each, i) => ({ ...each, type: 'F32', data: wider[i].part(0, 4 * wider[i].length, Uint8Array) }))
  const size = pair[0].data.length / heads
  const data = new native.NativeArray(Uint8Array, 2 * heads * size)
  for (let head = 0; head < heads; head++)
    pair.forEach((each, i) => data.array.set(each.data.array.subarray(head * size, (head + 1) * size), (2 * head + i) * size))
  for (const each of wider) each.free()
  const [nOut, nIn] = pair[0].shape
  put(tensors, names[0], { ...pair[0], shape: [2 * nOut, nIn], data })
  tensors.delete(names[1])
}

const counted = (n, f = (i) => i) => Array.from({ length: n }, (_, i) => f(i))

/** One convolution in place of those of queries, keys and values; of other sizes they stay. */
function joinConvolutions(tensors, at, { keys, values, d_conv: dConv }) {
  const sizes = { q: keys, k: keys, v: values }
  const parts = Object.entries(sizes).map(([part, n]) => [tensors.get(`${at}ssm_conv1d_${part}.weight`), n * dConv])
  if (!parts.every(([part, n]) => part && product(part.shape) === n)) return
  const data = new native.NativeArray(Float32Array, [2 * keys + values, dConv])
  let first = 0
  for (const [part, n] of parts) {
    const numbers = widened(take(tensors, part.name))
    data.array.set(numbers.array, first)
    numbers.free()
    first += n
  }
  put(tensors, `${at}ssm_conv1d.weight`, { type: 'F32', shape: data.shape, data: data.part(0, 4 * first, Uint8Array) })
}

function separateDelta(tensors, at, delta) {
  if (delta.channel_decays) return joinConvolutions(tensors, at, delta)
  const shared = delta.n_heads / delta.n_key_heads
  const values = shared * delta.head_dim_v
  const parts = (name, sizes, made) => {
    const whole = tensors.get(at + name)
    const each = sum(sizes)
    if (!whole || whole.shape[0] !== delta.n_key_heads * each) return
    tensors.delete(at + name)
    // The rows of some of the sizes, one after the other, each of all heads.
    for (const [part, wanted] of Object.entries(made)) {
      const rows = wanted.flatMap((i) => counted(delta.n_key_heads).flatMap((head) => counted(sizes[i], (row) => head * each + sum(sizes.slice(0, i)) + row)))
      put(tensors, at + part, rowsOf(whole, rows, [rows.length, ...whole.shape.slice(1)]))
    }
  }
  parts('ssm_in.weight', [delta.head_dim, delta.head_dim, values, values], { 'attn_qkv.weight': [0, 1, 2], 'attn_gate.weight': [3] })
  parts('ssm_ba.weight', [shared, shared], { 'ssm_beta.weight': [0], 'ssm_alpha.weight': [1] })
}

function separateLatent(tensors, at, heads, rotated, latent) {
  const plain = latent.head_dim - rotated
  const wide = plain + latent.head_dim_v
  const name = `${at}attn_kv_b.weight`
  let whole = tensors.get(name)
  if (!whole || String(whole.shape) !== String([heads * wide, latent.rank])) return
  tensors.delete(name)
  // Keys are transposed, which blocks cannot be.
  const wider = FLOATS.includes(whole.type) ? null : widened(whole)
  if (wider) whole = { ...whole, type: 'F32', data: wider.part(0, 4 * wider.length, Uint8Array) }
  const valueRows = counted(heads).flatMap((head) => counted(latent.head_dim_v, (row) => head * wide + plain + row))
  put(tensors, `${at}attn_v_b.weight`, rowsOf(whole, valueRows, [heads, latent.head_dim_v, latent.rank]))
  // Of the keys each number is a row here: they are transposed.
  const numbers = { ...whole, shape: [heads * wide * latent.rank, 1] }
  const keys = counted(heads).flatMap((head) => counted(latent.rank).flatMap((column) => counted(plain, (row) => (head * wide + row) * latent.rank + column)))
  put(tensors, `${at}attn_k_b.weight`, rowsOf(numbers, keys, [heads, latent.rank, plain]))
  wider?.free()
}
