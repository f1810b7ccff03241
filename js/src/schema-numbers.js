// Numbers of JSON schemas between bounds, as trees of gbnf.js.
import { NOTHING, all, any, maybe } from './gbnf.js'

const MOST_DIGITS = 16 // of a whole part, or a fraction, where no bound says more
const EXACT = 15 // digits of decimals that differ as doubles, too
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

/** The largest number whose multiples are told apart. */
export const MOST_DIVISOR = 1000
/** Multiples between bounds that are written one by one. */
export const MOST_LISTED = 1000

/** The multiples of a whole number from low to high; null: bounds that are neither near each other nor 0. */
export function multiples(divisor, low, high, grammar) {
  const [first, last] = [Math.ceil(low / divisor), Math.floor(high / divisor)]
  if (last - first < MOST_LISTED) return any(Array.from({ length: Math.max(0, last - first + 1) }, (_, i) => String((first + i) * divisor + 0)))
  const [negative, positive] = [low === -Infinity, high === Infinity]
  if (!(negative || first === 0 || first === 1) || !(positive || last === 0 || last === -1)) return null
  // What may follow after digits with this remainder, so many digits at most.
  const known = new Map()
  const rest = (remainder, left) => {
    const key = `${remainder} ${left}`
    if (!known.has(key)) {
      const ways = left ? Array.from({ length: 10 }, (_, digit) => all(String(digit), rest((10 * remainder + digit) % divisor, left - 1))) : []
      known.set(key, grammar.rule('digits', any(remainder ? ways : [...ways, ''])))
    }
    return known.get(key)
  }
  const above = any(Array.from({ length: 9 }, (_, i) => all(String(i + 1), rest((i + 1) % divisor, EXACT - 1))))
  const zero = (!negative || last >= 0) && (!positive || first <= 0) ? ['0'] : []
  return any([...zero, ...(positive ? [above] : []), ...(negative ? [all('-', above)] : [])])
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
