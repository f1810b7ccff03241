// Numbers of JSON schemas between bounds, as trees of gbnf.js.
import { NOTHING, all, any, maybe } from './gbnf.js'

const MOST_DIGITS = 16 // of a whole part, or a fraction, where no bound says more
export const EXACT = 15 // digits of decimals that differ as doubles, too
export const GREATEST = 1e14

const digits = (from, to) => (from > to ? NOTHING : from === to ? String(from) : { set: [[48 + from, 48 + to]] })
const DIGIT = digits(0, 9)
const free = (min, max = min) => (max === 0 ? '' : { of: DIGIT, min, max })

/** Any number. */
export const NUMBER = all(
  maybe('-'),
  any(['0', all(digits(1, 9), free(0, MOST_DIGITS - 1))]),
  maybe(all('.', free(1, MOST_DIGITS))),
  maybe(all({ set: [[69, 69], [101, 101]] }, maybe({ set: [[43, 43], [45, 45]] }), free(1, 2))),
)

/** Whole numbers from low to high; infinite: no bound. */
export const integers = (low, high) => any([all('-', naturals(Math.max(1, -high), -low)), naturals(Math.max(0, low), high)])

/** The largest divisor, without its point, whose multiples are told apart, and its digits behind the point at most. */
const MOST_DIVISOR = 1000
const MOST_PLACES = 10

const common = (a, b) => (b ? common(b, a % b) : a) // the greatest divisor of both

/** A divisor as coefficient / 10^places; null: it has other digits than are told apart. */
export function divisorOf(value) {
  const [, whole, fraction = '', power = 0] = /^(\d+)(?:\.(\d+))?(?:e([+-]\d+))?$/.exec(String(value)) ?? []
  const coefficient = Number(whole + fraction)
  const places = fraction.length - power
  return coefficient > 0 && coefficient <= MOST_DIVISOR && places >= 0 && places <= MOST_PLACES ? { coefficient, places } : null
}

/** The whole numbers among its multiples. */
export const wholeOf = ({ coefficient, places }) => ({ coefficient: coefficient / common(coefficient, 10 ** places), places: 0 })

/** The least divisor with these two among its own divisors; infinite: it is too large. */
export function commonMultiple(x, y) {
  const [a, b] = [divisorOf(x), divisorOf(y)]
  const places = Math.max(a.places, b.places)
  const [m, n] = [a, b].map((each) => each.coefficient * 10 ** (places - each.places))
  const least = (m / common(m, n)) * n
  return least < 10 ** EXACT ? Number(`${least}e-${places}`) : Infinity
}

/** A bound in units of 10^-places; halves stand for what is between two of them. */
export function inUnits(value, places) {
  if (!Number.isFinite(value)) return value
  const [whole, fraction = ''] = parts(Math.abs(value))
  const units = Number(whole + fraction.slice(0, places).padEnd(places, '0'))
  return Math.sign(value) * (fraction.length > places ? units + 0.5 : units)
}

/** Multiples of coefficient / 10^places from low to high, which are in units of 10^-places; zeros at their ends may be left out. */
export function multiples({ coefficient, places }, low, high, grammar) {
  const known = new Map()
  // What may follow digits with this remainder where `left` may follow: at least `from`, at most `to`, or null.
  const rest = (left, remainder, from, to) => {
    remainder %= coefficient / common(coefficient, 10 ** left)
    from = from && !/^0*$/.test(from) ? from : null
    to = to && !/^9*$/.test(to) ? to : null
    const key = `${left} ${remainder} ${from} ${to}`
    if (!known.has(key)) known.set(key, grammar.rule('digits', tree(left, remainder, from, to)))
    return known.get(key)
  }
  const tree = (left, remainder, from, to) => {
    const ends = left <= places && !from && (remainder * (10 ** left % coefficient)) % coefficient === 0
    if (left === 0) return ends ? '' : NOTHING
    const ways = new Map() // digits by what follows
    for (let digit = Number(from?.[0] ?? 0); digit <= Number(to?.[0] ?? 9); digit++) {
      const within = (bound) => (bound && digit === Number(bound[0]) ? bound.slice(1) : null)
      const next = rest(left - 1, (10 * remainder + digit) % coefficient, within(from), within(to))
      ways.set(next, [...(ways.get(next) ?? []), [48 + digit, 48 + digit]])
    }
    const more = any([...ways].map(([next, set]) => all({ set }, next)))
    const digits = left === places ? all('.', more) : more
    return ends ? maybe(digits) : digits
  }
  const magnitudes = (least, greatest) => {
    if (least > greatest) return NOTHING
    const most = greatest < Infinity ? greatest : least < 10 ** EXACT ? 10 ** EXACT - 1 : Number.MAX_SAFE_INTEGER
    const [from, to] = [least, most].map((each) => String(each).padStart(places + 1, '0'))
    const ways = []
    for (let n = from.length; n <= to.length; n++) ways.push(rest(n, 0, n === from.length ? from : '1'.padEnd(n, '0'), n === to.length ? to : null))
    return any(ways)
  }
  return any([magnitudes(Math.max(0, low), high), all('-', magnitudes(Math.max(1, -high), -low))])
}

function naturals(low, high) {
  if (low > high) return NOTHING
  const [from, to] = [String(low), high === Infinity ? '9'.repeat(MOST_DIGITS) : String(high)]
  const ways = []
  for (let n = from.length; n <= to.length; n++) ways.push(between(n === from.length ? from : '1'.padEnd(n, '0'), n === to.length ? to : '9'.repeat(n)))
  return any(ways)
}

/** Texts of as many digits as a and b have, from a to b. */
function between(a, b) {
  const n = a.length - 1
  const [[x, ...low], [y, ...high]] = [a, b]
  if (low.every((each) => each === '0') && high.every((each) => each === '9')) return all(digits(+x, +y), free(n))
  const [from, to] = [low.join(''), high.join('')]
  if (x === y) return all(x, between(from, to))
  return any([all(x, between(from, '9'.repeat(n))), all(digits(+x + 1, +y - 1), free(n)), all(y, between('0'.repeat(n), to))])
}

/**
 * Numbers from low to high, each { value, open: whether it is excluded }, of at most GREATEST unless infinite;
 * null: one has more digits than can be compared.
 */
export function numbers(low, high) {
  const zero = { value: 0, open: false }
  const negated = ({ value, open }) => ({ value: -value, open })
  const positive = magnitudes(low.value < 0 ? zero : low, high)
  const negative = low.value < 0 ? magnitudes(high.value >= 0 ? { value: 0, open: true } : negated(high), negated(low)) : NOTHING
  return positive && negative && any([positive, all('-', negative)])
}

function magnitudes(low, high) {
  if (low.value > high.value) return NOTHING
  const [[whole, from], [last, to]] = [parts(low.value), parts(high.value)]
  const most = EXACT - Math.max(whole.length, high.value === Infinity ? 1 : last.length)
  if (from.length > most || to?.length > most) return null
  const fraction = (...bounds) => after(bounds, most)
  const least = { digits: from, open: low.open }
  const greatest = { digits: to, open: high.open }
  if (whole === last) return all(whole, fraction(least, greatest))
  const inner = all(naturals(Number(whole) + 1, Number(last) - 1), fraction(null, null))
  const ways = [all(whole, fraction(least, null)), inner]
  if (high.value !== Infinity) ways.push(all(last, fraction(null, greatest)))
  return any(ways)
}

/** The digits before and after the point. */
function parts(value) {
  if (value === Infinity) return ['Infinity', undefined]
  const [whole, fraction = ''] = String(value).split('.')
  return [whole, fraction]
}

/** A fraction with its point, or none, between bounds, each null or { digits, open }. */
function after([low, high], most) {
  if (most === 0) return mayEnd(low, high) ? '' : NOTHING
  const some = all('.', fractions(low, high, most, true))
  return mayEnd(low, high) ? maybe(some) : some
}

const mayEnd = (low, high) => (low === null || (low.digits === '' && !low.open)) && (high === null || high.digits !== '' || !high.open)

/** Digits of a fraction that goes on, at most `most`; `begins`: the first of them. */
function fractions(low, high, most, begins = false) {
  if (low?.digits === '' && !low.open) low = null
  if (low === null && high === null) return free(begins ? 1 : 0, most)
  if (most === 0) return mayEnd(low, high) ? '' : NOTHING
  const next = ({ digits, open }) => ({ digits: digits.slice(1), open })
  const x = low && Number(low.digits[0] ?? 0)
  const y = high && Number(high.digits[0] ?? 0)
  const rest = (a, b) => fractions(a, b, most - 1)
  const ways = []
  if (low && high && x === y) ways.push(all(String(x), rest(next(low), next(high))))
  else {
    if (low && (!high || x < y)) ways.push(all(String(x), rest(next(low), null)))
    ways.push(all(digits(low ? x + 1 : 0, high ? y - 1 : 9), free(0, most - 1)))
    if (high && (!low || x < y)) ways.push(all(String(y), rest(null, next(high))))
  }
  return !begins && mayEnd(low, high) ? maybe(any(ways)) : any(ways)
}
