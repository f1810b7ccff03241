// Chat templates run as in Python's jinja2, also where @huggingface/jinja lacks something or does otherwise: this package's
// copy of its classes is changed.  Templates come with models' files: what they repeat and build has limits.
import { CHAT } from './facts.js'
import { dumps, float_text, inOrder, lstrip, quoted, removeprefix, removesuffix, rstrip, strip } from './python-text.js'
import { strftime } from './strftime.js'
import { Environment, Interpreter, Template as Parsed } from './vendor/jinja.js'

const { MAX_OUTPUT, MAX_SECONDS, MAX_NUMBER } = CHAT.LIMITS
const theirs = (given) => {
  const environment = new Environment()
  environment.set('given', given)
  return environment.lookupVariable('given')
}
const thrownBy = (type) => {
  try {
    return new Interpreter().evaluate({ type })
  } catch (error) {
    return error
  }
}
const [Text, Whole, Float, Bool, Null, Undefined, List, Mapping, Callable] = ['', 1, 0.5, true, null, undefined, [], {}, () => {}].map((each) => theirs(each).constructor)
const { constructor: Namespace } = new Environment().lookupVariable('namespace').value([])
const [Break, Continue] = ['Break', 'Continue'].map((type) => thrownBy(type).constructor)
const { applyFilter, evaluate, evaluateBinaryExpression, evaluateCallExpression, evaluateFilterStatement, evaluateFor, evaluateMacro, evaluateMemberExpression, evaluateSet } =
  Interpreter.prototype
const METHODS = ['get', 'items', 'keys', 'values']
const SILENT = ['Set', 'Macro', 'Comment']
const KEYWORDS = { true: true, True: true, false: false, False: false, none: null, None: null }

let deadline = Infinity
function checkClock() {
  if (performance.now() > deadline) throw new Error(`not done after ${MAX_SECONDS} seconds`)
}
function checkLength(length) {
  if (length > MAX_OUTPUT) throw new Error(`it builds a text or a list of more than ${MAX_OUTPUT} characters or entries`)
}
function checkNumbers(values) {
  for (const { value } of values)
    if (typeof value === 'number' && Math.abs(value) > MAX_NUMBER) throw new Error(`${value} is too great an argument; numbers up to ${MAX_NUMBER} are allowed`)
}

/** A part of a template whose value is there already. */
const known = (value) => ({ type: 'Known', value })
/** Statements with variables of their own. */
const inner = (body) => [{ type: 'Inner', body }]
const keyOf = (key) => (typeof key === 'string' ? new Text(key) : new Whole(key))

/** A value as Python's str() writes it, or its repr(). */
function written(value, repr = false) {
  if (value instanceof Text) return repr ? quoted(value.value) : value.value
  if (value instanceof Null) return 'None'
  if (value instanceof Undefined) return repr ? 'Undefined' : ''
  if (value instanceof Bool) return value.value ? 'True' : 'False'
  if (value instanceof Namespace) return `<Namespace ${written(new Mapping(value.value))}>`
  if (value instanceof Callable) throw new Error('a function has no text')
  if (value instanceof Float) return float_text(value.value)
  if (value instanceof List) return `[${listed(value.value, (each) => written(each, true))}]`
  if (value instanceof Mapping) return `{${listed(value.value, ([key, each]) => `${written(keyOf(key), true)}: ${written(each, true)}`)}}`
  return String(value)
}

function listed(values, text) {
  const parts = []
  let length = 0
  for (const each of values) {
    checkClock()
    parts.push(text(each))
    checkLength((length += parts.at(-1).length))
  }
  return parts.join(', ')
}

/** A value's JSON, as Python's json.dumps writes it. */
function asJson(value, options) {
  let length = 0 // about
  const data = (each, depth) => {
    if (each instanceof Undefined || each instanceof Namespace || each instanceof Callable) throw new Error('an undefined value, a namespace and a function have no JSON')
    checkClock()
    checkLength((length += each instanceof Text ? each.value.length : 1 + (options.indent ?? 0) * depth))
    if (each instanceof List) return each.value.map((one) => data(one, depth + 1))
    if (each instanceof Mapping) return new Map(Array.from(each.value, ([key, one]) => [key, data(one, depth + 1)]))
    return each instanceof Whole ? BigInt(each.value) : (each.value ?? null)
  }
  return dumps(data(value, 0), options)
}

/** What of two values Python finds equal. */
function same(a, b) {
  const both = (kind) => a instanceof kind && b instanceof kind
  if (both(List) || both(Mapping)) checkClock()
  if (both(List)) return a.value.length === b.value.length && a.value.every((each, i) => same(each, b.value[i]))
  if (both(Mapping)) return a.value.size === b.value.size && [...a.value].every(([key, each]) => b.value.has(key) && same(each, b.value.get(key)))
  const number = (x) => (typeof x === 'boolean' ? Number(x) : x)
  return a instanceof Null === b instanceof Null && number(a.value) === number(b.value)
}

/** What a loop gets of a value. */
function members(value) {
  if (value instanceof Text) return Array.from(value.value, (each) => new Text(each))
  if (value instanceof Undefined) return []
  if (value instanceof Mapping) return value.keys().value
  if (!(value instanceof List)) throw new Error('a loop needs a list, a mapping or a text')
  return value.value
}

/** Data for a template, which may not change its lists: mappings are Maps, whole numbers BigInts. */
function valueOf(data) {
  if (Array.isArray(data)) return new List(Object.freeze(data.map(valueOf)))
  if (data instanceof Map) return new Mapping(new Map(Array.from(data, ([key, each]) => [key, valueOf(each)])))
  if (typeof data === 'number') return new Float(data)
  return typeof data === 'bigint' ? new Whole(Number.isSafeInteger(Number(data)) ? Number(data) : data) : theirs(data)
}

const isFinal = (error) => error instanceof Break || error instanceof Continue

Object.assign(Interpreter.prototype, {
  evaluate(node, environment) {
    if (node?.type === 'Known') return node.value
    if (node?.type === 'Inner') return this.evaluateBlock(node.body, new Environment(environment))
    if (node?.type === 'Round') return this.evaluateRound(node, environment)
    if (node?.type === 'TupleLiteral') return new List(node.value.map((each) => this.evaluate(each, environment)))
    if (node?.type !== 'ObjectLiteral') return evaluate.call(this, node, environment)
    const made = new Map()
    for (const [key, value] of node.value) {
      const { constructor, value: name } = this.evaluate(key, environment)
      if (constructor !== Text && constructor !== Whole) throw new Error('keys must be texts or whole numbers')
      made.set(name, this.evaluate(value, environment))
    }
    return new Mapping(made)
  },
  evaluateBlock(statements, environment) {
    let text = ''
    try {
      for (const each of statements) {
        const value = this.evaluate(each, environment)
        if (!SILENT.includes(each.type)) checkLength((text += written(value)).length)
      }
    } catch (error) {
      if (isFinal(error)) error.text = text + (error.text ?? '')
      throw error
    }
    return new Text(text)
  },
  evaluateFor(node, environment) {
    const { iterable, defaultBlock } = node
    const select = iterable.type === 'SelectExpression'
    const items = known(new List(members(this.evaluate(select ? iterable.lhs : iterable, environment))))
    const round = { type: 'Round', body: inner(node.body) }
    const loop = { ...node, iterable: select ? { ...iterable, lhs: items } : items, body: [round], defaultBlock: [] }
    const { value } = evaluateFor.call(this, loop, environment)
    return new Text(value + (round.whole ? '' : this.evaluateBlock(inner(defaultBlock), environment).value))
  },
  /** The text up to a loop's break or continue stays, as does the loop's "else" then. */
  evaluateRound(round, environment) {
    checkClock()
    if (round.over) throw round.over
    try {
      const text = this.evaluateBlock(round.body, environment)
      round.whole = true
      return text
    } catch (error) {
      if (!isFinal(error)) throw error
      if (error instanceof Break) round.over = error
      return new Text(error.text)
    }
  },
  evaluateSet(node, environment) {
    return evaluateSet.call(this, node.value ? node : { ...node, body: inner(node.body) }, environment)
  },
  evaluateFilterStatement(node, environment) {
    return evaluateFilterStatement.call(this, { ...node, body: inner(node.body) }, environment)
  },
  /** Macros see the variables of where they are written, not of where they are called. */
  evaluateMacro(node, environment) {
    evaluateMacro.call(this, node, environment)
    const { value: f } = environment.lookupVariable(node.name.value)
    const macro = (given, { variables }) => {
      const scope = new Environment(environment)
      if (variables.has('caller')) scope.setVariable('caller', variables.get('caller'))
      return f(given, scope)
    }
    environment.setVariable(node.name.value, new Callable(macro))
    return new Null()
  },
  evaluateCallExpression(node, environment) {
    checkClock()
    return evaluateCallExpression.call(this, node, environment)
  },
  evaluateBinaryExpression(node, environment) {
    const operator = node.operator.value
    if (operator === 'and' || operator === 'or') return evaluateBinaryExpression.call(this, node, environment)
    const [left, right] = [this.evaluate(node.left, environment), this.evaluate(node.right, environment)]
    if (operator === '~') return bounded(new Text(written(left) + written(right)))
    if (operator === '==' || operator === '!=') return new Bool(same(left, right) === (operator === '=='))
    if (operator === '+' && left instanceof Text !== right instanceof Text) throw new Error('a text plus what is no text')
    if (operator === '+' && left instanceof List && right instanceof List) checkLength(left.value.length + right.value.length)
    if (operator === '*' && left instanceof Text && right instanceof Whole) return repeated(left.value, right.value)
    if (operator.endsWith('in') && (right instanceof List || right instanceof Mapping)) {
      const found = right instanceof List ? right.value.some((each) => same(left, each)) : right.value.has(left.value)
      return new Bool(found === (operator === 'in'))
    }
    const numbers = typeof left.value === 'number' && typeof right.value === 'number'
    if (numbers && ['/', '//', '%'].includes(operator) && right.value === 0) throw new Error('division by zero')
    const made = evaluateBinaryExpression.call(this, { ...node, left: known(left), right: known(right) }, environment)
    if (made instanceof Whole && !Number.isSafeInteger(made.value)) throw new Error(`'${operator}' makes a whole number beyond 2 ** 53`)
    // Python's remainder has the divisor's sign.
    if (numbers && operator === '%' && made.value * right.value < 0) made.value += right.value
    return bounded(made)
  },
  evaluateMemberExpression(node, environment) {
    const object = this.evaluate(node.object, environment)
    if (object instanceof Undefined) throw new Error('an undefined value has no attributes')
    // As in Python, a mapping's methods come before its entries of these names, such as a JSON schema's "items".
    if (object instanceof Mapping && !node.computed && METHODS.includes(node.property.value)) return object.builtins.get(node.property.value)
    if (!node.computed || node.property.type === 'SliceExpression') return evaluateMemberExpression.call(this, { ...node, object: known(object) }, environment)
    const property = this.evaluate(node.property, environment)
    if (object instanceof Mapping && !(property instanceof Text)) return object.value.get(property.value) ?? new Undefined()
    if (object instanceof Text && property instanceof Whole) return members(object).at(property.value) ?? new Undefined()
    return evaluateMemberExpression.call(this, { ...node, object: known(object), property: known(property) }, environment)
  },
  /** A value's attribute of an attribute, as in `map(attribute='function.name')`. */
  attribute(value, path, environment) {
    const named = (part) => known(/^\d+$/.test(part) ? new Whole(Number(part)) : new Text(part))
    return String(path.value)
      .split('.')
      .reduce((each, part) => this.evaluateMemberExpression({ computed: true, object: known(each), property: named(part) }, environment), value)
  },
  applyFilter(operand, filter, environment) {
    checkClock()
    const [given, named] = this.evaluateArguments(filter.args ?? [], environment)
    checkNumbers([...given, ...named.values()])
    const made = FILTERS.get((filter.callee ?? filter).value)?.call(this, operand, given, named, environment)
    if (made) return bounded(made)
    const keywords = Array.from(named, ([key, value]) => ({ type: 'KeywordArgumentExpression', key: { value: key }, value: known(value) }))
    const told = filter.args ? { ...filter, args: [...given.map(known), ...keywords] } : filter
    return bounded(applyFilter.call(this, operand, told, environment))
  },
})

const repeated = (text, times) => (checkLength(text.length * times), new Text(text.repeat(Math.max(times, 0))))
function bounded(value) {
  if (value instanceof Text) checkLength(value.value.length)
  return value
}

const capitalized = (text) => text.slice(0, 1).toUpperCase() + text.slice(1).toLowerCase()
const sized = (value) => (value instanceof Text || value instanceof Undefined ? new Whole(members(value).length) : undefined)
const defaulted = (value, [otherwise = new Text(''), flag], named) =>
  value instanceof Undefined || ((flag ?? named.get('boolean'))?.value && !value.__bool__().value) ? (named.get('default_value') ?? otherwise) : value

/** The arguments of a filter, by place or by name. */
const read = (given, named, names) => names.map((name, i) => (named.get(name) ?? given[i])?.value)
/** By which number or text values are ordered; texts without regard to case, unless `cased`. */
function rankOf({ value }, cased) {
  if (typeof value === 'string') return cased ? value : value.toLowerCase()
  if (['number', 'bigint', 'boolean'].includes(typeof value)) return Number(value)
  throw new Error('only numbers and texts have an order here')
}
/** A list in the order of what `of` gives of its entries. */
function sorting(entries, of, cased, reverse) {
  const ranked = entries.map((each) => [rankOf(of(each), cased), each])
  const sign = reverse ? -1 : 1
  return new List(ranked.sort(([a], [b]) => sign * inOrder(a, b)).map(([, each]) => each))
}
/** The least or the greatest. */
const extreme = (sign) => (value, given, named) => {
  if (given.length || named.size) throw new Error("'min' and 'max' take no arguments here")
  return members(value).reduce((a, b) => (sign * inOrder(rankOf(b), rankOf(a)) < 0 ? b : a), members(value)[0] ?? new Undefined())
}
/** Those of a list whose value, or whose attribute's, passes a test. */
const selecting = (wanted, ofAttribute) =>
  function (value, given, _, environment) {
    if (!value.__bool__().value) return new List([])
    const [path, name, ...others] = ofAttribute ? given : [undefined, ...given]
    const test = name ? Environment.TESTS.get(name.value) : (each) => each.__bool__().value
    if (!test) throw new Error(`no test has the name '${name.value}'`)
    return new List(members(value).filter((each) => test(ofAttribute ? this.attribute(each, path, environment) : each, ...others) === wanted))
  }

/** Filters that are not, or are other, in @huggingface/jinja; those that give nothing leave the value to it. */
const FILTERS = new Map(
  Object.entries({
    string: (value) => new Text(written(value)),
    trim: (value, [of]) => new Text(strip(written(value), of?.value)),
    capitalize: (value) => new Text(capitalized(written(value))),
    title: (value) => new Text(written(value).replace(/[^-\s({[<]+/g, capitalized)),
    upper: (value) => new Text(written(value).toUpperCase()),
    lower: (value) => new Text(written(value).toLowerCase()),
    replace: (value, given, named) => new Text(written(value)).builtins.get('replace').value([...given, ...named.values()]),
    length: sized,
    count: (value) => sized(value) ?? new Whole(members(value).length),
    list: (value) => new List([...members(value)]),
    first: (value) => members(value)[0] ?? new Undefined(),
    last: (value) => members(value).at(-1) ?? new Undefined(),
    items: (value) => (value instanceof Mapping ? value.items() : value instanceof Undefined ? new List([]) : undefined),
    int: (value) => (value instanceof Float ? new Whole(Math.trunc(value.value)) : undefined),
    default: defaulted,
    d: defaulted,
    min: extreme(1),
    max: extreme(-1),
    sort(value, given, named, environment) {
      const [reverse, cased, path] = read(given, named, ['reverse', 'case_sensitive', 'attribute'])
      return sorting(members(value), (each) => (path ? this.attribute(each, { value: path }, environment) : each), cased, reverse)
    },
    dictsort(value, given, named) {
      const [cased, by, reverse] = read(given, named, ['case_sensitive', 'by', 'reverse'])
      if (!(value instanceof Mapping)) throw new Error('dictsort needs a mapping')
      return sorting(value.items().value, (pair) => pair.value[Number(by === 'value')], cased, reverse)
    },
    select: selecting(true, false),
    reject: selecting(false, false),
    selectattr: selecting(true, true),
    rejectattr: selecting(false, true),
    map(value, [name, ...given], named, environment) {
      if (!value.__bool__().value) return new List([])
      const path = named.get('attribute')
      const one = path
        ? (each) => defaulted(this.attribute(each, path, environment), [named.get('default') ?? new Undefined()], new Map())
        : (each) => this.applyFilter(each, { type: 'CallExpression', callee: { type: 'Identifier', value: name.value }, args: given.map(known) }, environment)
      return new List(members(value).map(one))
    },
    join(value, [between = new Text(''), of], named, environment) {
      const path = of ?? named.get('attribute')
      const texts = members(value).map((each) => written(path ? this.attribute(each, path, environment) : each))
      const separator = written(named.get('d') ?? between)
      checkLength(texts.reduce((sum, { length }) => sum + length + separator.length, 0))
      return new Text(texts.join(separator))
    },
    tojson(value, given, named) {
      const [ensure_ascii = false, indent = null, separators, sort_keys] = read(given, named, ['ensure_ascii', 'indent', 'separators', 'sort_keys'])
      if (typeof indent === 'string') throw new Error('tojson: indent must be a whole number')
      return new Text(asJson(value, { ensure_ascii, indent: indent && Number(indent), separators: separators?.map((each) => written(each)), sort_keys }))
    },
  }),
)

const isIterable = (value) => [Text, List, Mapping, Undefined].some((kind) => value instanceof kind)
for (const [name, test] of Object.entries({
  iterable: isIterable,
  sequence: isIterable,
  number: ({ value }) => ['number', 'bigint', 'boolean'].includes(typeof value),
  float: (value) => value instanceof Float,
  equalto: same,
  eq: same,
  ne: (a, b) => !same(a, b),
}))
  Environment.TESTS.set(name, test)

Object.assign(Mapping.prototype, {
  items() {
    return new List([...this.value].map(([key, value]) => new List([keyOf(key), value])))
  },
  keys() {
    return new List([...this.value.keys()].map(keyOf))
  },
})

/** Changes the functions that values of a class have. */
function withBuiltins(cls, changed) {
  const { get } = Object.getOwnPropertyDescriptor(cls.prototype, 'builtins')
  Object.defineProperty(cls.prototype, 'builtins', {
    get() {
      if (!this._builtins) {
        get.call(this)
        for (const [name, f] of Object.entries(changed(this))) this._builtins.set(name, new Callable(f))
        this._builtins.delete('length')
      }
      return this._builtins
    },
  })
}

withBuiltins(Mapping, ({ value }) => ({
  get: ([key, otherwise = new Null()]) => value.get(key.value) ?? otherwise,
}))

withBuiltins(Text, ({ value: text }) => ({
  ...Object.fromEntries(Object.entries({ strip, lstrip, rstrip, removeprefix, removesuffix }).map(([name, f]) => [name, ([of]) => new Text(f(text, of?.value))])),
  capitalize: () => new Text(capitalized(text)),
  title: () => new Text(text.replace(/\p{L}+/gu, capitalized)),
  join: ([parts]) => FILTERS.get('join')(parts, [new Text(text)], new Map()),
  format: (given) => {
    let next = 0
    return bounded(
      new Text(
        text.replace(/\{\{|\}\}|\{(\d*)\}|[{}]/g, (part, at) => {
          if (part === '{{' || part === '}}') return part[0]
          if (at === undefined) throw new Error(`format: ${quoted(text)} has other fields than {} and {0}`)
          const value = given[at || next++]
          if (!value || value.type === 'KeywordArgumentsValue') throw new Error(`format: ${quoted(text)} has more fields than there are values`)
          return written(value)
        }),
      ),
    )
  },
}))

function own(list) {
  if (Object.isFrozen(list.value)) throw new Error('a template changes its own lists only')
  return list.value
}
// Templates may extend their own lists, as Kimi K2's do.
withBuiltins(List, (list) => ({
  append: ([each = new Undefined()]) => {
    if (own(list).length >= MAX_NUMBER) throw new Error(`a list of more than ${MAX_NUMBER} entries`)
    list.value.push(each)
    return new Null()
  },
  pop: ([at = new Whole(-1)]) => {
    const i = at.value < 0 ? at.value + own(list).length : at.value
    if (!Number.isInteger(i) || !(i in own(list))) throw new Error('pop index out of range')
    return list.value.splice(i, 1)[0]
  },
}))

const FUNCTIONS = {
  strftime_now: (form) => strftime(form),
  raise_exception: (message) => {
    throw new Error(message)
  },
  range: (...given) => {
    const [start, stop, step = 1] = given.length > 1 ? given : [0, ...given]
    if (![start, stop, step].every(Number.isInteger) || step === 0) throw new Error('range needs whole numbers, and a step that is not 0')
    checkNumbers([start, stop, step].map((value) => ({ value })))
    return Array.from({ length: Math.max(0, Math.ceil((stop - start) / step)) }, (_, i) => start + i * step)
  },
}

/** A template; the variables it is given, a Map, stay as they are. */
export class Template extends Parsed {
  render(given) {
    const environment = new Environment()
    for (const [name, value] of [...Object.entries(FUNCTIONS), ...given, ...Object.entries(KEYWORDS)]) environment.setVariable(name, valueOf(value))
    deadline = performance.now() + 1000 * MAX_SECONDS
    return new Interpreter(environment).run(this.parsed).value
  }
}
