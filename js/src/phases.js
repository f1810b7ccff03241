// Phases: a chain for each part of a text (src/aleator/samplers/phases.py).
import { kernelsOf } from './kernels.js'
import { shaped } from './native.js'
import { allMarks, marksOf, withMarks, wrong } from './phase-table.js'
import { native } from './runtime.js'
import { bytesOf } from './spelling.js'

export class Phases {
  static sampler = 'phases'
  static parameters = []
  neutral = false
  /** table: the checked one; chains: [name, samplers] of each phase, the answer first; tokenizer: for marks that are texts. */
  constructor(table, chains, tokenizer) {
    this.table = withMarks(table, {}, 'phases')
    Object.assign(this, { chains, tokenizer })
    for (const mark of allMarks(this.table)) {
      if (typeof mark === 'string' && !tokenizer) throw wrong('marks that are texts need a tokenizer: give it as the option tokenizer')
      if (typeof mark === 'number' && mark >= tokenizer?.vocabulary.size) throw wrong(`mark ${mark} is no token: the vocabulary has 0 to ${tokenizer.vocabulary.size - 1}`)
    }
  }
  /** The samplers of all phases. */
  get flattened() {
    return this.chains.flatMap(([, samplers]) => samplers)
  }
  native({ seed }) {
    const { start, histories } = Object.fromEntries(this.table)
    const names = this.chains.map(([name]) => name)
    const tree = treeOf(this.searched(names), names.length)
    const marks = new native.PhaseMarks(...tree, Math.max(0, names.indexOf(start)), textsOf(this.tokenizer ?? NO_TEXTS))
    return ['Phases', [this.chains.map(([, samplers]) => kernelsOf(samplers, seed)), marks, histories === 'own']]
  }
  /** The marks to search for: in which phase, the mark, and the phase that it leads to. */
  searched(names) {
    const asBytes = (mark) => (typeof mark === 'string' ? bytesOf(mark) : mark)
    return marksOf(this.table)
      .flatMap(({ name, begin, end }) => [[0, begin, names.indexOf(name)], [names.indexOf(name), end, 0]])
      .filter(([, mark]) => mark !== undefined)
      .map(([at, mark, to]) => [at, asBytes(mark), to])
  }
}

/**
 * All marks as tables, after Aho and Corasick: the next node for each node, of which the first are the phases' roots, and
 * byte; the phase of each node; and the marks that are tokens: phase, token and next node.
 */
function treeOf(marks, phases) {
  const texts = marks.filter(([, mark]) => typeof mark === 'string')
  const tokens = marks.filter(([, mark]) => typeof mark !== 'string')
  const places = new Map()
  const key = (phase, text) => `${phase} ${text}`
  const nodes = Array.from({ length: phases }, (_, phase) => [phase, ''])
  for (const [phase, mark] of texts) for (let n = 1; n < mark.length; n++) nodes.push([phase, mark.slice(0, n)])
  nodes.sort((a, b) => a[1].length - b[1].length)
  for (const [phase, text] of nodes) if (!places.has(key(phase, text))) places.set(key(phase, text), places.size)
  const following = new Int32Array(256 * places.size)
  const phase = new Int32Array(places.size)
  for (const [own, text] of nodes) {
    const at = places.get(key(own, text))
    let shorter = text // bytes that do not continue it continue a shorter suffix
    do shorter = shorter.slice(1)
    while (!places.has(key(own, shorter)))
    phase[at] = own
    if (text) following.copyWithin(256 * at, 256 * places.get(key(own, shorter)), 256 * places.get(key(own, shorter)) + 256)
    else following.fill(at, 256 * at, 256 * at + 256)
    const here = texts.filter(([each]) => each === own)
    for (const [, mark] of here) {
      if (!mark.startsWith(text) || mark.length === text.length) continue
      const longer = mark.slice(0, text.length + 1)
      const complete = here.filter(([, each]) => longer.endsWith(each)).sort((a, b) => b[1].length - a[1].length)
      following[256 * at + mark.charCodeAt(text.length)] = complete.length ? complete[0][2] : places.get(key(own, longer))
    }
  }
  return [shaped(following, [places.size, 256]), phase, shaped(Int32Array.from(tokens.flat()), [tokens.length, 3])]
}

const NO_TEXTS = { allBytes: () => [] } // all marks are ids of tokens

/** The texts of a vocabulary's tokens, made once. */
function textsOf(tokenizer) {
  if (tokenizer.tokenTexts) return tokenizer.tokenTexts
  const pieces = tokenizer.allBytes()
  let n = 0
  const ends = BigInt64Array.from(pieces, ({ length }) => BigInt((n += length)))
  const all = new Uint8Array(n)
  pieces.forEach((piece, token) => all.set(piece, Number(ends[token]) - piece.length))
  return (tokenizer.tokenTexts = new native.TokenTexts(all, ends))
}
