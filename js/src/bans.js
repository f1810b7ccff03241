// Banned strings: tokens in which one may begin are held back, and where one does, are drawn anew
// (src/aleator/generate/bans.py).  Texts are bytes, a character for each.
import { BANS } from './facts.js'
import { AleatorError } from './native.js'
import { binary } from './spelling.js'

const { ONE_BY_ONE, KEPT_ROWS, MOST_REFUSED } = BANS

export class Bans {
  /**
   * strings: the bans; bytesOf: a token's bytes that are text, as such a text; size: tokens of the vocabulary.
   * begun: tokens of the text that are there already; skip: bytes at the beginning that are no part of the text;
   * strip: whether a space at the beginning is none.
   */
  constructor(strings, { bytesOf, size, begun, skip, strip }) {
    this.strings = strings.map((each) => binary(new TextEncoder().encode(each)))
    this.longest = Math.max(...this.strings.map(({ length }) => length))
    Object.assign(this, { bytesOf, size, skip, strip })
    this.held = [] // tokens that may have to be taken back, and their rows of logits, if kept
    this.refused = [{ tokens: new Set(), times: 0 }] // at the places of the held tokens and of the next one
    this.given = begun.map(bytesOf) // bytes of the last tokens that are not held
    this.kept = this.given.join('').length // of these, in which a string may begin
    this.first = true // whether the first token of all is held or still to come
  }
  /** The logits to draw the next token from. */
  masked(row) {
    const { tokens } = this.refused.at(-1)
    if (!tokens.size) return row
    const left = row.slice()
    for (const token of tokens) left[token] = -Infinity
    return left
  }
  /** Take in a token drawn from a row: how many of the last held tokens must be taken back. */
  take(token, row) {
    this.held.push({ token, piece: this.bytesOf(token), row })
    const at = this.held.length - 1 - KEPT_ROWS
    if (at > 0 || (at === 0 && !this.first)) this.held[at].row = null
    this.refused.push({ tokens: new Set(), times: 0 })
    const found = this.match()
    return found < 0 ? 0 : this.held.length - Math.max(0, this.place(found))
  }
  /** Take back the last n tokens: the first of them, which is refused at its place. */
  back(n) {
    const place = this.held.length - n
    const gone = this.held[place]
    const refused = this.refused[place]
    this.held.length = place
    this.refused.length = place + 1
    refused.tokens.add(gone.token)
    refused.times++
    if (refused.times === ONE_BY_ONE) for (const token of this.allWith()) refused.tokens.add(token)
    else if (refused.times > MOST_REFUSED)
      throw new AleatorError('LogitsError', `something banned is in each of ${refused.times} texts that were drawn from one place on: ban less`)
    return gone
  }
  /** The held tokens in which nothing banned can begin, which are held no longer; everything: the text ends. */
  ready(everything) {
    const n = everything ? this.held.length : this.closed()
    const pieces = this.pieces().slice(0, n)
    const made = this.held.splice(0, n)
    this.refused.splice(0, n)
    this.kept = Math.min(this.kept + pieces.join('').length, this.longest - 1)
    this.given.push(...pieces)
    let left = this.given.join('').length
    while (this.given.length && left - this.given[0].length >= this.longest) left -= this.given.shift().length
    for (const { piece } of made) {
      this.strip &&= !piece
      this.skip = Math.max(0, this.skip - piece.length)
      this.first = false
    }
    return made.map(({ token }) => token)
  }
  /** How many of the first held tokens can be given out. */
  closed() {
    const since = this.given.join('').length
    const text = this.text()
    let open = Math.min(text.length - (since - this.kept), this.longest - 1)
    while (open > 0 && !this.strings.some((each) => each.startsWith(text.slice(text.length - open)))) open--
    let end = text.length - Math.max(0, open) - since
    for (const [n, piece] of this.pieces().entries()) if ((end -= piece.length) < 0) return n
    return this.held.length
  }
  /** The bytes of each held token that are part of the text. */
  pieces() {
    let { skip, strip } = this
    return this.held.map(({ piece }) => {
      const text = strip && piece.startsWith(' ') ? piece.slice(1) : piece
      const made = text.slice(skip)
      skip = Math.max(0, skip - text.length)
      strip &&= !piece
      return made
    })
  }
  /** What is searched: the end of what was given out, and what is held. */
  text() {
    return [...this.given, ...this.pieces()].join('')
  }
  /** Where the first banned string begins, of these the one that ends first; -1: there is none. */
  match() {
    const text = this.text()
    const since = this.given.join('').length
    const found = this.strings.map((each) => text.indexOf(each, Math.max(since - this.kept, since - each.length + 1)))
    return found.reduce((least, at) => (at >= 0 && (least < 0 || at < least) ? at : least), -1)
  }
  /** Index of the held token that has a byte of the text; negative for one that was given out. */
  place(at) {
    const all = [...this.given, ...this.pieces()]
    return all.findIndex(({ length }) => (at -= length) < 0) - this.given.length
  }
  /** The tokens with a banned string within. */
  *allWith() {
    for (let token = 0; token < this.size; token++) {
      const piece = this.bytesOf(token)
      if (this.strings.some((each) => piece.includes(each))) yield token
    }
  }
}
