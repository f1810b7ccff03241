// The native code, compiled to WebAssembly: its functions and classes are those of
// src/aleator/_native.pyi.  native/wasm/nanobind is the other side of what stands here.

const TYPES = [
  Int8Array, Uint8Array, Int16Array, Uint16Array, Int32Array, Uint32Array, Float32Array,
  Float64Array, BigInt64Array, BigUint64Array, globalThis.Float16Array ?? class {}, class {},
]
const [FUNCTION, METHOD, GETTER, SETTER, CONSTRUCTOR] = [0, 1, 2, 3, 4]
const INSTANCE = Symbol('instance')

/** An error of the native code, or of this package; `name` says which. */
export class AleatorError extends Error {
  constructor(name, message, more = {}) {
    super(message)
    this.name = name
    Object.assign(this, more)
  }
}

const asData = (_, value) => (value instanceof Map ? Object.fromEntries(value) : typeof value === 'bigint' ? Number(value) : value)
/** A value in at most 80 characters. */
export function shown(value) {
  const text = (['number', 'bigint'].includes(typeof value) ? undefined : JSON.stringify(value, asData)) ?? String(value) // JSON has no NaN
  return text.length > 80 ? `${text.slice(0, 77)}...` : text
}
export const parameterError = (why) => new AleatorError('ParameterError', why)
export const wrong = (where, value, why) => parameterError(`${where}=${shown(value)}: ${why}`)

/** The options with their defaults; an unknown one is refused. */
export function options(given, defaults) {
  if (typeof given !== 'object' || given === null) throw parameterError(`options: give an object with ${Object.keys(defaults).join(', ')}`)
  const own = Object.entries(given).filter(([, value]) => value !== undefined)
  for (const [name, value] of own) {
    if (!Object.hasOwn(defaults, name)) throw parameterError(`there is no option ${name} here: the options are ${Object.keys(defaults).join(', ')}`)
    if (typeof defaults[name] === 'boolean' && typeof value !== 'boolean') throw parameterError(`${name}=${String(value)} is not a switch: give true or false`)
  }
  return { ...defaults, ...Object.fromEntries(own) }
}

/** Whether it is a text without halves of characters. */
export const isText = (value) => typeof value === 'string' && (value.isWellFormed?.() ?? !/\p{Surrogate}/u.test(value))
export const product = (numbers) => numbers.reduce((a, b) => a * b, 1)
export const shaped = (array, shape) => Object.assign(array, { shape })

/** The value, a whole number in this range. */
export function whole(name, value, low, high = Number.MAX_SAFE_INTEGER) {
  if (Number.isInteger(value) && value >= low && value <= high) return value
  throw parameterError(`${name}=${String(value)}: give a whole number from ${low} to ${high}`)
}

/** Start a compiled module over this memory; `host` makes its other imports, of what gives its exports (system.js). */
export async function start(compiled, memory, host) {
  const values = [null] // by number; 0 is undefined and null
  const free = []
  const encoder = new TextEncoder()
  const decoder = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true })
  let wasm, error
  const bytesAt = (at, n) => new Uint8Array(memory.buffer, at >>> 0, n)
  const copyAt = (at, n) => bytesAt(at, n).slice() // which is not shared
  const textAt = (at, n) => decoder.decode(copyAt(at, n))
  const view = () => new DataView(memory.buffer)

  function put(value) {
    if (value === undefined || value === null) return 0
    const number = free.pop() ?? values.length
    values[number] = value
    return number
  }
  function allocate(n) {
    const at = n < 2 ** 32 ? wasm.malloc(n) >>> 0 : 0 // malloc takes n modulo 2^32
    if (!at) throw new AleatorError('MemoryError', `${n} bytes do not fit into WebAssembly's memory of at most 4 GiB`)
    return at
  }

  /** Numbers in the native code's memory, which grows: `array` is a fresh view. */
  class NativeArray {
    constructor(type, shape) {
      this.shape = typeof shape === 'number' ? [shape] : shape
      this.type = type
      this.length = product(this.shape)
      this.place = allocate(Math.max(16, this.length * type.BYTES_PER_ELEMENT))
      places.register(this, this.place, this)
    }
    get array() {
      if (this.freed) throw new AleatorError('StateError', 'this memory was freed: load the model, or make the array, again')
      return new this.type(memory.buffer, this.place, this.length)
    }
    /** A part of it, which may be of another type. */
    part(begin, length, type = this.type) {
      const made = Object.create(NativeArray.prototype)
      return Object.assign(made, { shape: [length], type, length, whole: this, place: this.place + begin })
    }
    get freed() {
      return this.whole ? this.whole.freed : this.place === 0
    }
    free() {
      if (places.unregister(this)) wasm.free(this.place)
      if (!this.whole) this.place = 0
    }
  }
  const places = new FinalizationRegistry((place) => wasm.free(place))
  const instances = new FinalizationRegistry((pointer) => wasm.end(pointer))

  const kindOf = (value) =>
    value === null || value === undefined ? 0
    : typeof value === 'boolean' ? 1
    : typeof value === 'number' ? 2
    : typeof value === 'bigint' ? 3
    : typeof value === 'string' ? 4
    : Array.isArray(value) ? 5
    : value instanceof NativeArray || ArrayBuffer.isView(value) ? 6
    : value[INSTANCE] !== undefined ? 7
    : typeof value === 'function' ? 8
    : 9

  const js = {
    copy: (n) => put(values[n]),
    free(n) {
      if (n === 0) return
      values[n] = null
      free.push(n)
    },
    kind: (n) => kindOf(values[n]),
    number: (n) => Number(values[n]),
    integer(n, low, negative) {
      let value = values[n]
      if (typeof value === 'number' && Number.isInteger(value)) value = BigInt(value)
      if (typeof value !== 'bigint' || value < -(1n << 63n) || value >= 1n << 64n) return 0
      view().setBigInt64(low >>> 0, BigInt.asIntN(64, value), true)
      view().setInt32(negative >>> 0, Number(value < 0n), true)
      return 1
    },
    text(n, length) {
      const text = encoder.encode(values[n])
      const at = allocate(text.length + 1)
      bytesAt(at, text.length).set(text)
      view().setInt32(length >>> 0, text.length, true)
      return at
    },
    get: (n, name, length) => put(values[n][textAt(name, length)]),
    has: (n, name, length) => Number(n !== 0 && textAt(name, length) in Object(values[n])),
    item(n, index) {
      const list = values[n] instanceof NativeArray ? values[n].array : values[n]
      return put(list[index])
    },
    length: (n) => (kindOf(values[n]) === 5 || kindOf(values[n]) === 6 ? values[n].length : -1),
    call(f, self, count, given) {
      const numbers = new Int32Array(memory.buffer, given >>> 0, count)
      try {
        return put(values[f].apply(values[self], Array.from(numbers, (n) => values[n])))
      } catch (thrown) {
        error = thrown
        return -1
      }
    },
    of_number: put,
    of_integer(value, signed) {
      const exact = signed ? value : BigInt.asUintN(64, value)
      const number = Number(exact)
      return put(Number.isSafeInteger(number) ? number : exact)
    },
    of_boolean: (value) => put(value !== 0),
    of_text: (at, n) => put(textAt(at, n)),
    of_array(type, at, count, ndim, shape) {
      const made = new TYPES[type](copyAt(at, count * TYPES[type].BYTES_PER_ELEMENT).buffer)
      if (ndim > 1) made.shape = Array.from(new Int32Array(memory.buffer, shape >>> 0, ndim))
      return put(made)
    },
    of_instance(type, pointer) {
      const made = Object.create(classes[type].prototype)
      made[INSTANCE] = pointer
      instances.register(made, pointer, made)
      return put(made)
    },
    list: () => put([]),
    push: (n, item) => void values[n].push(values[item]),
    array(n, described) {
      const value = values[n]
      const native = value instanceof NativeArray
      if (!native && !ArrayBuffer.isView(value)) return 0
      const type = TYPES.indexOf(native ? value.type : value.constructor)
      const shape = value.shape ?? [value.length]
      if (type < 0 || shape.length > 4 || product(shape) !== value.length || value.freed) return 0
      const to = new Int32Array(memory.buffer, described >>> 0, 8)
      to.set([type, native ? value.place : 0, value.length, shape.length, ...shape])
      return 1
    },
    read(n, to) {
      const { buffer, byteOffset, byteLength } = values[n]
      bytesAt(to, byteLength).set(new Uint8Array(buffer, byteOffset, byteLength))
    },
    instance: (n) => (n === 0 ? 0 : values[n][INSTANCE] ?? 0),
    define_class(id, name, length, base) {
      const parent = base < 0 ? Native : classes[base]
      const text = textAt(name, length)
      classes[id] = { [text]: class extends parent {} }[text]
      module[text] = classes[id]
    },
    define(id, type, name, length, role) {
      const text = textAt(name, length)
      const method = function (...given) {
        return invoke(id, [this, ...given])
      }
      if (role === FUNCTION) module[text] = (...given) => invoke(id, given)
      else if (role === CONSTRUCTOR) makers.set(classes[type], id)
      else {
        const known = Object.getOwnPropertyDescriptor(classes[type].prototype, text)
        const described =
          role === METHOD ? { value: method, writable: true, configurable: true }
          : role === GETTER ? { get: method, configurable: true }
          : { ...known, set: method }
        if (role === METHOD && text === '__len__')
          Object.defineProperty(classes[type].prototype, 'length', { get: method })
        Object.defineProperty(classes[type].prototype, text, described)
      }
    },
    fail(type, typeLength, message, length, first, second) {
      const name = textAt(type, typeLength)
      const more =
        name === 'ConstraintError' ? { token: first }
        : name === 'GrammarError' ? { line: first, column: second }
        : {}
      error = new AleatorError(name, new TextDecoder().decode(copyAt(message, length)), more)
    },
  }

  const classes = []
  const makers = new Map()
  class Native {
    constructor(...given) {
      if (!makers.has(new.target)) throw new TypeError(`${new.target.name} is not made by itself`)
      return invoke(makers.get(new.target), given)
    }
    /** Frees its memory now, and not when JavaScript notices that nobody has it. */
    free() {
      if (instances.unregister(this)) wasm.end(this[INSTANCE])
      this[INSTANCE] = undefined
    }
  }

  function invoke(id, given) {
    const numbers = given.map(put)
    const stack = allocate(4 * given.length + 4)
    new Int32Array(memory.buffer, stack, given.length).set(numbers)
    error = undefined
    let result
    try {
      result = wasm.call(id, stack, given.length)
    } finally {
      numbers.forEach(js.free)
      wasm.free(stack)
    }
    if (result < 0) throw error
    const value = values[result]
    js.free(result)
    return value ?? undefined
  }

  const module = { NativeArray }
  wasm = (await WebAssembly.instantiate(compiled, { js, ...host(() => wasm) })).exports
  wasm.__wasm_call_ctors()
  wasm.start()
  return module
}
