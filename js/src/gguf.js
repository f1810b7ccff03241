// Reads GGUF files, versions 2 and 3, hostile until checked (src/aleator/models/files/gguf.py).
import { FOREIGN, LIMITS, MIN_ENTRY, MIN_TENSOR, OTHER_TYPES, TENSOR_TYPES } from './facts.js'
import { AleatorError, product } from './native.js'
import { native } from './runtime.js'

const [FLOAT32, BOOL, STRING, ARRAY, FLOAT64] = [6, 7, 8, 9, 12]
const SCALARS = {
  0: [1, 'getUint8'], 1: [1, 'getInt8'], 2: [2, 'getUint16'], 3: [2, 'getInt16'], 4: [4, 'getUint32'],
  5: [4, 'getInt32'], 6: [4, 'getFloat32'], 7: [1, 'getUint8'], 10: [8, 'getBigUint64'],
  11: [8, 'getBigInt64'], 12: [8, 'getFloat64'],
}
const MOST_ELEMENTS = 2 ** 62

/** The values of a file's metadata by key, decoded when they are asked for. */
class Values {
  constructor(entries, decode) {
    this.entries = entries
    this.decode = decode
  }
  has(key) {
    return this.entries.has(key)
  }
  keys() {
    return this.entries.keys()
  }
  get(key) {
    return this.has(key) ? this.decode(key, this.entries.get(key)) : undefined
  }
  isFloat(key) {
    return [FLOAT32, FLOAT64].includes(this.entries.get(key).kind)
  }
}

/** The fields of a file, checked for presence, type and range when they are read (files/fields.py). */
export class Fields {
  constructor(path, values) {
    this.path = path
    this.values = values
  }
  error(key, message) {
    return new AleatorError('FileFormatError', `${message} (field ${key})`, { field: key })
  }
  has(key) {
    return this.values.has(key)
  }
  keys() {
    return [...this.values.keys()]
  }
  /** The value, or what stands for an absent one; of this kind, or that of the latter. */
  get(key, otherwise = null, kind = otherwise === null ? null : typeof otherwise) {
    const value = this.values.get(key) ?? null
    return value === null ? otherwise : kind === null ? value : this.checked(key, value, kind)
  }
  require(key, kind) {
    if (!this.has(key)) throw this.error(key, `the field '${key}' is missing`)
    return this.checked(key, this.values.get(key), kind)
  }
  checked(key, value, kind) {
    const isInteger = () => Number.isInteger(value) && !this.values.isFloat?.(key)
    const right = kind === 'list' ? Array.isArray(value) : kind === 'integer' ? isInteger() : typeof value === kind
    if (!right) throw this.error(key, `${key} must be of the type ${kind}`)
    return value
  }
  integer(key, low, high, otherwise = null) {
    return this.within(key, low, high, otherwise, 'integer')
  }
  layers(key, otherwise, low = 1) {
    return this.integer(key, low, LIMITS.MAX_LAYERS, otherwise)
  }
  width(key, otherwise, low = 1) {
    return this.integer(key, low, LIMITS.MAX_WIDTH, otherwise)
  }
  length(key, otherwise, low = 1) {
    return this.integer(key, low, LIMITS.MAX_LENGTH, otherwise)
  }
  number(key, low, high, otherwise = null) {
    return this.within(key, low, high, otherwise, 'number')
  }
  within(key, low, high, otherwise, kind) {
    const value = otherwise === null ? this.require(key, kind) : this.get(key, otherwise, kind)
    if (!(value >= low && value <= high)) throw this.error(key, `${key} is ${value}; it must be between ${low} and ${high}`)
    return value
  }
  /** The strings of an array, where the file has them. */
  strings(key) {
    const entry = this.values.entries.get(key)
    if (!entry?.isArray || entry.kind !== STRING) throw this.error(key, `${key} must be an array of strings`)
    return entry
  }
}

/** More of the file must be known to read its metadata. */
export class CutShort extends Error {}

/**
 * An open file: `data`, all its bytes, a native array; `fields`; `tensors` by name.
 * known: how many of the bytes are there yet; where the metadata need more, CutShort is thrown.
 */
export class GGUF {
  constructor(data, known = data.length) {
    this.data = data
    this.known = data.part(0, known)
    this.offset = 0
    const version = this.version()
    const nTensors = this.count('tensor_count', MIN_TENSOR)
    const nEntries = this.count('metadata_kv_count', MIN_ENTRY)
    const entries = new Map()
    for (let i = 0; i < nEntries; i++) {
      const key = this.name(`metadata key ${i}`)
      if (entries.has(key)) throw this.error(key, 'the key occurs twice')
      entries.set(key, this.entry(key))
    }
    this.fields = new Fields('the file', new Values(entries, (key, entry) => this.decode(key, entry)))
    this.path = this.fields.path
    this.alignment = this.fields.integer('general.alignment', 1, 2 ** 30, 32)
    if (this.alignment & (this.alignment - 1)) throw this.fields.error('general.alignment', `the alignment ${this.alignment} is not a power of two`)
    if (this.fields.integer('split.count', 0, 99999, 0) > 1)
      throw new AleatorError('UnsupportedModel', 'the model is split into several files: join them with llama-gguf-split --merge')
    this.tensors = this.readTensors(nTensors)
    this.version = version
  }
  /** How many elements an array has; null: there is none. */
  array_length(key) {
    const entry = this.fields.values.entries.get(key)
    return entry?.isArray ? entry.count : null
  }
  error(field, message, offset = this.offset) {
    return new AleatorError('FileFormatError', `${message} (field ${field}, at byte ${offset})`, { field, offset })
  }
  get view() {
    const { buffer, byteOffset, byteLength } = this.data.array
    return new DataView(buffer, byteOffset, byteLength)
  }
  take(size, field) {
    if (!(size <= this.data.length - this.offset))
      throw this.error(field, `the file is cut short or damaged: ${size} bytes needed, ${this.data.length - this.offset} left`)
    const start = this.offset
    this.offset += size
    if (this.offset > this.known.length) throw new CutShort()
    return start
  }
  u32(field) {
    return this.view.getUint32(this.take(4, field), true)
  }
  u64(field) {
    return Number(this.view.getBigUint64(this.take(8, field), true))
  }
  text(start, length, field) {
    try {
      return new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(this.data.array.slice(start, start + length))
    } catch {
      throw this.error(field, 'is not UTF-8', start)
    }
  }
  name(field) {
    const length = this.u64(field)
    const text = this.text(this.take(length, field), length, field)
    if (!text) throw this.error(field, 'is empty')
    return text
  }
  version() {
    const magic = String.fromCharCode(...this.data.array.subarray(0, 4))
    if (magic !== 'GGUF') throw this.error('magic', `not a GGUF file: ${FOREIGN[magic] ?? `it starts with ${JSON.stringify(magic)}`}`, 0)
    this.offset = 4
    const version = this.u32('version')
    if (version !== 2 && version !== 3) throw this.error('version', `GGUF version ${version}; versions 2 and 3 are read, little-endian`, 4)
    return version
  }
  count(field, smallest) {
    const start = this.offset
    const count = this.u64(field)
    const left = this.data.length - this.offset
    if (count > left / smallest) throw this.error(field, `the file claims ${count} entries and has ${left} bytes left`, start)
    return count
  }
  entry(key) {
    let kind = this.u32(key)
    let count = 1
    const isArray = kind === ARRAY
    if (isArray) {
      kind = this.u32(key)
      if (kind === ARRAY) throw this.error(key, 'an array of arrays; no known model has one')
      count = this.count(key, kind === STRING ? 8 : SCALARS[kind]?.[0] ?? 1)
    }
    const start = this.offset
    if (kind === STRING) {
      const [done, end] = native.gguf_skip_strings(this.known, start, count)
      if (done < count && this.known.length < this.data.length) throw new CutShort()
      if (done < count) throw this.error(key, `string ${done} of ${count} reaches past the end of the file`)
      this.offset = end
    } else {
      if (!SCALARS[kind]) throw this.error(key, `unknown value type ${kind}`)
      this.take(count * SCALARS[kind][0], key)
    }
    return { kind, count, offset: start, isArray }
  }
  decode(key, { kind, count, offset, isArray }) {
    const values = []
    if (kind === STRING) {
      for (let i = 0; i < count; i++) {
        const length = Number(this.view.getBigUint64(offset, true))
        values.push(this.text(offset + 8, length, key))
        offset += 8 + length
      }
    } else {
      const [size, read] = SCALARS[kind]
      const view = this.view
      for (let i = 0; i < count; i++) {
        let value = view[read](offset + i * size, true)
        if (kind === BOOL && value > 1) throw this.error(key, 'a boolean is neither 0 nor 1', offset)
        if (kind === BOOL) value = value === 1
        values.push(typeof value === 'bigint' && Number.isSafeInteger(Number(value)) ? Number(value) : value)
      }
    }
    return isArray ? values : values[0]
  }
  readTensors(count) {
    const tensors = new Map()
    for (let i = 0; i < count; i++) {
      const name = this.name(`tensor name ${i}`)
      if (tensors.has(name)) throw this.error(name, 'the tensor is listed twice')
      const nDims = this.u32(name)
      if (nDims < 1 || nDims > 4) throw this.error(name, `has ${nDims} dimensions; 1 to 4 are allowed`)
      const dims = Array.from({ length: nDims }, () => this.u64(name))
      const id = this.u32(name)
      const offset = this.u64(name)
      const elements = product(dims)
      if (!(elements > 0 && elements < MOST_ELEMENTS)) throw this.error(name, `its dimensions ${dims} are zero or too large`)
      const type = TENSOR_TYPES.find((each) => each.id === id)
      if (type && dims[0] % type.block) throw this.error(name, `rows of ${dims[0]} are not whole ${type.name} blocks of ${type.block}`)
      if (offset % this.alignment) throw this.error(name, `its data offset ${offset} is not a multiple of ${this.alignment}`)
      const size = type ? (elements / type.block) * type.size : 0
      tensors.set(name, { name, id, type: type?.name, shape: dims.reverse(), offset, size })
    }
    const start = Math.ceil(this.offset / this.alignment) * this.alignment
    let end = start
    let before = ''
    for (const tensor of [...tensors.values()].sort((a, b) => a.offset - b.offset)) {
      tensor.offset += start
      if (tensor.offset < end) throw this.error(tensor.name, `its data overlaps that of '${before}'`, tensor.offset)
      end = tensor.offset + tensor.size
      before = tensor.name
      if (end > this.data.length) throw this.error(tensor.name, `the file is cut short: the tensor ends at ${end}, the file at ${this.data.length}`)
    }
    return tensors
  }
  /** The tensor as the file stores it. */
  stored(name) {
    const tensor = this.tensors.get(name)
    if (!tensor) throw new AleatorError('FileFormatError', `the tensor '${name}' is missing`, { field: name })
    if (!tensor.type) {
      const type = OTHER_TYPES[tensor.id] ?? `number ${tensor.id}`
      throw new AleatorError('UnsupportedModel', `tensor '${name}' has the type ${type}, which is not supported`)
    }
    return { name, type: tensor.type, shape: tensor.shape, data: this.data.part(tensor.offset, tensor.size) }
  }
}
