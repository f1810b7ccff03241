// Chat templates run as in Python's jinja2, also where @huggingface/jinja lacks something or does otherwise: this package's
// copy of its classes is changed.
import { isprintable } from './python-text.js'
import { Environment, Interpreter, Template } from './vendor/jinja.js'

export { Template }

const valueOf = (given) => {
  const environment = new Environment()
  environment.set('given', given)
  return environment.lookupVariable('given')
}
const [Text, Whole, Bool, Null, Undefined, List, Mapping, Callable] = ['', 1, true, null, undefined, [], {}, () => {}].map((each) => valueOf(each).constructor)
const { applyFilter, evaluate, evaluateBinaryExpression, evaluateMemberExpression } = Interpreter.prototype
const SILENT = ['Set', 'Macro', 'Comment', 'Break', 'Continue']
/** Filters of the str() of anything, and those that give nothing of nothing. */
const OF_TEXTS = ['upper', 'lower', 'trim', 'capitalize', 'title', 'replace']
const SELECTING = ['select', 'reject', 'selectattr', 'rejectattr', 'map']
const EXTREMES = { min: (a, b) => a < b, max: (a, b) => a > b }
const ESCAPES = { '\\': '\\\\', '\n': '\\n', '\r': '\\r', '\t': '\\t' }
const MOST = 100_000 // entries of a list that a template extends

/** A part of a template whose value is there already. */
const known = (value) => ({ type: 'Known', value })
const keyOf = (key) => (typeof key === 'string' ? new Text(key) : new Whole(key))

function quoted(text) {
  const mark = text.includes("'") && !text.includes('"') ? '"' : "'"
  const escaped = (character) => {
    const code = character.codePointAt(0).toString(16)
    const [letter, digits] = code.length < 3 ? ['x', 2] : code.length < 5 ? ['u', 4] : ['U', 8]
    return `\\${letter}${code.padStart(digits, '0')}`
  }
  const one = (each) => (each === mark ? `\\${each}` : (ESCAPES[each] ?? (isprintable(each) ? each : escaped(each))))
  return mark + Array.from(text, one).join('') + mark
}

/** A value as Python's str() writes it, or its repr(). */
function written(value, repr = false) {
  if (value instanceof Text) return repr ? quoted(value.value) : value.value
  if (value instanceof Null) return 'None'
  if (value instanceof Undefined) return repr ? 'Undefined' : ''
  if (value instanceof Bool) return value.value ? 'True' : 'False'
  if (value instanceof List) return `[${value.value.map((each) => written(each, true)).join(', ')}]`
  if (value instanceof Mapping) return `{${[...value.value].map(([key, each]) => `${written(keyOf(key), true)}: ${written(each, true)}`).join(', ')}}`
  return String(value)
}

const lacks = (value) => value instanceof Undefined || ((value instanceof List || value instanceof Mapping) && [...value.value.values()].some(lacks))

/** What of two values Python finds equal. */
function same(a, b) {
  if (a instanceof List && b instanceof List) return a.value.length === b.value.length && a.value.every((each, i) => same(each, b.value[i]))
  if (a instanceof Mapping && b instanceof Mapping)
    return a.value.size === b.value.size && [...a.value].every(([key, each]) => b.value.has(key) && same(each, b.value.get(key)))
  const number = (x) => (typeof x === 'boolean' ? Number(x) : x)
  return a instanceof Null === b instanceof Null && number(a.value) === number(b.value)
}

Object.assign(Interpreter.prototype, {
  evaluate(node, environment) {
    if (node?.type === 'Known') return node.value
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
    for (const each of statements) {
      const value = this.evaluate(each, environment)
      if (!SILENT.includes(each.type)) text += written(value)
    }
    return new Text(text)
  },
  evaluateBinaryExpression(node, environment) {
    const operator = node.operator.value
    if (operator === 'and' || operator === 'or') return evaluateBinaryExpression.call(this, node, environment)
    const [left, right] = [this.evaluate(node.left, environment), this.evaluate(node.right, environment)]
    if (operator === '~') return new Text(written(left) + written(right))
    if (operator === '==' || operator === '!=') return new Bool(same(left, right) === (operator === '=='))
    if (operator === '+' && left instanceof Text !== right instanceof Text) throw new Error('a text plus what is no text')
    if (operator.endsWith('in') && (right instanceof List || right instanceof Mapping)) {
      const found = right instanceof List ? right.value.some((each) => same(left, each)) : right.value.has(left.value)
      return new Bool(found === (operator === 'in'))
    }
    return evaluateBinaryExpression.call(this, { ...node, left: known(left), right: known(right) }, environment)
  },
  evaluateMemberExpression(node, environment) {
    if (!node.computed || node.property.type === 'SliceExpression') return evaluateMemberExpression.call(this, node, environment)
    const [object, property] = [this.evaluate(node.object, environment), this.evaluate(node.property, environment)]
    if (object instanceof Mapping && property instanceof Whole) return object.value.get(property.value) ?? new Undefined()
    return evaluateMemberExpression.call(this, { ...node, object: known(object), property: known(property) }, environment)
  },
  applyFilter(operand, filter, environment) {
    const name = (filter.callee ?? filter).value
    if (name === 'string') return new Text(written(operand))
    if (name === 'items' && operand instanceof Mapping) return operand.items()
    if (EXTREMES[name] && operand instanceof List && operand.value.length) return operand.value.reduce((a, b) => (EXTREMES[name](b.value, a.value) ? b : a))
    if (SELECTING.includes(name) && !operand.__bool__().value) return new List([])
    if (name === 'tojson' && lacks(operand)) throw new Error('an undefined value has no JSON')
    const empty = operand instanceof Undefined && name === 'length'
    return applyFilter.call(this, empty || OF_TEXTS.includes(name) ? new Text(written(operand)) : operand, filter, environment)
  },
})

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
      if (!this._builtins) for (const [name, f] of Object.entries(changed(this, get.call(this)))) this._builtins.set(name, new Callable(f))
      return this._builtins
    },
  })
}

withBuiltins(Mapping, (mapping, theirs) => {
  const { value: dictsort } = theirs.get('dictsort')
  const numbers = () => [...mapping.value.keys()].every((key) => typeof key === 'number')
  return {
    get: ([key, otherwise = new Null()]) => mapping.value.get(key.value) ?? otherwise,
    dictsort: (given) => (numbers() && !given.length ? new List(mapping.items().value.sort((a, b) => a.value[0].value - b.value[0].value)) : dictsort(given)),
  }
})

withBuiltins(Text, ({ value: text }) => ({
  format: (given) => {
    let next = 0
    return new Text(
      text.replace(/\{\{|\}\}|\{(\d*)\}|[{}]/g, (part, at) => {
        if (part === '{{' || part === '}}') return part[0]
        if (at === undefined) throw new Error(`format: ${quoted(text)} has other fields than {} and {0}`)
        const value = given[at || next++]
        if (!value) throw new Error(`format: ${quoted(text)} has more fields than there are values`)
        return written(value)
      }),
    )
  },
}))

// Templates may extend their own lists, as Kimi K2's do.
withBuiltins(List, (list) => ({
  append: ([each]) => {
    if (list.value.length >= MOST) throw new Error(`a list of more than ${MOST} entries`)
    list.value.push(each)
    return new Null()
  },
  pop: ([at = new Whole(-1)]) => {
    const i = at.value < 0 ? at.value + list.value.length : at.value
    if (!Number.isInteger(i) || !(i in list.value)) throw new Error('pop index out of range')
    return list.value.splice(i, 1)[0]
  },
}))
