/** @file The view Constrain: a grammar, JSON schema or regular expression, and what it allows at every step. */

import { signal } from "./vendor/signals-core.mjs";
import { post } from "./api.js";
import { main } from "./settings.js";
import { StepPanel } from "./step-panel.js";
import { alone } from "./token.js";
import { Hover, TextView } from "./text-view.js";
import { write } from "./texts.js";
import { Choice, Problem, count, html, watched } from "./ui.js";
import { prompt, seed } from "./write.js";

/** @typedef {import("./texts.js").Text} Text */

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

async function run() {
  wrong.value = null;
  open.value = -1;
  try {
    await write({ ...main.asked(seed.value), ...asked(), prompt: prompt.value, max_tokens: 120 }, { listed: false, onStart: (made) => (text.value = made) });
  } catch (error) {
    wrong.value = error;
  }
}

/** Tokens that the constraint left at a step. @param {import("./texts.js").Step} step */
const allowed = (step) => step.stages.find((stage) => stage.name in KINDS)?.left ?? null;

/** @param {import("./texts.js").Step} step */
const marks = (step) => (allowed(step) === 1 ? " forced" : "");

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
  made.version.value;
  const known = made.steps.map(allowed).filter((n) => n !== null);
  const forced = known.filter((n) => n === 1).length;
  const at = open.value;
  const most = Math.max(...known, 1);
  return html`<section aria-label="Constrained text">
    <${TextView} id="constrained" label="Constrained text" shade="left" prompt=${made.prompt} steps=${made.steps} length=${made.steps.length} open=${at} onOpen=${(/** @type {number} */ i) => (open.value = i)} marks=${marks} writing=${made.writing} />
    <p class="quiet" role="status">${made.steps.length} tokens, ${forced} forced (dotted)${made.writing ? ", writing…" : `; ended by: ${made.reason.value}`}${made.end?.complete ? ", the text is complete" : ""}</p>
    <${Problem} error=${made.error.value} />
    <div class="allowed" role="img" aria-label=${`Allowed tokens at each step: ${known.slice(0, 200).join(", ")}`}>
      ${made.steps.map((step, i) => {
        const n = allowed(step) ?? 0;
        return html`<i key=${i} class=${i === at ? "active" : ""} title=${`step ${i}: ${count(n)} allowed`} style=${{ height: `${Math.max(4, (100 * Math.log2(n + 1)) / Math.log2(most + 1))}%` }} onClick=${() => (open.value = i)}></i>`;
      })}
    </div>
    <p class="quiet">Allowed tokens at each step, up to ${count(most)} (heights are logarithms).</p>
    ${at >= 0 && at < made.steps.length &&
    html`<h2>Step ${at}: <span class="piece">${alone(made.steps[at].token)}</span> <small>${allowed(made.steps[at]) === 1 ? "1 token" : `${count(allowed(made.steps[at]) ?? 0)} tokens`} allowed</small></h2>
      <${StepPanel} text=${made} at=${at} />`}
  </section>`;
});

/** The view. */
export const Constrain = watched(function () {
  const source = sources[kind.value];
  const error = wrong.value;
  return html`<div class="view constrain columns">
    <form class="side" onSubmit=${(/** @type {Event} */ e) => (e.preventDefault(), run())}>
      <div class="bar-row"><${Choice} label="What the text must obey" value=${kind.value} options=${Object.entries(KINDS).map(([key, each]) => [key, each.label])} onChange=${(/** @type {string} */ v) => ((kind.value = v), (wrong.value = null), check())} /></div>
      <textarea id="constraint" rows="12" spellcheck="false" aria-label=${KINDS[kind.value].label} aria-invalid=${Boolean(error)} value=${source.value} onInput=${(/** @type {any} */ e) => ((source.value = e.currentTarget.value), check())}></textarea>
      <${Problem} error=${error} />
      ${error?.line > 0 && html`<button type="button" onClick=${show}>Show line ${error.line}, column ${error.column}</button>`}
      <label class="prompt-field"><span>Prompt</span><textarea rows="2" value=${prompt.value} onInput=${(/** @type {any} */ e) => (prompt.value = e.currentTarget.value)}></textarea></label>
      <div class="row"><button type="submit" class="primary">Write</button></div>
    </form>
    <div class="main"><${Result} /></div>
    <${Hover} />
  </div>`;
});
