/** @file The view Cache: cells as a picture after each operation on a context of its own. */

import { Component } from "./vendor/preact.mjs";
import { signal } from "./vendor/signals-core.mjs";
import { get, post } from "./api.js";
import { Operations, Picture, StateRows } from "./cells-view.js";
import { WHO } from "./transport.js";
import { Problem, html, watched } from "./ui.js";

/** @typedef {import("./cells-view.js").Frame} Frame */

const EXAMPLE = ["decode 0 20", "fork 0 1", "fork 0 2", "decode 0,1,2 8", "rm 1", "slide 0 4", "decode 0,2 4", "rm 2", "defrag"];

const script = signal(EXAMPLE);
const frames = signal(/** @type {Frame[]} */ ([]));
const shown = signal(EXAMPLE.length - 1);
const failed = signal(/** @type {any} */ (null));
const playing = signal(false);
const verb = signal("decode");

/**
 * What each verb takes: the labels of its numbers, what stands in them first, and what it does.  Those behind "?" may be left out.
 * @type {Record<string, {takes: [string, string][], does: string}>}
 */
const VERBS = {
  decode: { takes: [["sequences", "0"], ["tokens", "8"]], does: "tokens of each sequence, one after the other; an empty one begins with a prompt" },
  fork: { takes: [["from", "0"], ["to", "3"], ["up to position?", ""]], does: "the second sequence shares the first one's cells" },
  rm: { takes: [["sequence", "0"], ["from position?", ""], ["to position?", ""]], does: "remove positions, the last one excluded; without any all of the sequence" },
  add: { takes: [["sequence", "0"], ["from position", "4"], ["to position", "-1"], ["delta", "2"]], does: "move positions; -1: to the end. Keys are rotated at the next decode" },
  div: { takes: [["sequence", "0"], ["from position", "0"], ["to position", "-1"], ["divisor", "2"]], does: "divide positions, rounded down; -1: to the end" },
  slide: { takes: [["sequence", "0"], ["keep", "4"], ["discard?", ""]], does: "forget what follows the first positions, half of it unless it is said, and move up the rest" },
  keep: { takes: [["sequence", "0"]], does: "remove every other sequence" },
  defrag: { takes: [], does: "fill holes with the last cells" },
  clear: { takes: [], does: "remove everything" },
};
/** What stands in the fields, by verb. */
const fields = Object.fromEntries(Object.entries(VERBS).map(([name, { takes }]) => [name, takes.map(([, value]) => signal(value))]));

let turn = 0;

/**
 * @param {string[]} next
 * @param {number} [at]  the operation that is shown then; without it the last
 */
async function run(next, at) {
  const mine = ++turn;
  try {
    const found = await post("/cache", { script: next });
    if (mine !== turn) return;
    frames.value = found.frames;
    failed.value = found.error;
    script.value = next.slice(0, found.frames.length);
    shown.value = Math.min(at ?? Infinity, found.frames.length - 1);
  } catch (error) {
    if (mine === turn) failed.value = error;
  }
}

/** @type {ReturnType<typeof setInterval> | undefined} */
let timer;

function play() {
  clearInterval(timer);
  playing.value = !playing.value;
  if (!playing.value) return;
  shown.value = 0;
  timer = setInterval(() => {
    if (shown.value + 1 < frames.value.length) shown.value++;
    else {
      clearInterval(timer);
      playing.value = false;
    }
  }, 700);
}

function add() {
  const numbers = fields[verb.value].map((field) => field.value.trim());
  const end = numbers.findLastIndex((number) => number !== "");
  run([...script.value, [verb.value, ...numbers.slice(0, end + 1)].join(" ")]);
}

/** What a link says of this view. */
export const operations = {
  get state() {
    return { script: script.value, at: shown.value };
  },
  /** @param {any} state */
  restore: (state) => run(state.script, state.at),
};

/** The script, where it was run. */
export const ran = () => (frames.value.length ? script.value : null);

/** @typedef {{size: number, runs: {at: number, cells: number, owner: number, owners: number}[], sequences: any[], summary: string}} Runs */

/** What the engine's cells hold now. @type {import("./vendor/signals-core.mjs").Signal<(Runs & {window: (Runs & {seen: number}) | null, states: import("./cells-view.js").States | null}) | null>} */
const now = signal(/** @type {any} */ (null));
const unseen = signal(/** @type {any} */ (null));
const ROWS = 8;

async function look() {
  try {
    now.value = await get("/cells");
    unseen.value = null;
  } catch (error) {
    unseen.value = error;
  }
}

/** Runs cut where a row of the picture ends. @param {Runs} cells */
function rows({ size, runs }) {
  const width = Math.ceil(size / ROWS);
  /** @type {{at: number, cells: number, owner: number, owners: number}[][]} */
  const made = Array.from({ length: Math.ceil(size / width) }, () => []);
  for (const run of runs) {
    for (let at = run.at; at < run.at + run.cells; ) {
      const end = Math.min(run.at + run.cells, (Math.floor(at / width) + 1) * width);
      made[Math.floor(at / width)].push({ ...run, at, cells: end - at });
      at = end;
    }
  }
  return made;
}

/** Looks at the engine's cells twice a second while it is shown. */
class Live extends Component {
  componentDidMount() {
    look();
    this.timer = setInterval(() => document.hidden || look(), 500);
  }

  componentWillUnmount() {
    clearInterval(this.timer);
  }

  render() {
    return html`<${Engine} />`;
  }
}

/** @param {{cells: Runs}} props */
const Runs = ({ cells }) => html`<div class="strip" role="img" aria-label=${`${cells.size} cells: ${cells.summary}`}>
  ${rows(cells).map((row, i) => html`<div key=${i}>${row.map((run) => html`<span key=${run.at} class=${run.owner < 0 ? "free" : `o${run.owner % 8}${run.owners > 1 ? " shared" : ""}`} style=${{ flexGrow: String(run.cells) }}
    title=${`cells ${run.at} to ${run.at + run.cells - 1}: ${run.owner < 0 ? "free" : run.owners > 1 ? `${run.owners} sequences, the first is ${run.owner}` : `sequence ${run.owner}`}`}></span>`)}</div>`)}
</div>`;

const Engine = watched(function () {
  const cells = now.value;
  return html`<section aria-label="The engine's cells"><h2>The cells of ${WHO}, now ${cells && html`<small>${cells.summary}</small>`}</h2>
      <${Problem} error=${unseen.value} />
      ${cells && cells.size > 0 && html`<${Runs} cells=${cells} />`}
      <p class="quiet">What its requests use now, and the prefixes that it keeps. Write, and look again.</p></section>
    ${cells?.window && html`<section aria-label="The engine's window layers"><h2>Its window layers <small>a token sees the last ${cells.window.seen} positions; ${cells.window.summary}</small></h2><${Runs} cells=${cells.window} /></section>`}
    ${cells?.states && html`<${StateRows} states=${cells.states} />`}`;
});

const Form = watched(function () {
  const { takes, does } = VERBS[verb.value];
  return html`<form class="operation" onSubmit=${(/** @type {Event} */ e) => (e.preventDefault(), add())}>
    <div class="buttons" role="group" aria-label="Operation">${Object.keys(VERBS).map((name) => html`<button type="button" key=${name} class="verb" aria-pressed=${name === verb.value} title=${VERBS[name].does} onClick=${() => (verb.value = name)}>${name}</button>`)}</div>
    <p class="quiet">${verb.value}: ${does}.</p>
    <div class="row">
      ${takes.map(([label], i) => html`<label class="field" key=${`${verb.value} ${label}`}><span>${label.replace("?", " (may be empty)")}</span><input class="short" value=${fields[verb.value][i].value} onInput=${(/** @type {any} */ e) => (fields[verb.value][i].value = e.currentTarget.value)} /></label>`)}
      <button type="submit" class="primary">Do it</button>
    </div>
    <div class="buttons"><button type="button" disabled=${script.value.length < 2} onClick=${() => run(script.value.slice(0, -1))}>Take back</button>
      <button type="button" onClick=${() => run(["decode 0 12"])}>Begin anew</button>
      <button type="button" onClick=${() => run(EXAMPLE)}>Example</button>
      <button type="button" disabled=${frames.value.length < 2} onClick=${play}>${playing.value ? "Stop" : "Play"}</button></div>
    <${Problem} error=${failed.value} />
  </form>`;
});

/** The view. */
export const Cache = watched(function () {
  if (!frames.value.length && !failed.value) run(script.value);
  const at = shown.value;
  const frame = frames.value[at];
  return html`<div class="view cache">
    <${Form} />
    ${frame && html`<${Picture} frame=${frame} number=${at + 1} /><${Operations} frames=${frames.value} at=${at} onShow=${(/** @type {number} */ i) => (shown.value = i)} />`}
    <${Live} />
  </div>`;
});
