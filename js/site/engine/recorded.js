/** @file Texts with their steps as one file that needs no engine (src/aleator/server/playground/saved.py). */

import { bytesOf } from "../aleator/runtime.js";
import { frames } from "./cells.js";
import { chainWords, draws, explain } from "./explain.js";
import { spellings } from "./spellings.js";
import { RequestError, adapts } from "./texts.js";

const TOP = 10; // likely tokens of a step
const ROWS = 12; // of a step that is open
const DIGITS = 8; // of probabilities
const DRAWS = 1000;
const MOST = { texts: 64, draws: 16, compare: 2 };

/** The HTML of what a page asks for: texts, each { id, name }, and what is shown of them. */
export async function savedPage(engine, asked) {
  const found = contents(engine, checked(asked));
  const cells = asked.script ? (await frames(engine.model, asked.script)).frames : [];
  const record = JSON.stringify(rounded({ ...found, cells }));
  const page = new TextDecoder().decode(await bytesOf(new URL("../saved.html", import.meta.url)));
  // In a script element only "<" can begin its end tag, or a comment.
  return page.replace('id="record">', () => `id="record">${record.replaceAll("<", "\\u003c")}`);
}

function checked({ texts, compare, draws, current = null, step = -1, view = "write", shade = "surprise" }) {
  const made = { texts, compare: compare ?? [], draws: draws ?? [], current, step, view, shade };
  for (const [name, most] of Object.entries(MOST)) {
    if (!Array.isArray(made[name])) throw new RequestError(`${name}: give an array`, name);
    if (made[name].length > most) throw new RequestError(`${name} has ${made[name].length} entries: give at most ${most}`, name);
  }
  if (made.compare.length === 1) throw new RequestError("compare has 1 text: give 2", "compare");
  if (!made.texts.length) throw new RequestError("texts is empty: give 1 to 64", "texts");
  return made;
}

/** Numbers with the digits that are shown. */
function rounded(value) {
  if (typeof value === "number") return Number.isInteger(value) ? value : Number(value.toPrecision(DIGITS));
  if (Array.isArray(value)) return value.map(rounded);
  return value && typeof value === "object" ? Object.fromEntries(Object.entries(value).map(([key, each]) => [key, rounded(each)])) : value;
}

function contents(engine, { texts: asked, compare, draws: drawn, current, step, view, shade }) {
  const { texts } = engine;
  const all = new Map(asked.map(({ id, name = "" }) => [texts.find(id), name]));
  const order = withAncestors(all);
  const ends = endsOf(all, order);
  const place = (name, id) => {
    const at = [...all.keys()].some((text) => text.id === id) ? order.findIndex((text) => text.id === id) : -1;
    if (at < 0) throw new RequestError(`${name}: ${JSON.stringify(id)} is not one of the texts`, name);
    return at;
  };
  const made = order.map((text) => ({ ...whole(engine, text, all.get(text) ?? "", ends.get(text)), parent: text.parent && order.indexOf(text.parent) }));
  const full = made.flatMap((text) => text.full);
  if (full.length && !full.some(Boolean)) throw new RequestError("the logits of these texts are not kept any more: write them again", "texts", "logits_forgotten", 410);
  return {
    model: engine.about.name,
    texts: made,
    shown: {
      view, step, shade,
      text: current === null ? order.length - 1 : place("current", current),
      compare: compare.length ? compare.map((id) => place("compare", id)) : null,
    },
    draws: drawn.map(({ id, step: at }) => ({ text: place("draws", id), step: at, ...histogram(engine, texts.find(id), at) })),
  };
}

function histogram({ texts, named }, text, step) {
  const chain = texts.chainAt(text, step);
  const found = draws(chain, text.logits(step), DRAWS, named);
  chain.free();
  return found;
}

/** Texts and all that they come from, each after the one that it branches off. */
function withAncestors(all) {
  const order = new Set();
  const add = (text) => {
    if (text.parent) add(text.parent);
    order.add(text);
  };
  for (const text of all.keys()) add(text);
  return [...order];
}

/** How many drawn tokens of each are in the file: of one that was not asked for, those that others share. */
function endsOf(all, order) {
  const ends = new Map([...all.keys()].map((text) => [text, text.drawn.length]));
  for (const { parent, at } of [...order].reverse()) if (parent && !all.has(parent)) ends.set(parent, Math.max(ends.get(parent) ?? 0, at));
  return ends;
}

/** A text from where it leaves the one that it branches off. */
function whole(engine, text, name, end) {
  const { at, inherited, prompt, parent, seed, chain, asked } = text;
  return {
    name, at, seed,
    inherited: inherited.length,
    prompt: parent ? [] : prompt.map(engine.named),
    chain: chainWords(chain),
    spelled: spellings({ ...asked, seed }),
    ...steps(engine, text, end),
    ...text.end,
  };
}

/** Its steps, in short and in full; null: the logits of one are not kept any more. */
function steps(engine, text, end) {
  const { texts, named } = engine;
  const made = { steps: [], full: [] };
  const drawing = adapts(text.chain);
  let chain = null; // at the next step
  const renew = () => {
    chain?.free();
    chain = null;
  };
  for (let step = text.at; step < end; step++) {
    try {
      const logits = text.logits(step);
      chain ??= texts.chainAt(text, step);
      const found = explain(chain, logits, TOP, named);
      const { event, ...short } = engine.shortStep(text, step, found, TOP);
      made.steps.push(short);
      made.full.push(shown({ ...engine.writtenStep(text, step, found, logits), ...found }));
      if (step < text.inherited.length) renew(); // a token that was picked
      else if (drawing) texts.draw(chain, text, step);
      else chain.accept(text.drawn[step], { generated: true });
    } catch (error) {
      renew();
      if (error.code !== "logits_forgotten") throw error;
      made.steps.push({ step, token: named(text.drawn[step]), picked: false, before: null, after: null, entropy: null, entropy_after: null, left: null, stages: [], top: [], forgotten: true });
      made.full.push(null);
    }
  }
  chain?.free();
  return made;
}

/** A step without the tokens that no view shows. */
function shown(step) {
  const { token, draw, traces } = step;
  const wanted = [...traces.slice(0, ROWS).map((each) => each.token.id), token?.id, draw?.token.id];
  return { ...step, traces: traces.filter((each) => wanted.includes(each.token.id)) };
}
