// Options of a text beside sampling parameters (src/aleator/generate/options.py).
import { Strings, searchers } from './expressions.js'
import { REASONING_MARKS } from './facts.js'
import { loopLimits } from './loops.js'
import { AleatorError, isText, whole, wrong } from './native.js'

const isTexts = (value) => value.every((each) => typeof each === 'string' && each)
const most = 2 ** 31 - 1

/** What a text's options are, checked; `rest`: what is no option of it; tokenizer: null without a vocabulary. */
export function textOptions(tokenizer, given) {
  if (typeof given !== 'object' || given === null) throw wrong('options', given, 'give an object')
  const { maxTokens = Infinity, stop = [], signal, heal = false, completeGrammar, stopLoops, reasoningBudget, reasoningBudgetMessage = '', reasoningBudgetGrace = 0, reasoningMarks = REASONING_MARKS, bannedStrings = [], bannedRegex = [], ...rest } = given
  const stops = [stop].flat()
  if (maxTokens !== Infinity) whole('maxTokens', maxTokens, 0)
  if (!isTexts(stops)) throw wrong('stop', stop, 'give strings of at least one character')
  if (signal !== undefined && typeof signal?.aborted !== 'boolean') throw wrong('signal', signal, 'give an AbortSignal')
  for (const [name, value] of Object.entries({ heal, completeGrammar: completeGrammar ?? true })) if (typeof value !== 'boolean') throw wrong(name, value, 'give true or false')
  const strings = [bannedStrings].flat()
  if (!isTexts(strings)) throw wrong('bannedStrings', bannedStrings, 'give strings of at least one character')
  const banned = [...searchers(bannedRegex ?? []), ...(strings.length ? [new Strings(strings)] : [])]
  const made = { maxTokens, stops, signal, heal, reasoningMarks, completeGrammar, banned, loops: null, reasoning: null }
  if ((stopLoops ?? null) !== null) made.loops = loopLimits(stopLoops)
  if (!isText(reasoningBudgetMessage)) throw wrong('reasoningBudgetMessage', reasoningBudgetMessage, 'give a text')
  whole('reasoningBudgetGrace', reasoningBudgetGrace, 0, most)
  if (!Array.isArray(reasoningMarks) || reasoningMarks.length !== 2 || !isTexts(reasoningMarks)) throw wrong('reasoningMarks', reasoningMarks, 'give two texts, such as those of <think>')
  if ((reasoningBudget ?? -1) !== -1) {
    const budget = whole('reasoningBudget', reasoningBudget, -1, most)
    for (const text of [reasoningMarks[1], ...stops])
      if (reasoningBudgetMessage.includes(text)) throw wrong('reasoningBudgetMessage', reasoningBudgetMessage, `it has ${JSON.stringify(text)} in it, which ends the reasoning or the text: leave it out`)
    made.reasoning = { budget, message: reasoningBudgetMessage, grace: reasoningBudgetGrace, marks: reasoningMarks }
  }
  if (completeGrammar && (made.reasoning || banned.length)) throw wrong('completeGrammar', true, 'not with reasoningBudget, bannedStrings or bannedRegex, which choose tokens themselves: leave one out')
  const [ban, value] = strings.length ? ['bannedStrings', bannedStrings] : ['bannedRegex', bannedRegex]
  if (made.reasoning && banned.length) throw wrong(ban, value, 'not with reasoningBudget, as what is forced cannot be drawn anew: leave one out')
  if (heal && made.reasoning) throw wrong('heal', true, 'not with reasoningBudget, as both say what the first tokens are: leave one out')
  const texts = { stop: stops.length, heal, reasoningBudget: made.reasoning, bannedStrings: strings.length, bannedRegex: banned.length }
  const needs = tokenizer ? undefined : Object.keys(texts).find((name) => texts[name])
  if (needs) throw new AleatorError('TokenizerError', `${needs}: the model has no vocabulary (tokenizer.ggml.model): leave it out`)
  return { options: made, rest }
}
