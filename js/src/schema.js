// JSON schemas as grammars in GBNF: every text of the grammar obeys the schema.  A keyword that cannot be kept is
// refused by name and place.  Texts are those of Python's json.dumps: on one line, properties in the schema's order.
import { AleatorError } from './native.js'
import { Grammar, MOST_COUNTED, NOTHING, all, any, maybe } from './gbnf.js'
import { PatternError } from './pattern.js'
import { EXACT, GREATEST, NUMBER, commonMultiple, divisorOf, inUnits, integers, multiples, numbers, wholeOf } from './schema-numbers.js'
import { CHARACTER, FORMATS, otherNames, patternOf } from './schema-strings.js'

const TYPES = ['object', 'array', 'string', 'number', 'integer', 'boolean', 'null']
const MOST_BRANCHES = 1000
const MOST_DEPTH = 200
const MOST_CHARACTERS = 1 << 26 // of all schemas that are made of one
const MOST_WORK = 200_000 // schemas and names of properties, each as often as it is read or combined
const TOO_MUCH = 'the JSON schema asks for too much: its parts are combined in too many ways'

const isObject = (value) => typeof value === 'object' && value !== null && !Array.isArray(value)
const isSchema = (value) => typeof value === 'boolean' || isObject(value)
const listOf = (test) => (value) => Array.isArray(value) && value.every(test)
const isText = (value) => typeof value === 'string'
const count = [(value) => Number.isInteger(value) && value >= 0 && value < 2 ** 31, 'a whole number from 0']
const least = [(value) => count[0](value) && value <= MOST_COUNTED, `a whole number from 0 to ${MOST_COUNTED}`]
const number = [(value) => typeof value === 'number', 'a number']
const schema = [isSchema, 'a schema']
const schemas = [(value) => listOf(isSchema)(value) && value.length > 0, 'an array of schemas']
const named = [(value) => isObject(value) && Object.values(value).every(isSchema), 'an object of schemas']
/** What the value of a keyword must be. */
const KEYWORDS = {
  $ref: [isText, 'a text such as "#/$defs/name"'],
  allOf: schemas, anyOf: schemas, oneOf: schemas, not: schema,
  type: [(value) => [value].flat().every((each) => TYPES.includes(each)), `one of ${TYPES.join(', ')}, or an array of these`],
  enum: [Array.isArray, 'an array'],
  const: [() => true],
  minLength: least, maxLength: count,
  pattern: [isText, 'a text'], format: [(value) => Object.hasOwn(FORMATS, value), `one of ${Object.keys(FORMATS).join(', ')}`],
  minimum: number, maximum: number, exclusiveMinimum: number, exclusiveMaximum: number,
  multipleOf: [(value) => typeof value === 'number' && divisorOf(value) !== null, 'a number whose digits are 1 to 1000, with at most 10 behind its point, such as 5 or 0.25'],
  properties: named, patternProperties: named,
  required: [listOf(isText), 'an array of names'],
  additionalProperties: schema,
  items: schema, prefixItems: [listOf(isSchema), 'an array of schemas'],
  minProperties: least, maxProperties: count,
  minItems: least, maxItems: count,
  uniqueItems: [(value) => value === false, 'false, as items are not compared'],
}
/** What does not say which texts are valid. */
const NOTES = ['$schema', '$id', '$comment', '$defs', 'definitions', '$anchor', 'title', 'description', 'default', 'examples', 'deprecated', 'readOnly', 'writeOnly', 'uniqueItems']
const NUMBERS = ['minimum', 'maximum', 'exclusiveMinimum', 'exclusiveMaximum']
const NAMING = ['properties', 'patternProperties', 'additionalProperties']
const NUMERIC = ['number', 'integer']
const NO_NUMBERS = TYPES.filter((each) => !NUMERIC.includes(each))
const above = (type, name) => (most) => [{ type: [type], [name]: most + 1 }]
const below = (type, name) => (least) => (least ? [{ type: [type], [name]: least - 1 }] : [])
const bound = (name) => (value) => [{ type: ['number'], [name]: value }]
/** Plain schemas of all values that do not obey a keyword; `without`: no value of these. */
const OTHERS = {
  type: (types) => [{ type: (types.includes('number') ? NO_NUMBERS : TYPES).filter((each) => !types.includes(each)) }],
  without: (values) => [{ enum: values }],
  enum(values) {
    const points = [-Infinity, ...values.filter((each) => typeof each === 'number').sort((a, b) => a - b), Infinity]
    const between = points.slice(1).map((high, i) => ({ type: ['number'], ...(i && { exclusiveMinimum: points[i] }), ...(high < Infinity && { exclusiveMaximum: high }) }))
    return [{ type: NO_NUMBERS, without: values.filter((each) => typeof each !== 'number') }, ...between]
  },
  minimum: bound('exclusiveMaximum'), maximum: bound('exclusiveMinimum'), exclusiveMinimum: bound('maximum'), exclusiveMaximum: bound('minimum'),
  minLength: below('string', 'maxLength'), maxLength: above('string', 'minLength'),
  minItems: below('array', 'maxItems'), maxItems: above('array', 'minItems'),
  minProperties: below('object', 'maxProperties'), maxProperties: above('object', 'minProperties'),
  required: (names) => names.map((name) => ({ type: ['object'], properties: { [name]: false } })),
  properties: (all) => Object.entries(all).map(([name, not]) => ({ type: ['object'], required: [name], properties: { [name]: { not } } })),
}

const refused = (message) => new AleatorError('GrammarError', message)
/** JSON on one line, as Python writes it. */
function written(value) {
  if (Array.isArray(value)) return `[${value.map(written).join(', ')}]`
  if (isObject(value)) return `{${Object.entries(value).map(([name, each]) => `${JSON.stringify(name)}: ${written(each)}`).join(', ')}}`
  return JSON.stringify(value)
}
const sorted = (value) => (isObject(value) ? Object.fromEntries(Object.keys(value).sort().map((name) => [name, sorted(value[name])])) : Array.isArray(value) ? value.map(sorted) : value)
const identity = (value) => JSON.stringify(sorted(value))
const same = (a, b) => identity(a) === identity(b)
/** The values of a that are in b. */
function shared(a, b) {
  const known = new Set(b.map(identity))
  return a.filter((each) => known.has(identity(each)))
}
const kindOf = (value) => (value === null ? 'null' : Array.isArray(value) ? 'array' : Number.isInteger(value) ? 'integer' : typeof value)
/** Refuse JSON that nests too deep, or has numbers that JavaScript has not. */
function check(value, path = '#', depth = 0) {
  if (depth > MOST_DEPTH) throw refused(`the JSON schema nests deeper than ${MOST_DEPTH}`)
  if (value === Infinity || value === -Infinity) throw refused(`the JSON schema has too large a number (at ${path})`)
  if (typeof value === 'object' && value !== null) for (const [name, each] of Object.entries(value)) check(each, `${path}/${name}`, depth + 1)
}

/** The GBNF of a JSON schema, which is an object, true, or JSON text. */
export function gbnf(given) {
  const grammar = new Grammar()
  return grammarText(grammar, valueOf(given, grammar))
}

/** The text of a grammar, whose trees are of schemas. */
export function grammarText(grammar, root) {
  const text = grammar.text(root)
  if (text === null) throw refused('no text obeys the JSON schema: what it requires excludes itself, or never ends')
  return text
}

/** The values of a JSON schema as a tree of a grammar. */
export function valueOf(given, grammar) {
  let root
  try {
    root = JSON.parse(typeof given === 'string' ? given : JSON.stringify(given))
  } catch (error) {
    throw refused(`the JSON schema is not JSON: ${error.message}`)
  }
  check(root)
  if (!isSchema(root)) throw refused(`a JSON schema is an object or a boolean, not ${written(root).slice(0, 80)}`)
  try {
    return new Schema(root, grammar).tree()
  } catch (error) {
    throw error instanceof RangeError ? refused(TOO_MUCH) : error // references and parts nest too deep together
  }
}

/** What may come before a reply: { begin, end, after } of reasoning; opened: the text begins within it. */
export function reasoning(grammar, { begin, end, after, opened }) {
  const rest = all(grammar.upTo(end), after || { of: '\n', min: 0, max: 2 })
  return opened ? rest : maybe(all(begin, rest))
}

/**
 * A schema without references and choices is called plain: its `enum` has the values of `const`, its `type` is an
 * array.  `path` is where it stands.
 */
class Schema {
  constructor(root, grammar) {
    this.root = root
    this.grammar = grammar
    this.known = new Map() // rules by plain schema, as JSON
    this.waiting = []
    this.characters = 0
    this.work = 0
    this.compared = new Set() // oneOf whose branches are compared
  }
  tree() {
    this.character = this.grammar.rule('character', CHARACTER)
    const value = this.value(this.root, '#')
    while (this.waiting.length) this.waiting.pop()() // not by recursion: schemas may nest
    return value
  }

  spend(work) {
    this.work += work
    if (this.work > MOST_WORK) throw refused(TOO_MUCH)
  }

  // From a schema to plain ones.

  unsupported(name, path, why = 'which is not supported') {
    return refused(`the JSON schema uses ${name} (at ${path}), ${why}: leave it out, and check the result for it`)
  }
  /** Values that obey a schema. */
  value(schema, path) {
    return any(this.plain(schema, path).map((each) => this.ruleOf(each, path)))
  }
  ruleOf(plain, path) {
    const key = JSON.stringify(plain)
    if (!this.known.has(key)) {
      this.characters += key.length
      if (this.characters > MOST_CHARACTERS) throw refused(TOO_MUCH)
      const made = this.grammar.rule(path === '#' ? 'value' : path.split('/').at(-1))
      this.known.set(key, made)
      this.waiting.push(() => this.grammar.rules.set(made.rule, this.body(plain, path)))
    }
    return this.known.get(key)
  }
  /** Plain schemas, one of which a value obeys if it obeys this one. */
  plain(schema, path, passed = []) {
    if (typeof schema === 'boolean') return schema ? [{}] : []
    this.spend(1)
    for (const [name, value] of Object.entries(schema)) {
      const [test, wanted] = Object.hasOwn(KEYWORDS, name) ? KEYWORDS[name] : []
      if (test ? !test(value) : !NOTES.includes(name) || (name === '$id' && path !== '#'))
        throw test ? refused(`the JSON schema has ${name}=${written(value).slice(0, 80)} (at ${path}): give ${wanted}`) : this.unsupported(name, path)
    }
    const { $ref, allOf = [], anyOf, oneOf, not, ...rest } = schema
    const own = Object.fromEntries(Object.entries(rest).filter(([name]) => !NOTES.includes(name)))
    if ('type' in own) own.type = [own.type].flat()
    if (own.patternProperties && !Object.keys(own.patternProperties).length) delete own.patternProperties
    if ('const' in own) {
      own.enum = shared([own.const], own.enum ?? [own.const])
      delete own.const
    }
    const parts = allOf.map((each, i) => this.plain(each, `${path}/allOf/${i}`, passed))
    if ($ref !== undefined) {
      if (passed.includes($ref) || passed.length > MOST_DEPTH) throw refused(`the JSON schema never ends: $ref ${written($ref)} (at ${path}) leads back to itself`)
      parts.push(this.plain(this.target($ref, path), $ref, [...passed, $ref]))
    }
    if (not !== undefined) parts.push(...this.plain(not, `${path}/not`, passed).map((each) => this.others(each, `${path}/not`)))
    if (anyOf) parts.push(anyOf.flatMap((each, i) => this.plain(each, `${path}/anyOf/${i}`, passed)))
    if (oneOf) {
      const branches = oneOf.map((each, i) => this.plain(each, `${path}/oneOf/${i}`, passed))
      if (!this.compared.has(oneOf)) {
        this.compared.add(oneOf) // first, as branches may refer to it
        branches.forEach((a, i) => branches.slice(i + 1).forEach((b) => {
          if (!this.apart(a, b, `${path}/oneOf/${i}`)) throw refused(`the JSON schema uses oneOf (at ${path}) with branches that do not exclude each other, which is not supported: write anyOf`)
        }))
      }
      parts.push(branches.flat())
    }
    let made = [own]
    for (const part of parts) {
      if (made.length * part.length > MOST_BRANCHES) throw refused(`the JSON schema combines more than ${MOST_BRANCHES} branches (at ${path})`)
      made = made.flatMap((a) => part.map((b) => this.both(a, b, path)))
    }
    return made
  }
  /** Plain schemas of the values that do not obey this one. */
  others(plain, path) {
    return Object.entries(plain).flatMap(([name, value]) => {
      const some = name === 'type' && value.includes('integer') && !value.includes('number') // numbers that are not whole have no type
      if (some || !Object.hasOwn(OTHERS, name)) throw this.unsupported(some ? 'type integer' : name, path, 'within not, which is not supported')
      return OTHERS[name](value)
    })
  }
  /** What a reference stands for. */
  target(ref, path) {
    const [first, ...names] = ref.split('/')
    let found = first === '#' ? this.root : undefined
    for (const name of names) {
      const key = decoded(name).replaceAll('~1', '/').replaceAll('~0', '~')
      found = typeof found === 'object' && found !== null && Object.hasOwn(found, key) ? found[key] : undefined
    }
    if (!isSchema(found)) throw refused(`the JSON schema has $ref ${written(ref)} (at ${path}), which is no part of it`)
    return found
  }
  /** The plain schema of what obeys both of these. */
  both(a, b, path) {
    const made = { ...a, ...b }
    if ((a.patternProperties ?? b.patternProperties) && [a, b].every((each) => NAMING.some((name) => name in each)))
      throw this.unsupported('patternProperties', path, 'where properties must be kept in two ways, which is not supported')
    const pair = (x = true, y = true) => (x === true ? y : y === true || same(x, y) ? x : { allOf: [x, y] })
    for (const name of Object.keys(b)) {
      if (!Object.hasOwn(a, name)) continue
      const [x, y] = [a[name], b[name]]
      if (name === 'type') made.type = TYPES.filter((each) => [x, y].every((types) => types.includes(each) || (each === 'integer' && types.includes('number'))))
      else if (name === 'enum') made.enum = shared(x, y)
      else if (name === 'multipleOf') made.multipleOf = this.commonMultiple(x, y, path)
      else if (name === 'required' || name === 'without') made[name] = [...new Set([...x, ...y])]
      else if (/^(min|exclusiveMin)/.test(name)) made[name] = Math.max(x, y)
      else if (/^(max|exclusiveMax)/.test(name)) made[name] = Math.min(x, y)
      else if (['pattern', 'format'].includes(name) && x !== y) throw this.unsupported(name, path, 'where another one must be kept, too, which is not supported')
    }
    const others = [a, b].map((each) => each.additionalProperties ?? true)
    const of = ({ properties = {} }, name, i) => (Object.hasOwn(properties, name) ? properties[name] : others[i])
    const names = Object.keys({ ...a.properties, ...b.properties })
    this.spend(1 + names.length)
    if (names.length) made.properties = Object.fromEntries(names.map((name) => [name, pair(of(a, name, 0), of(b, name, 1))]))
    const rest = pair(...others)
    if (rest !== true) made.additionalProperties = rest
    const item = ({ prefixItems = [], items }, i) => prefixItems[i] ?? items
    const first = Math.max(a.prefixItems?.length ?? 0, b.prefixItems?.length ?? 0)
    if (first) made.prefixItems = Array.from({ length: first }, (_, i) => pair(item(a, i), item(b, i)))
    const items = pair(a.items, b.items)
    if (items !== true) made.items = items
    return made
  }
  commonMultiple(x, y, path) {
    const made = commonMultiple(x, y)
    if (!divisorOf(made)) throw this.unsupported('multipleOf', path, `where another one makes it ${made}, which is not supported`)
    return made
  }
  /** Whether it is certain that no value obeys one of the schemas a, which stand at `path`, and one of b; `depth`: of properties. */
  apart(a, b, path, depth = 0) {
    return a.every((x) => b.every((y) => this.twoApart(x, y, path, depth)))
  }
  twoApart(a, b, path, depth) {
    if (a.enum && b.enum) return !shared(a.enum, b.enum).length
    const kinds = ({ enum: values, type = TYPES }) => new Set(values ? values.map(kindOf) : type.flatMap((each) => (each === 'number' ? ['number', 'integer'] : [each])))
    const both = [...kinds(a)].filter((each) => kinds(b).has(each))
    if (both.some((each) => each !== 'object')) return false
    if (!both.length) return true
    if (a.enum || b.enum || a.patternProperties || b.patternProperties || depth > 2) return false
    const needs = [a, b].map(({ required = [] }) => required)
    const lacks = ({ properties = {}, additionalProperties }, name) => additionalProperties === false && !Object.hasOwn(properties, name)
    if (needs[0].some((name) => lacks(b, name)) || needs[1].some((name) => lacks(a, name))) return true
    const of = ({ properties = {}, additionalProperties = true }, name) => (Object.hasOwn(properties, name) ? properties[name] : additionalProperties)
    const names = needs[0].filter((name) => needs[1].includes(name))
    const isTag = (name) => ['const', 'enum'].some((each) => each in Object(of(a, name)))
    return [...names.filter(isTag), ...names.filter((name) => !isTag(name))].some((name) => {
      const at = `${path}/properties/${name}`
      return this.apart(this.plain(of(a, name), at), this.plain(of(b, name), at), at, depth + 1)
    })
  }

  // From plain schemas to trees.

  body(plain, path) {
    const { enum: values, type = TYPES, without = [], ...rest } = plain
    const { minimum = -Infinity, maximum = Infinity, exclusiveMinimum = -Infinity, exclusiveMaximum = Infinity, ...others } = rest
    const within = (value) => typeof value !== 'number' || (minimum <= value && value <= maximum && exclusiveMinimum < value && value < exclusiveMaximum)
    const allowed = (value) => (type.includes(kindOf(value)) || (type.includes('number') && typeof value === 'number')) && within(value) && !shared([value], without).length
    if (values) {
      const [beside] = Object.keys(others)
      if (beside) throw this.unsupported('enum', path, `beside ${beside}, which is not supported`)
      return any(values.filter(allowed).map(written))
    }
    const large = without.find((each) => typeof each === 'object' && each !== null && type.includes(kindOf(each)))
    if (large) throw this.unsupported(`not with ${written(large).slice(0, 80)}`, path)
    return any(type.filter((each) => each !== 'integer' || !type.includes('number')).map((each) => this[each](plain, path)))
  }
  null({ without = [] }) {
    return any(['null'].filter(() => !without.includes(null)))
  }
  boolean({ without = [] }) {
    return any([true, false].filter((each) => !without.includes(each)).map(String))
  }
  string({ minLength = 0, maxLength = Infinity, pattern, format, without = [] }, path) {
    const others = without.filter(isText)
    if (others.length && (minLength || maxLength < Infinity || pattern !== undefined || format !== undefined))
      throw this.unsupported('not with a text', path, 'beside minLength, maxLength, pattern or format, which is not supported')
    if (others.length) return all('"', otherNames(others, this.grammar), '"')
    const source = pattern ?? FORMATS[format]
    if (source === undefined) return all('"', this.grammar.repeat(this.character, minLength, maxLength), '"')
    if (pattern !== undefined && format !== undefined) throw this.unsupported('format', path, 'beside pattern, which is not supported')
    const made = this.pattern(source, path)
    if (made.least < minLength) throw this.unsupported('minLength', path, 'beside a pattern or format of shorter texts, which is not supported')
    if (made.most > maxLength) throw this.unsupported('maxLength', path, 'beside a pattern or format of longer texts, which is not supported')
    return all('"', made.tree, '"')
  }
  pattern(source, path) {
    try {
      return patternOf(source, this.grammar)
    } catch (error) {
      if (!(error instanceof PatternError)) throw error
      throw this.unsupported(`pattern ${written(source)}`, path, `which is not supported: ${error.message} (character ${error.column})`)
    }
  }
  integer(plain, path) {
    return this.multiples(plain, path, wholeOf(divisorOf(plain.multipleOf ?? 1)))
  }
  multiples(plain, path, divisor) {
    const { places } = divisor
    this.checkBounds(plain, path, places ? 10 ** (EXACT - places) - 1 : Number.MAX_SAFE_INTEGER)
    const { minimum = -Infinity, maximum = Infinity, exclusiveMinimum: above = -Infinity, exclusiveMaximum: below = Infinity } = plain
    const low = Math.max(Math.ceil(inUnits(minimum, places)), Math.floor(inUnits(above, places)) + 1)
    const high = Math.min(Math.floor(inUnits(maximum, places)), Math.ceil(inUnits(below, places)) - 1)
    return divisor.coefficient === 1 && !places ? integers(low, high) : multiples(divisor, low, high, this.grammar)
  }
  number(plain, path) {
    if ('multipleOf' in plain) return this.multiples(plain, path, divisorOf(plain.multipleOf))
    if (!NUMBERS.some((name) => name in plain)) return NUMBER
    this.checkBounds(plain, path, GREATEST)
    const { minimum = -Infinity, maximum = Infinity, exclusiveMinimum: above = -Infinity, exclusiveMaximum: below = Infinity } = plain
    const low = { value: Math.max(minimum, above), open: above >= minimum }
    const high = { value: Math.min(maximum, below), open: below <= maximum }
    const made = numbers(low, high)
    if (!made) throw this.unsupported(NUMBERS.filter((name) => name in plain).join(' and '), path, 'with too many digits, which is not supported')
    return made
  }
  /** Refuse bounds beyond which texts that differ are equal numbers. */
  checkBounds(plain, path, most) {
    for (const name of NUMBERS)
      if (name in plain && (Math.abs(plain[name]) > most || (plain[name] !== 0 && Math.abs(plain[name]) < 1e-6)))
        throw this.unsupported(name, path, `and ${plain[name]} is not within 1e-6 and ${most}`)
  }
  array({ items = true, prefixItems = [], minItems = 0, maxItems = Infinity }, path) {
    const first = prefixItems.map((each, i) => this.value(each, `${path}/prefixItems/${i}`))
    const item = this.value(items, `${path}/items`)
    // What may follow, from the last of the first items back.
    const n = Math.min(first.length, maxItems)
    const optional = (tree, at) => (at < minItems ? tree : maybe(tree))
    const least = Math.max(0, minItems - n)
    if (n > 0) {
      let rest = maxItems > n ? this.grammar.repeat(all(', ', item), least, maxItems - n) : least ? NOTHING : ''
      for (let at = n - 1; at >= 0; at--) rest = this.grammar.rule('items', optional(all(at ? ', ' : '', first[at], rest), at))
      return all('[', rest, ']')
    }
    if (maxItems === 0) return minItems ? NOTHING : '[]'
    return all('[', optional(all(item, this.grammar.repeat(all(', ', item), Math.max(0, minItems - 1), maxItems - 1)), 0), ']')
  }
  object({ properties = {}, patternProperties = {}, required = [], additionalProperties = true, ...bounds }, path) {
    const patterns = Object.entries(patternProperties)
    const ofNames = patterns.map(([source]) => this.pattern(source, `${path}/patternProperties`).tree)
    const schemaOf = (name) => (patterns.find(([source]) => new RegExp(source, 'u').test(name)) ?? [null, additionalProperties])[1]
    const free = required.filter((name) => !Object.hasOwn(properties, name)).map((name) => [name, schemaOf(name)])
    const members = [...Object.entries(properties), ...new Map(free)]
    const both = patterns.some(([a, x], i) => patterns.slice(i + 1).some(([b, y]) => !same(x, y) && !beginApart(a, b)))
    const found = members.find(([name, each]) => patterns.some(([source, x]) => (bounds.minProperties || !same(x, each)) && new RegExp(source, 'u').test(name)))
    if (both || found) throw this.unsupported('patternProperties', path, `where ${both ? 'a name may match two of them' : `${written(found[0])} matches one`}, which is not supported`)
    const needs = new Set(required)
    // Bounds that hold anyhow need no counting.
    const least = bounds.minProperties > needs.size ? bounds.minProperties : 0
    const most = additionalProperties === false && !patterns.length && bounds.maxProperties >= members.length ? Infinity : bounds.maxProperties ?? Infinity
    // Names that are not listed may come twice, so that one of them counts at most.
    if (least > members.length + 1 && (additionalProperties !== false || patterns.length))
      throw this.unsupported(`minProperties=${least}`, path, 'with names that are not among its properties, which is not supported')
    const pairs = members.map(([name, each]) => all(`${JSON.stringify(name)}: `, this.value(each, `${path}/properties/${name}`)))
    const pairOf = (names, schema, at) => this.grammar.rule('pair', all('"', names, '": ', this.value(schema, `${path}/${at}`)))
    const rest = patterns.length ? any(patterns.map(([, each], i) => pairOf(ofNames[i], each, 'patternProperties')))
      : additionalProperties === false ? NOTHING
      : pairOf(otherNames(members.map(([name]) => name), this.grammar), additionalProperties, 'additionalProperties')
    // What may follow after n members, from `counted` on no matter how many; from the last member back.
    const counted = Math.min(pairs.length, most < Infinity ? most : Math.max(1, least))
    const known = (i) => Array.from({ length: Math.min(i, counted) + 1 }, (_, n) => n)
    let after = known(pairs.length).map((n) => this.otherPairs(n, rest, least - n, most - n))
    for (let i = pairs.length - 1; i >= 0; i--) {
      const next = after
      after = known(i).map((n) => {
        const here = n < most ? all(n ? ', ' : '', pairs[i], next[Math.min(n + 1, counted)]) : NOTHING
        return this.grammar.rule('members', needs.has(members[i][0]) ? here : any([here, next[n]]))
      })
    }
    return all('{', after[0], '}')
  }
  /** From least to most pairs after n others. */
  otherPairs(n, pair, least, most) {
    if (least > 1 || most < 0) return NOTHING
    const next = all(', ', pair)
    if (n) return this.grammar.repeat(next, Math.max(0, least), most)
    const some = most ? all(pair, this.grammar.repeat(next, 0, most - 1)) : NOTHING
    return least > 0 ? some : maybe(some)
  }
}

/** The letters with which each text of an expression begins, or some of them. */
function beginning(source) {
  const [, letters] = /^\^(\w*)/.exec(source.includes('|') ? '' : source) ?? [null, '']
  return '*?{'.includes(source[letters.length + 1] ?? ' ') ? letters.slice(0, -1) : letters
}
function beginApart(a, b) {
  const [x, y] = [a, b].map(beginning)
  return !x.startsWith(y) && !y.startsWith(x)
}

function decoded(name) {
  try {
    return decodeURIComponent(name)
  } catch {
    return name
  }
}
