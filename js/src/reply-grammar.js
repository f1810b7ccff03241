// Grammars of forced replies, of the parts that a family of templates writes (src/aleator/chat/reply_grammar.py).
import { Maybe, Schema, Words } from './chats.js'
import { Grammar, all, any, but, maybe } from './gbnf.js'
import { AleatorError } from './native.js'
import { toObject } from './python-text.js'
import { gbnf, grammarText, reasoning, valueOf } from './schema.js'
import { cut } from './tokenizer.js'

/**
 * The GBNF of replies: one of the choices, each in parts.
 * thinking: { begin, end, after } of the reasoning that may come before; opened: the text begins within it.
 */
export function replyGrammar(tokenizer, choices, thinking, opened) {
  const { vocabulary } = tokenizer
  const control = vocabulary.texts().flatMap((text, token) => (text && vocabulary.isSpecial(token) ? [[text, token]] : [])).sort(([a], [b]) => b.length - a.length)
  const grammar = new Grammar()
  /** A text, in which names of control tokens are these tokens. */
  const words = (text) => all(...cut(text, control, vocabulary).map((part) => (typeof part === 'number' ? { token: part } : part)))
  const drawn = ({ limits, mark, end }) => {
    const values = limits.has('const') ? [limits.get('const')] : limits.get('enum')
    if (values?.length) return all(any(values), words(end))
    const [least, most] = [['minLength', 0], ['maxLength', Infinity]].map(([name, usual]) => Number(limits.get(name) ?? usual))
    if (!limits.has('minLength') && !limits.has('maxLength')) return all(grammar.upTo(mark), words(end.slice(end.indexOf(mark) + mark.length)))
    return all(grammar.repeat(but(['<', '\n']), least, most), words(end))
  }
  const tree = (part) =>
    part instanceof Schema ? valueOf(toObject(part.schema), grammar)
    : part instanceof Words ? drawn(part)
    : part instanceof Maybe ? maybe(all(...part.parts.map(tree)))
    : words(part)
  const reply = any(choices.map((parts) => all(...parts.map(tree))))
  return grammarText(grammar, thinking ? all(reasoning(grammar, { ...thinking, opened }), reply) : reply)
}

/** How functions are called, as choices of parts; an error names the tool. */
export function callsOf(family, functions) {
  return functions.map((each) => {
    try {
      gbnf(toObject(each.parameters))
    } catch (error) {
      if (error.name !== 'GrammarError') throw error
      throw new AleatorError('GrammarError', `tools: parameters of ${each.name}: ${error.message}`)
    }
    return family.call(each)
  })
}
