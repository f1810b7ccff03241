// The table of `phases`: sampling parameters for parts of a text, and the marks between these (src/aleator/samplers/
// phase_table.py).  A checked table is a list of pairs: a phase's name and an object, or "histories" or "start".
import { PHASES, PRESETS } from './facts.js'
import { isText, parameterError, shown } from './native.js'
import { rstrip, strip } from './python-text.js'
import { SPACE, bytesOf } from './spelling.js'

const { ANSWER, THINKING, TOOL, OF_ALL, HISTORIES, OF_TEXTS, MAX_MARK_BYTES, MAX_PHASES, MAX_TOKEN } = PHASES

export const wrong = (why) => parameterError(`phases: ${why}`)
const isPair = (value) => Array.isArray(value) && value.length === 2

/** `phases`, an object or a checked table, as a checked table; check: gives checked sampling parameters. */
export function checkedPhases(value, check) {
  const given = mapping(value, 'it', 'such as { thinking: { temperature: 0.6 } }')
  const names = [...given.keys()].filter((name) => !OF_ALL.includes(name))
  if (given.size && !names.length) throw wrong(`${shown(value)} has no phase: name one, such as 'thinking'`)
  if (names.length > MAX_PHASES) throw wrong(`${names.length} phases: give at most ${MAX_PHASES}`)
  const [histories, start] = OF_ALL.map((name) => given.get(name) ?? null)
  if (given.has('histories') && !HISTORIES.includes(histories)) throw wrong(`histories=${shown(histories)}: give ${HISTORIES.join(' or ')}`)
  if (start !== null && ![ANSWER, ...names].includes(start)) throw wrong(`start=${shown(start)}: there is no such phase: give one of ${[...new Set([ANSWER, ...names])].join(', ')}`)
  const table = names.map((name) => [name, phaseOf(name, given.get(name), check)])
  if (histories !== null) table.push(['histories', histories])
  if (start !== null) table.push(['start', start])
  refuseHidden(table)
  return table
}

function phaseOf(name, own, check) {
  const { begin, end, ...given } = Object.fromEntries(mapping(typeof own === 'string' ? { preset: own } : own, `'${name}'`, 'its sampling parameters by name, or the name of a preset'))
  const marks = Object.fromEntries(Object.entries({ begin, end }).filter(([, mark]) => (mark ?? null) !== null))
  for (const [word, mark] of Object.entries(marks)) checkMark(name, word, mark)
  const marked = Object.keys(marks).length > 0
  if (marked && name === ANSWER) throw wrong(`'${name}' has marks: it is what stands outside all others, so leave them out`)
  if (!('begin' in marks) && (marked || ![ANSWER, THINKING, TOOL].includes(name)))
    throw wrong(`nothing says how '${name}' begins: give 'begin' with the text of its mark, and with the names ${ANSWER}, ${THINKING} and ${TOOL} a chat knows that`)
  const { preset, ...params } = given
  for (const word of OF_TEXTS) if (word in params) throw wrong(`'${name}' has ${word}, which holds for a whole text: give it beside phases`)
  if ('preset' in given && !Object.hasOwn(PRESETS, preset)) throw wrong(`in '${name}': there is no preset ${shown(preset)}; the names are ${Object.keys(PRESETS).join(', ')}`)
  return { ...marks, ...('preset' in given && { preset }), ...within(name, () => check(params)) }
}

/** What work gives; its error names the phase. */
export function within(name, work) {
  try {
    return work()
  } catch (error) {
    throw error.name === 'ParameterError' ? wrong(`in '${name}': ${error.message}`) : error
  }
}

function checkMark(phase, word, value) {
  if (Number.isInteger(value) && value >= 0 && value <= MAX_TOKEN) return
  if (!value || !isText(value))
    throw wrong(`${word}=${shown(value)} of '${phase}' is no mark: give a text of at least one character, or the id of a token, up to ${MAX_TOKEN}`)
  if (bytesOf(value).length > MAX_MARK_BYTES) throw wrong(`${word} of '${phase}' has more than ${MAX_MARK_BYTES} bytes: give a shorter mark`)
}

function mapping(value, what, how) {
  const entries = Array.isArray(value) || value instanceof Map ? [...value] : typeof value === 'object' && value !== null ? Object.entries(value) : [null]
  if (!entries.every((pair) => isPair(pair) && typeof pair[0] === 'string' && pair[0])) throw wrong(`${what} is ${shown(value)}: give an object, ${how}`)
  return new Map(entries.filter(([, each]) => each !== undefined))
}

/** Refuse a mark that contains another phase's, which would begin first. */
function refuseHidden(table) {
  const begins = marksOf(table).filter(({ begin }) => begin !== undefined)
  for (const { name, begin } of begins)
    for (const { name: other, begin: earlier } of begins)
      if (name !== other && (begin === earlier || (typeof begin === 'string' && typeof earlier === 'string' && begin.includes(earlier))))
        throw wrong(`'${name}' begins with ${shown(begin)}, in which '${other}' has begun by ${shown(earlier)} already: give other marks`)
}

/** Each phase but the answer, { name, begin, end }. */
export const marksOf = (table) => table.filter(([name]) => ![ANSWER, ...OF_ALL].includes(name)).map(([name, { begin, end }]) => ({ name, begin, end }))

/** All marks. */
export const allMarks = (table) => marksOf(table).flatMap(({ begin, end }) => [begin, end].filter((mark) => mark !== undefined))

/** The parameters of each phase, [name, object]; the answer comes first and is always there. */
export function paramsOf(table) {
  const found = new Map([[ANSWER, {}]])
  for (const [name, own] of table) if (!OF_ALL.includes(name)) found.set(name, (({ begin, end, ...params }) => params)(own))
  return [...found]
}

/** The table in which phases without marks have those that are known, { name: [begin, end] }; where: what knows them. */
export function withMarks(table, known, where) {
  const made = table.map(([name, own]) => {
    if ([ANSWER, ...OF_ALL].includes(name) || own.begin !== undefined) return [name, own]
    const [begin, end] = known[name] ?? []
    if (begin === undefined) throw wrong(`nothing in ${where} says how '${name}' begins: give its marks, 'begin' and 'end', too`)
    return [name, { begin, ...(end && { end }), ...own }]
  })
  refuseHidden(made)
  return made
}

/** The table with the phase whose mark ends the prompt as `start`; textOf: a token's bytes as a text. */
export function withStart(table, tokens, textOf) {
  if (table.some(([name]) => name === 'start')) return table
  let [last, tail] = [-1, '']
  for (const token of tokens.slice(-MAX_MARK_BYTES - 64).reverse()) {
    tail = textOf(token) + tail
    if (last < 0 && strip(tail, SPACE)) last = token
  }
  const found = marksOf(table).find(({ begin }) => begin === last || (typeof begin === 'string' && endsWith(tail, bytesOf(begin))))
  return [...table, ['start', found?.name ?? ANSWER]]
}

function endsWith(text, mark) {
  const bare = strip(mark, SPACE)
  return bare ? rstrip(text, SPACE).endsWith(bare) : text.endsWith(mark)
}
