// Keys, values and states of sequences (src/aleator/cache): cells, which layers with windows share with the others,
// and rows of states.
import { AleatorError, options, parameterError, product, shaped, whole } from './native.js'
import { state_shape as stateShape } from './models.js'
import { native } from './runtime.js'
import { CACHE_TYPES } from './facts.js'

const MOST_AT_ONCE = 512 // tokens of a step
/** The most positions: each takes 16 bytes of 4 GiB, besides its keys and values. */
export const MOST_CELLS = 2 ** 28
const MOST_DISTANCES = 64 // of shifted keys, which are stored anew beyond that
const PART = 'the state of a sequence has no parts'

export class Cache {
  /**
   * nCtx: cells; nSeqs: sequences; typeK, typeV: of keys and values, such as F16 or Q8_0; type: of both.
   * Steps of a decoder compute over it.
   */
  constructor(decoder, given = {}) {
    const { nCtx, nSeqs, type, typeK = type, typeV = type } = options(given, { nCtx: 4096, nSeqs: 1, type: 'F16', typeK: undefined, typeV: undefined })
    this.decoder = decoder
    this.nCtx = whole('nCtx', nCtx, 1, MOST_CELLS)
    this.nSeqs = whole('nSeqs', nSeqs, 1, 4096)
    this.arrays = []
    this.states = new Array(nSeqs).fill(null) // each sequence's row and the position after which it is
    this.nRows = 2 * nSeqs + 1 // of sequences now and before a call, and one between
    this.stored = [] // keys and values of the cells, by layer
    try {
      this.cells = new native.Cells(nCtx, nSeqs)
      this.keyPositions = new Int32Array(nCtx)
      this.step = decoder.step(nCtx)
      this.addLayers(storage('typeK', typeK), storage('typeV', typeV))
    } catch (error) {
      this.free()
      throw ['MemoryError', 'RangeError'].includes(error.name) ? new AleatorError('MemoryError', `nCtx=${nCtx}: ${error.message}: give less`) : error
    }
  }
  addLayers(typeK, typeV) {
    const { layers, config, architecture } = this.decoder
    const keys = []
    const shapes = layers.map((_, layer) => (config.stores_keys(layer) ? [config.n_kv_heads[layer], ...config.stored_head_dims(layer)] : null))
    layers.forEach(({ attention, windowed, state, feedForward, embedding }, layer) => {
      if (attention) {
        if (shapes[layer]) {
          const ofKind = shapes.filter((shape, i) => shape && layers[i].windowed === windowed)
          const [heads, dim, dimV] = shapes[layer]
          const latent = attention.latent?.config.compressed ? attention.latent.config : null
          const turned = [1, 2].map((side) => rotated(ofKind.map((shape) => shape[side]), side === 1))
          const k = this.memory('typeK', typeK, heads, dim, turned[0], latent?.rank ?? dim)
          Object.assign(this.stored.at(-1), { keys: true, rotates: config.rotated(layer) })
          keys[layer] = [k, latent ? null : this.memory('typeV', typeV, heads, dimV, turned[1], dimV)]
        }
        this.step.add_attention(attention, ...keys[config.keys_of(layer)])
      }
      if (embedding) this.step.add_per_layer(embedding)
      if (state) {
        const { channels, conv, inner, state: numbers } = stateShape(config)
        const rows = [[channels, conv], [inner ?? channels, numbers]].map((shape) => this.array(Float32Array, [this.nRows, ...shape]))
        this.step.add_state(architecture.recurrent, state, ...rows, Boolean(attention))
      }
      if (feedForward) this.step.add_feed_forward(feedForward)
    })
    const attending = layers.filter(({ attention }) => attention)
    this.seesAll = attending.some(({ windowed }) => !windowed)
    this.seesWindow = attending.some(({ windowed }) => windowed)
    this.keeps = layers.some(({ state }) => state)
  }
  /** Zeroed memory; after so many channels, `ending`, a block must end. */
  memory(name, type, heads, dim, rotation, ending) {
    const { block, size } = type
    const turned = block > 1 ? rotation : 0
    const together = Math.max(block, turned)
    if (dim % block || ending % together)
      throw parameterError(`${name}=${type.name} stores blocks of ${together} channels, and a head has ${ending}: use F32, F16 or BF16`)
    const bytes = this.array(Uint8Array, [(this.nCtx * heads * dim * size) / block])
    this.stored.push({ bytes, type, heads, dim, turned })
    return new native.CacheMemory(bytes, type.name, this.nCtx, heads, dim, false, turned)
  }
  array(type, shape) {
    const made = new native.NativeArray(type, shape)
    made.array.fill(0)
    this.arrays.push(made)
    return made
  }
  /** Positions that a sequence has, 0 to length. */
  length(seq = 0) {
    return Math.max(this.cells.seq_pos_max(seq), this.states[seq]?.position ?? -1) + 1
  }
  /** Remove positions [p0, p1) of a sequence; negative: from the beginning, to the end. */
  seqRm(seq, p0 = -1, p1 = -1) {
    const state = this.states[seq]
    const cut = state && p0 <= state.position && (p1 < 0 || state.position < p1)
    if (cut && p0 > 0) throw new AleatorError('CannotRewind', `sequence ${seq} cannot be rewound to position ${p0}: ${PART}; remove all of it`)
    this.cells.seq_rm(seq, p0, p1)
    if (cut) this.states[seq] = null
  }
  /** Let another sequence have these positions, too. */
  seqCp(from, to, p0 = -1, p1 = -1) {
    const state = this.states[from]
    if (state && (p0 > 0 || (p1 >= 0 && p1 <= state.position)))
      throw parameterError(`positions [${p0}, ${p1}) are a part of sequence ${from}, and ${PART}: copy all of it`)
    this.cells.seq_cp(from, to, p0, p1)
    if (this.keeps) this.states[to] = state
  }
  /** Forget all other sequences. */
  seqKeep(seq) {
    this.cells.seq_keep(seq)
    this.states.forEach((_, each) => each !== seq && (this.states[each] = null))
  }
  /** Add to positions [p0, p1) of a sequence, and of those that share its cells; those below 0 are forgotten. */
  seqAdd(seq, p0, p1, delta) {
    whole('delta', delta, -(2 ** 31) + 1, 2 ** 31 - 1)
    this.shift(seq, p0, p1, (position) => position + delta, () => this.cells.seq_add(seq, p0, p1, delta))
  }
  /** Divide positions [p0, p1) of a sequence, rounding down. */
  seqDiv(seq, p0, p1, divisor) {
    whole('divisor', divisor, 1, 2 ** 31 - 1)
    this.shift(seq, p0, p1, (position) => Math.floor(position / divisor), () => this.cells.seq_div(seq, p0, p1, divisor))
  }
  /** Changes of cells and of states, all or none. */
  atOnce(changes) {
    const { states } = this
    this.states = [...states]
    this.cells.begin()
    try {
      changes()
    } catch (error) {
      this.cells.rollback()
      this.states = states
      throw error
    }
    this.cells.commit()
  }
  /** Keys stay as they are stored; attention corrects for how far their cells have moved. */
  shift(seq, p0, p1, move, change) {
    if (!this.decoder.architecture.shifts)
      throw new AleatorError('CannotShift', 'keys of this model cannot be rotated to other positions: decode the text anew')
    const state = this.states[seq]
    const within = state && state.position >= p0 && (p1 < 0 || state.position < p1)
    const moved = within ? { row: state.row, position: move(state.position) } : null
    if (moved?.position < 0) throw parameterError(`position ${state.position} of sequence ${seq} would become ${moved.position}`)
    this.atOnce(() => {
      change()
      if (this.seesWindow && this.distances() > MOST_DISTANCES)
        throw new AleatorError('CannotShift', `keys of layers with windows would have moved by more than ${MOST_DISTANCES} distances: move a shorter range, or decode the text anew`)
    })
    if (moved) this.states = this.states.map((each) => (each?.row === state.row ? moved : each))
  }
  /** How many distances there are from keys to where they are rotated to. */
  distances() {
    const { positions, top } = this.cells
    const found = new Set()
    for (let i = 0; i < top; i++) if (positions[i] >= 0) found.add(positions[i] - this.keyPositions[i])
    return found.size - Number(found.has(0))
  }
  /** Clear pending shifts before tokens are decoded (`settle` in cache/rows/rows.py). */
  settle() {
    if (!this.cells.has_shift) return
    if (this.distances() > MOST_DISTANCES) this.rewrite()
    this.cells.clear_shifts()
  }
  /** Rotate the stored keys to where their cells are. */
  rewrite() {
    const { decoder: { config, pool }, nCtx, keyPositions } = this
    const { positions } = this.cells
    const moved = [...positions.keys()].filter((cell) => positions[cell] >= 0 && positions[cell] !== keyPositions[cell])
    const cells = BigInt64Array.from(moved, BigInt)
    const { frequencies, offset, interleaved } = this.decoder.rotation(config.rope, nCtx, true)
    const layers = this.stored.filter(({ keys }) => keys)
    // All memory first, so that an error leaves every layer as it is.
    const angles = new native.NativeArray(Float32Array, [moved.length, frequencies.length, 2])
    const room = [0, 1].map(() => new native.NativeArray(Float32Array, moved.length * Math.max(...layers.map(({ heads, dim }) => heads * dim))))
    native.rotary_angles(frequencies, Int32Array.from(moved, (cell) => positions[cell] - keyPositions[cell]), 1, angles)
    for (const { bytes, type, heads, dim, turned, rotates } of layers) {
      const rows = shaped(bytes.part(0, bytes.length), [nCtx, bytes.length / nCtx])
      const [all, part] = [[moved.length, heads * dim], [moved.length, heads, dim - offset]].map((shape, i) => shaped(room[i].part(0, product(shape)), shape))
      native.load_rows(pool, type.name, turned, rows, cells, all)
      const copy = (from, to, i, j) => {
        for (let n = 0; n < moved.length * heads; n++) to.set(from.subarray(n * i + i - dim + offset, n * i + i), n * j + j - dim + offset)
      }
      copy(all.array, part.array, dim, dim - offset)
      if (rotates) native.rotate_heads(part, angles, interleaved)
      copy(part.array, all.array, dim - offset, dim)
      native.store_rows(pool, type.name, turned, all, rows, cells)
    }
    for (const each of [angles, ...room]) each.free()
    for (const cell of moved) keyPositions[cell] = positions[cell]
  }
  /** Forget positions after the first `keep`, half of them or `discard`, and move the later ones up; how many were forgotten. */
  slide(seq, keep = 4, discard = null) {
    const end = this.length(seq)
    whole('keep', keep, 0)
    const wanted = discard === null ? Math.floor((end - keep) / 2) : whole('discard', discard, 0)
    const removed = Math.max(0, Math.min(wanted, end - keep - 1))
    if (removed === 0) return 0
    this.atOnce(() => {
      this.seqRm(seq, keep, keep + removed)
      this.unshare(seq, keep + removed, end)
      this.seqAdd(seq, keep + removed, end, -removed)
    })
    return removed
  }
  /** Give a sequence cells of its own for those that it shares with others. */
  unshare(seq, p0 = -1, p1 = -1) {
    const shared = this.cells.shared(seq, p0, p1)
    const own = this.cells.find(shared.length)
    if (own.length < shared.length)
      throw new AleatorError('ContextFull', `${shared.length} of the cells are shared, and ${this.nCtx - this.cells.used} are free to copy them to: remove a sequence, or make the cache with a larger nCtx`)
    shared.forEach((cell, i) => this.copy(cell, own[i]))
    this.cells.duplicate(shared, own, seq, true)
  }
  /** Move the last cells into the holes before them. */
  defrag() {
    const moves = this.cells.defrag_plan()
    for (const [from, to, n] of moves) for (let i = 0; i < n; i++) this.copy(from + i, to + i)
    this.cells.move(moves)
  }
  /** Have a cell store what another one does. */
  copy(from, to) {
    const [source, target] = [Number(from), Number(to)]
    for (const { bytes: { array } } of this.stored) {
      const size = array.length / this.nCtx
      array.copyWithin(target * size, source * size, (source + 1) * size)
    }
    this.keyPositions[target] = this.keyPositions[source]
  }
  clear() {
    this.cells.clear()
    this.states.fill(null)
  }
  /** Append tokens to a sequence; the logits after the last one, or after each, one row after the other. */
  decode(tokens, given = {}) {
    const { seq, all } = options(given, { seq: 0, all: false })
    return this.decodeBatch([{ seq, tokens }], all)
  }
  /** Append tokens to several sequences, [{ seq, tokens }], in one step: the logits of each as `decode` gives them, in this order. */
  decodeBatch(texts, all = false) {
    if (this.freed) throw new AleatorError('StateError', 'the cache was freed: make another by model.cache()')
    if (!Array.isArray(texts) || !texts.every((text) => text && typeof text === 'object'))
      throw parameterError('texts: give an array of { seq, tokens }')
    const batch = texts.flatMap((text) => this.tokensOf(text, all))
    if (new Set(texts.map(({ seq }) => seq)).size < texts.length) throw parameterError('a sequence is named twice: give all its tokens at once')
    const { used } = this.cells
    if (used + batch.length > this.nCtx)
      throw new AleatorError('ContextFull', `${batch.length} tokens do not fit: ${used} of ${this.nCtx} positions are taken; load the model with a larger nCtx`)
    const rows = []
    const before = this.states
    this.atOnce(() => {
      this.settle()
      for (let at = 0; at < batch.length; at += MOST_AT_ONCE) rows.push(this.decodePart(batch.slice(at, at + MOST_AT_ONCE), before))
    })
    if (rows.length === 1) return rows[0]
    const joined = new Float32Array(rows.reduce((n, row) => n + row.length, 0))
    rows.reduce((n, row) => (joined.set(row, n), n + row.length), 0)
    return joined
  }
  /** The tokens of a text with their positions, and whether the logits after each are wanted. */
  tokensOf({ seq, tokens }, all) {
    whole('seq', seq, 0, this.nSeqs - 1)
    if (!tokens?.length) throw parameterError('tokens is empty: give an array with one token at least')
    this.decoder.check(tokens)
    const first = this.length(seq)
    const most = this.decoder.nPositions
    if (most !== null && first + tokens.length > most)
      throw new AleatorError('ContextFull', `the model has embeddings of positions 0 to ${most - 1} only: start a new text`)
    return Array.from(tokens, (token, i) => ({ token, seq, position: first + i, wanted: all || i === tokens.length - 1 }))
  }
  /** before: the states that an error brings back. */
  decodePart(batch, before) {
    const n = batch.length
    const { config } = this.decoder
    const positions = Int32Array.from(batch, ({ position }) => position)
    const { words } = this.cells
    const owners = shaped(new BigUint64Array(n * words), [n, words])
    batch.forEach(({ seq }, i) => (owners[i * words + (seq >> 6)] = 1n << BigInt(seq & 63)))
    const cells = this.cells.place(positions, owners)
    cells.forEach((cell, i) => (this.keyPositions[Number(cell)] = positions[i]))
    const seqs = Int32Array.from(batch, ({ seq }) => seq)
    const seen = native.seen_cells(this.cells, positions, seqs, true, this.keyPositions)
    const window = this.seesWindow ? [cells, ...seen, this.before(seen, positions), null] : null
    const [all, lists] = this.seesAll ? [cells, seen] : [new BigInt64Array(n), nothing(n)]
    const distances = this.seesAll && this.decoder.shape.slopes ? this.positionsOf(seen[0]) : null
    const { runs, states } = this.keeps ? this.runs(batch, before) : { runs: null, states: new Map() }
    const out = BigInt64Array.from([...batch.keys()].filter((i) => batch[i].wanted), BigInt)
    const logits = new native.NativeArray(Float32Array, [out.length, config.n_vocab])
    try {
      const ids = BigInt64Array.from(batch, ({ token }) => BigInt(token))
      this.step.run(this.decoder.pool, ids, null, positions, all, ...lists, out, logits, window, runs, distances, this.decoder.queryScales(positions), null)
      for (const [seq, state] of states) this.states[seq] = state
      return this.decoder.finish(logits)
    } finally {
      logits.free()
    }
  }
  /** How many cells of its list each token does not see, as they are before its window. */
  before([seen, starts, lists], positions) {
    const { size, chunked } = this.decoder.config.window
    return native.before_window(this.cells, seen, starts, lists, positions, size, chunked)
  }
  positionsOf(cells) {
    const { positions } = this.cells
    return Int32Array.from(cells, (cell) => positions[cell])
  }
  /** The states that sequences have after these tokens, and the step's runs: starts, sources, order and stores. */
  runs(batch, before) {
    const taken = new Set([...this.states, ...before].map((state) => state?.row))
    const states = new Map()
    const [starts, sources] = [[], []]
    const stores = new BigInt64Array(batch.length).fill(-1n)
    batch.forEach(({ seq, position }, i) => {
      if (batch[i - 1]?.seq !== seq) {
        starts.push(i)
        sources.push(this.states[seq]?.row ?? -1)
      }
      if (batch[i + 1]?.seq === seq) return
      let row = 0
      while (taken.has(row)) row++
      taken.add(row)
      stores[i] = BigInt(row)
      states.set(seq, { row, position })
    })
    const longs = (numbers) => BigInt64Array.from(numbers, BigInt)
    return { runs: [longs([...starts, batch.length]), longs(sources), longs(batch.keys()), stores], states }
  }
  free() {
    this.freed = true
    this.step?.free()
    this.cells?.free()
    for (const array of this.arrays) array.free()
  }
}

function storage(name, value) {
  const type = typeof value === 'string' && CACHE_TYPES.find((each) => each.name === value.toUpperCase())
  if (!type) throw parameterError(`${name}=${String(value)}: give ${CACHE_TYPES.map((each) => each.name).join(', ')}`)
  return type
}

/** How many channels are rotated together before they are rounded to blocks (`hadamard_block` in cache/storage). */
function rotated(dims, keys) {
  const [dim] = dims
  if (dims.some((each) => each !== dim) || dim % 64) return 0
  return keys ? dim & -dim : 64
}

/** Lists of n tokens if no layer sees everything. */
const nothing = (n) => [new Int32Array(0), new BigInt64Array(2), new Int32Array(n), new BigInt64Array(n), null]
