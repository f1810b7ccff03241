// Bans: tokens in which something banned may begin are held back, and where it is, are drawn anew
// (src/aleator/generate/bans.py).  Texts are bytes, a character for each.
import { BANS } from './facts.js'
import { AleatorError } from './native.js'

const { ONE_BY_ONE, KEPT_ROWS, MOST_REFUSED } = BANS
const lengthOf = (pieces) => pieces.reduce((n, { length }) => n + length, 0)

export class Bans {
  /**
   * bans: expressions.js; bytesOf: a token's bytes that are text, as such a text; size: tokens of the vocabulary; coin: a
   * number in [0, 1) of a place, which is below a ban's probability where a match that begins there is banned.
   * begun: tokens of the text that are there already; skip: bytes at the beginning that are no part of the text;
   * strip: whether a space at the beginning is none.
   */
  constructor(bans, { bytesOf, size, coin, begun, skip, strip }) {
    Object.assign(this, { bans, bytesOf, size, coin, skip, strip })
    this.longest = Math.max(...bans.map(({ longest }) => longest))
    this.held = [] // tokens that may have to be taken back, and their rows of logits, if kept
    this.refused = [{ tokens: new Set(), times: 0 }] // at the places of the held tokens and of the next one
    this.begun = this.n = begun.length // tokens of the text that are not held any more
    this.given = begun.map(bytesOf) // bytes of the last of these
    this.kept = bans.map(() => lengthOf(this.given)) // for each ban, bytes of these in which a match may begin
    this.found = new Map() // the tokens with something banned, by ban and by what stands before
  }
  /** The logits to draw the next token from. */
  masked(row) {
    const { tokens } = this.refused.at(-1)
    if (!tokens.size) return row
    const left = row.slice()
    for (const token of tokens) left[token] = -Infinity
    return left
  }
  /** Take in a token drawn from a row; over: the text ends with it.  How many of the last held tokens must be taken back. */
  take(token, row, over) {
    this.held.push({ token, piece: this.bytesOf(token), row })
    const at = this.held.length - 1 - KEPT_ROWS
    if (at > 0 || (at === 0 && this.n > this.begun)) this.held[at].row = null
    this.refused.push({ tokens: new Set(), times: 0 })
    let first = this.held.length
    for (const { ban, start } of this.matches(over)) {
      const place = this.place(start)
      if (place < first && this.holds(ban, place)) first = place
    }
    return this.held.length - Math.max(0, first)
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
    if (refused.times === ONE_BY_ONE) for (const ban of this.bans) for (const token of this.holds(ban, place) ? this.allWith(ban) : []) refused.tokens.add(token)
    if (refused.times > MOST_REFUSED)
      throw new AleatorError('LogitsError', `something banned is in each of ${refused.times} texts that were drawn from one place on: ban less`)
    return gone
  }
  /** The held tokens in which nothing banned can begin, which are held no longer; everything: the text ends. */
  ready(everything) {
    const stayed = this.bans.some(({ probability }) => probability < 1) ? [...this.matches(false)] : []
    const n = everything ? this.held.length : this.closed()
    const pieces = this.pieces().slice(0, n)
    const made = this.held.splice(0, n)
    this.refused.splice(0, n)
    const since = lengthOf(this.given)
    const end = since + lengthOf(pieces)
    this.kept = this.bans.map((ban, i) => {
      const passed = stayed.filter((each) => each.ban === ban && each.end <= end)
      const begin = passed.reduce((most, each) => Math.max(most, each.end), -1)
      return Math.min(end - (begin < 0 ? since - this.kept[i] : begin), ban.longest - 1)
    })
    this.given.push(...pieces)
    let left = lengthOf(this.given)
    while (this.given.length && left - this.given[0].length >= this.longest) left -= this.given.shift().length
    for (const { piece } of made) {
      this.strip &&= !piece
      this.skip = Math.max(0, this.skip - piece.length)
    }
    this.n += n
    return made.map(({ token }) => token)
  }
  /** How many of the first held tokens can be given out. */
  closed() {
    const { text, since } = this.text()
    let end = Math.min(...this.bans.map((ban, i) => ban.open(text, since - this.kept[i]))) - since
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
  /** What is searched, and where the held tokens begin in it. */
  text() {
    const given = this.given.join('')
    return { text: given + this.pieces().join(''), since: given.length }
  }
  /** Each match, with its beginning and end in what is searched. */
  *matches(over) {
    const { text, since } = this.text()
    for (const [i, ban] of this.bans.entries()) for (const [start, end] of ban.matches(text, since - this.kept[i], since, over)) yield { ban, start, end }
  }
  /** Index of the held token that has a byte of the text; negative for one that was given out. */
  place(at) {
    const all = [...this.given, ...this.pieces()]
    return all.findIndex(({ length }) => (at -= length) < 0) - this.given.length
  }
  /** Whether a match that begins in a token is banned. */
  holds(ban, place) {
    return ban.probability === 1 || this.coin(this.n + place) < ban.probability
  }
  /** The tokens that would contain something banned if they came next. */
  allWith(ban) {
    const last = ban.before(this.text().text.slice(-1))
    const found = this.found.get(ban) ?? new Map()
    this.found.set(ban, found)
    if (!found.has(last)) {
      const pieces = Array.from({ length: this.size }, (_, token) => this.bytesOf(token))
      found.set(last, ban.within(pieces, last))
    }
    return found.get(last)
  }
}
