/** @file The view Constrain: a grammar, JSON schema or regular expression, and what it allows at every step. */

import { signal } from "./vendor/signals-core.mjs";
import { Allowed } from "./allowed.js";
import { post } from "./api.js";
import { lacking, main } from "./settings.js";
import { StepPanel } from "./step-panel.js";
import { write } from "./texts.js";
import { Choice, Problem, html, watched } from "./ui.js";
import { Beginning, beginning, seed } from "./write.js";

/** @typedef {import("./text.js").Text} Text */

const LONGEST = 120;

/** @type {Record<string, {label: string, example: string}>} */
const KINDS = {
  grammar: { label: "GBNF", example: 'root ::= name ": " ("yes" | "no" | "perhaps") "."\nname ::= "ROMEO" | "JULIET" | "NURSE"\n' },
  json_schema: {
    label: "JSON schema",
    example: JSON.stringify({ type: "object", properties: { name: { enum: ["Romeo", "Juliet"] }, age: { type: "integer", minimum: 0, maximum: 99 } }, required: ["name", "age"], additionalProperties: false }, null, 1),
  },
  regex: { label: "regular expression", example: "(Ay|Nay), (my|good) (lord|lady)[.!]" },
};

const kind = signal("grammar");
const sources = Object.fromEntries(Object.entries(KINDS).map(([name, each]) => [name, signal(each.example)]));
const wrong = signal(/** @type {any} */ (null));
const text = signal(/** @type {Text | null} */ (null));
const open = signal(-1);

const asked = () => ({ [kind.value]: sources[kind.value].value });

/** @type {number | undefined} */
let waiting;

/** Ask whether it can be, a moment after the last change. */
function check() {
  clearTimeout(waiting);
  waiting = setTimeout(async () => {
    try {
      await post("/chain", asked());
      wrong.value = null;
    } catch (error) {
      wrong.value = error;
    }
  }, 250);
}

/**
 * @param {number | null} chosen  seed
 * @param {number} [step]  that is opened then
 * @param {string} [grammar]  that stands for what the text must obey
 */
async function run(chosen, step = -1, grammar) {
  wrong.value = null;
  open.value = -1;
  try {
    await write({ ...main.asked(chosen), ...(grammar ? { grammar } : asked()), ...beginning(), max_tokens: LONGEST }, { listed: false, onStart: (made) => (text.value = made) });
    open.value = step;
  } catch (error) {
    wrong.value = error;
  }
}

/** The constrained text, once it is written. */
export const constrained = () => (text.value && !text.value.writing ? text.value : null);

/** What a link says of this view. */
export const constraint = {
  get state() {
    const made = constrained();
    return { kind: kind.value, source: sources[kind.value].value, ...(made ? { seed: made.seed, step: open.value, ...(kind.value === "grammar" ? {} : { grammar: made.asked.grammar }) } : {}) };
  },
  /** @param {any} state */
  async restore(state) {
    if (!(state.kind in KINDS)) return;
    kind.value = state.kind;
    sources[state.kind].value = String(state.source);
    if (state.seed !== undefined) await run(state.seed, state.step, state.grammar);
  },
};

/** Where the fault is, as a selection. */
function show() {
  const field = /** @type {HTMLTextAreaElement | null} */ (document.getElementById("constraint"));
  if (!field || !wrong.value?.line) return;
  const lines = field.value.split("\n");
  const at = lines.slice(0, wrong.value.line - 1).reduce((n, line) => n + line.length + 1, 0) + Math.max(0, wrong.value.column - 1);
  field.focus();
  field.setSelectionRange(at, at + 1);
}

const Result = watched(function () {
  const made = text.value;
  if (!made) return html`<p class="empty">Write, and see how many tokens each step allows, and which were forced.</p>`;
  return html`<${Allowed} text=${made} open=${open.value} onOpen=${(/** @type {number} */ i) => (open.value = i)} step=${(/** @type {number} */ at) => html`<${StepPanel} text=${made} at=${at} />`} />`;
});

/** The view. */
export const Constrain = watched(function () {
  const source = sources[kind.value];
  const error = wrong.value;
  return html`<div class="view constrain columns">
    <form class="side" onSubmit=${(/** @type {Event} */ e) => (e.preventDefault(), run(seed.value))}>
      <div class="bar-row"><${Choice} label="What the text must obey" value=${kind.value} options=${Object.entries(KINDS).map(([key, each]) => [key, each.label, lacking(key)])} onChange=${(/** @type {string} */ v) => ((kind.value = v), (wrong.value = null), check())} /></div>
      <textarea id="constraint" rows="12" spellcheck="false" aria-label=${KINDS[kind.value].label} aria-invalid=${Boolean(error)} value=${source.value} onInput=${(/** @type {any} */ e) => ((source.value = e.currentTarget.value), check())}></textarea>
      <${Problem} error=${error} />
      ${error?.line > 0 && html`<button type="button" onClick=${show}>Show line ${error.line}, column ${error.column}</button>`}
      <${Beginning} label="Prompt" />
      <div class="row"><button type="submit" class="primary">Write</button></div>
    </form>
    <div class="main"><${Result} /></div>
  </div>`;
});
