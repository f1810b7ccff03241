/** @file Recorded texts in a file of their own: every view that needs no model, without a server. */

import { render } from "./vendor/preact.mjs";
import { effect, signal } from "./vendor/signals-core.mjs";
import { Allowed } from "./allowed.js";
import { Operations, Picture } from "./cells-view.js";
import { Curves } from "./curves.js";
import { Histogram } from "./draws.js";
import { Side, Steps, divergence } from "./pair.js";
import { Spelled } from "./spelling.js";
import { StepView } from "./step-view.js";
import { Colours, Tabs } from "./tabs.js";
import { Text, allowed, current, diverges, opened, texts } from "./text.js";
import { Hover, Legend, SHADES, TextView, shading } from "./text-view.js";
import { alone } from "./token.js";
import { Tree } from "./tree.js";
import { Choice, download, html, percent, watched } from "./ui.js";

/**
 * @typedef {import("./step-view.js").FullStep} FullStep
 * @typedef {object} Saved
 * @property {string} model
 * @property {{name: string, parent: number | null, at: number, inherited: number, prompt: import("./token.js").Token[], seed: number, chain: string,
 *   spelled: {cli: string, json: string, python: string}, steps: import("./text.js").Step[], full: (FullStep | null)[],
 *   reason: string, complete: boolean, computed: number, reused: number}[]} texts  each after the one that it branches off, with its own steps
 * @property {{view: string, text: number, step: number, shade: string, compare: [number, number] | null}} shown
 * @property {({text: number, step: number} & import("./draws.js").Drawn)[]} draws
 * @property {import("./cells-view.js").Frame[]} cells
 */

/** @type {Saved} */
const saved = JSON.parse(document.getElementById("record")?.textContent ?? "{}");

/** Everything about the steps of a text. @type {Map<Text, (FullStep | null)[]>} */
const full = new Map();
/** @type {Text[]} */
const all = [];
saved.texts.forEach((given, i) => {
  const parent = given.parent === null ? null : all[given.parent];
  const text = new Text({}, parent, given.name || (parent ? `branch ${i + 1}` : `text ${i + 1}`));
  const { at, inherited, seed } = given;
  Object.assign(text, { id: String(i), at, inherited, seed, end: given, prompt: parent ? parent.prompt : given.prompt });
  text.steps = [...(parent?.steps.slice(0, at) ?? []), ...given.steps];
  full.set(text, [...(full.get(/** @type {Text} */ (parent))?.slice(0, at) ?? []), ...given.full]);
  text.reason.value = given.reason;
  all.push(text);
});
texts.value = all;
current.value = all[saved.shown.text];
opened.value = Math.min(saved.shown.step, current.value.steps.length - 1);
shading.value = saved.shown.shade;

const limited = all.filter((text) => text.steps.some((step) => allowed(step) !== null));
const [one, other] = saved.shown.compare ?? [Math.max(0, all.length - 2), all.length - 1];
/** The two that are compared. */
const compared = signal([one, other]);
const parted = signal(Math.max(0, diverges(all[one], all[other])));
const choosing = signal(limited[0] ?? null);
const forced = signal(-1);
const frame = signal(saved.cells.length - 1);
const view = signal(saved.shown.view);
const theme = signal("auto");

/** @type {Record<string, string>} */
const VIEWS = {
  write: "Write",
  chain: "Chain",
  ...(all.length > 1 ? { compare: "Compare" } : {}),
  ...(limited.length ? { constrain: "Constrain" } : {}),
  ...(saved.cells.length ? { cache: "Cache" } : {}),
  reproduce: "Reproduce",
};
if (!(view.value in VIEWS)) view.value = "write";

effect(() => {
  document.documentElement.dataset.theme = theme.value;
});

/** The open step. @param {{text: Text, at: number, rows?: number, label?: string}} props */
function Step({ text, at, rows, label }) {
  const step = full.get(text)?.[at];
  return step ? html`<${StepView} step=${step} rows=${rows} label=${label} written=${text.steps[at].token.id} />` : html`<p class="quiet">The logits of this step were not kept when the file was made.</p>`;
}

/** @param {number} i */
const onOpen = (i) => (opened.value = i);

/** The text that is shown, and the tree where there are several. */
const Write = watched(function () {
  const text = /** @type {Text} */ (current.value);
  const at = opened.value;
  const step = text.steps[at];
  return html`<div class="view">
    <div class=${all.length > 1 ? "columns" : ""}><div class="main"><div class="bar-row"><${Choice} label="Shade by" value=${shading.value} options=${Object.entries(SHADES).map(([key, each]) => /** @type {[string, string]} */ ([key, each.label]))} onChange=${(/** @type {string} */ v) => (shading.value = v)} /><${Legend} /></div>
      <${TextView} id="main" label=${`${text.name.value}: ${text.steps.length} tokens; arrow keys open steps`} prompt=${text.prompt} steps=${text.steps} length=${text.steps.length} open=${at} onOpen=${onOpen} />
      <p class="quiet status">${text.steps.length} tokens, ended by: ${text.reason.value}; seed ${text.seed}; prompt: ${text.end.computed} computed, ${text.end.reused} from the cache</p></div>
      ${all.length > 1 && html`<aside><h2>Branches</h2><${Tree} /></aside>`}</div>
    ${step && html`<section class="opened" aria-label="Open step"><h2>Step ${at}: <span class="piece">${alone(step.token)}</span> <small>${percent(step.before)} of the model, ${percent(step.after)} after the chain</small></h2>
      <${Step} text=${text} at=${at} /></section>`}
    <${Hover} />
  </div>`;
});

const Chain = watched(function () {
  const text = /** @type {Text} */ (current.value);
  const { chain, spelled } = text.end;
  return html`<div class="view"><section><h2>${text.name.value}: its chain</h2><p>${chain}</p></section>
    <${Curves} steps=${text.steps} open=${opened.value} onOpen=${onOpen} />
    ${text.steps[opened.value] && html`<section><h2>Step ${opened.value}: <span class="piece">${alone(text.steps[opened.value].token)}</span></h2><${Step} text=${text} at=${opened.value} /></section>`}
    <${Spelled} spelled=${spelled} /></div>`;
});

const Compare = watched(function () {
  const two = compared.value.map((i) => all[i]);
  const first = diverges(two[0], two[1]);
  const at = parted.value;
  const choose = (/** @type {number} */ side, /** @type {string} */ value) => {
    const next = [...compared.value];
    next[side] = Number(value);
    compared.value = next;
    parted.value = Math.max(0, diverges(all[next[0]], all[next[1]]));
  };
  /** @type {[string, string][]} */
  const options = all.map((text, i) => [String(i), text.name.value]);
  const step = (/** @type {Text} */ text, /** @type {string} */ name) => {
    const found = saved.draws.find((each) => each.text === all.indexOf(text) && each.step === at);
    return html`<${Step} text=${text} at=${at} rows=${8} label=${`${name}.`} />${found && html`<${Histogram} found=${found} />`}`;
  };
  return html`<div class="view compare"><p role="status">${divergence(two[0], two[1])}</p>
    <div class="pair">${two.map((text, i) => html`<section key=${i} class="side" aria-label=${`Text ${"AB"[i]}`}><${Choice} label=${"AB"[i]} value=${String(compared.value[i])} options=${options} onChange=${(/** @type {string} */ v) => choose(i, v)} /><p class="quiet">${text.end.chain}</p>
      <${Side} name=${"AB"[i]} text=${text} first=${first} open=${at} onOpen=${(/** @type {number} */ to) => (parted.value = to)} /></section>`)}</div>
    <${Steps} texts=${two} at=${at} step=${step} /><${Hover} /></div>`;
});

const Constrain = watched(function () {
  const text = /** @type {Text} */ (choosing.value);
  return html`<div class="view constrain">${limited.length > 1 && html`<${Choice} label="Text" value=${text.id} options=${limited.map((each) => [each.id, each.name.value])} onChange=${(/** @type {string} */ v) => ((choosing.value = all[Number(v)]), (forced.value = -1))} />`}
    <${Allowed} text=${text} open=${forced.value} onOpen=${(/** @type {number} */ i) => (forced.value = i)} step=${(/** @type {number} */ at) => html`<${Step} text=${text} at=${at} />`} /></div>`;
});

const Cache = watched(function () {
  return html`<div class="view cache"><${Picture} frame=${saved.cells[frame.value]} number=${frame.value + 1} /><${Operations} frames=${saved.cells} at=${frame.value} onShow=${(/** @type {number} */ i) => (frame.value = i)} /></div>`;
});

const Reproduce = watched(function () {
  const text = /** @type {Text} */ (current.value);
  const tokens = () => download(new Blob([JSON.stringify(text.steps.map((step) => step.token.id))], { type: "application/json" }), "aleator-tokens.json");
  return html`<div class="view reproduce"><section><h2>The same text again</h2><p class="quiet">Model ${saved.model}, seed ${text.seed}, and the chain below give these tokens on every machine. This file cannot write: it has no model.</p>
    <button type="button" onClick=${tokens}>Save the token ids</button></section><${Spelled} spelled=${text.end.spelled} /></div>`;
});

/** @type {Record<string, any>} */
const SHOWN = { write: Write, chain: Chain, compare: Compare, constrain: Constrain, cache: Cache, reproduce: Reproduce };

const Page = watched(function () {
  const View = SHOWN[view.value];
  return html`<header class="head"><h1>Aleator <span>recorded</span></h1>
      <${Tabs} views=${VIEWS} view=${view.value} onChange=${(/** @type {string} */ name) => (view.value = name)} />
      <span class="model quiet">${saved.model}</span>
      <${Colours} value=${theme.value} onChange=${(/** @type {string} */ value) => (theme.value = value)} /></header>
    <main><div id="view" role="tabpanel" aria-label=${VIEWS[view.value]}><${View} /></div></main>`;
});

const app = /** @type {HTMLElement} */ (document.getElementById("app"));
app.replaceChildren();
render(html`<${Page} />`, app);
