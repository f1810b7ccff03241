/** @file The view Cache: cells as a picture after each operation on a context of its own. */

import { Component } from "./vendor/preact.mjs";
import { signal } from "./vendor/signals-core.mjs";
import { get, post } from "./api.js";
import { Choice, Problem, count, html, watched } from "./ui.js";

/**
 * @typedef {object} Frame
 * @property {string} operation
 * @property {number[]} owner  each cell's lowest owner; -1: free
 * @property {number[]} owners  how many it has
 * @property {number[]} positions
 * @property {number[]} shifts
 * @property {{seq: number, cells: number, low: number, high: number, runs: number}[]} sequences
 * @property {string} summary
 * @property {number} computed  tokens
 * @property {number} milliseconds
 */

const EXAMPLE = ["decode 0 20", "fork 0 1", "fork 0 2", "decode 0,1,2 8", "rm 1", "slide 0 4", "decode 0,2 4", "rm 2", "defrag"];

const script = signal(EXAMPLE);
const frames = signal(/** @type {Frame[]} */ ([]));
const shown = signal(EXAMPLE.length - 1);
const failed = signal(/** @type {any} */ (null));
const playing = signal(false);
const verb = signal("decode");
const first = signal("0");
const second = signal("8");

/** What each verb takes: the labels of its numbers, and what it does. @type {Record<string, {takes: string[], does: string}>} */
const VERBS = {
  decode: { takes: ["sequences", "tokens"], does: "tokens of each sequence, one after the other" },
  fork: { takes: ["from", "to"], does: "the second sequence shares the first one's cells" },
  rm: { takes: ["sequence", "from position"], does: "remove positions to the end" },
  slide: { takes: ["sequence", "keep"], does: "forget half of what follows the first positions, move up the rest" },
  keep: { takes: ["sequence"], does: "remove every other sequence" },
  defrag: { takes: [], does: "fill holes with the last cells" },
  clear: { takes: [], does: "remove everything" },
};

let turn = 0;

/** @param {string[]} next */
async function run(next) {
  const mine = ++turn;
  try {
    const found = await post("/cache", { script: next });
    if (mine !== turn) return;
    frames.value = found.frames;
    failed.value = found.error;
    script.value = next.slice(0, found.frames.length);
    shown.value = found.frames.length - 1;
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
  const numbers = VERBS[verb.value].takes.length;
  run([...script.value, [verb.value, ...[first.value, second.value].slice(0, numbers)].join(" ").trim()]);
}

/** @param {{frame: Frame}} props */
const Cells = ({ frame }) => html`<div class="cells" role="img" aria-label=${`${frame.owner.length} cells: ${frame.summary}`}>
  ${frame.owner.map((owner, i) => {
    const n = frame.owners[i];
    const name = owner < 0 ? "free" : `o${owner % 8}${n > 1 ? " shared" : ""}${frame.shifts[i] ? " rotates" : ""}`;
    const told = owner < 0 ? `cell ${i}: free` : `cell ${i}: position ${frame.positions[i]}, ${n > 1 ? `${n} sequences, the first is ${owner}` : `sequence ${owner}`}${frame.shifts[i] ? `, its key is to be rotated by ${frame.shifts[i]}` : ""}`;
    return html`<span key=${i} class="cell ${name}" title=${told}>${owner < 0 ? "" : frame.positions[i]}</span>`;
  })}
</div>`;

/** What the engine's cells hold now. @type {import("./vendor/signals-core.mjs").Signal<{size: number, runs: {at: number, cells: number, owner: number, owners: number}[], sequences: any[], summary: string} | null>} */
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

/** Runs cut where a row of the picture ends. @param {{size: number, runs: {at: number, cells: number, owner: number, owners: number}[]}} cells */
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

const Engine = watched(function () {
  const cells = now.value;
  return html`<section aria-label="The engine's cells"><h2>The server's own cells, now ${cells && html`<small>${cells.summary}</small>`}</h2>
    <${Problem} error=${unseen.value} />
    ${cells && html`<div class="strip" role="img" aria-label=${`${cells.size} cells: ${cells.summary}`}>
      ${rows(cells).map((row, i) => html`<div key=${i}>${row.map((run) => html`<span key=${run.at} class=${run.owner < 0 ? "free" : `o${run.owner % 8}${run.owners > 1 ? " shared" : ""}`} style=${{ flexGrow: String(run.cells) }}
        title=${`cells ${run.at} to ${run.at + run.cells - 1}: ${run.owner < 0 ? "free" : run.owners > 1 ? `${run.owners} sequences, the first is ${run.owner}` : `sequence ${run.owner}`}`}></span>`)}</div>`)}
    </div>`}
    <p class="quiet">All requests of this server and the prefixes that it caches. Write in another tab, and see them move.</p></section>`;
});

/** The view. */
export const Cache = watched(function () {
  if (!frames.value.length && !failed.value) run(script.value);
  const at = shown.value;
  const frame = frames.value[at];
  const { takes, does } = VERBS[verb.value];
  const fields = [first, second];
  return html`<div class="view cache">
    <form class="row" onSubmit=${(/** @type {Event} */ e) => (e.preventDefault(), add())}>
      <${Choice} label="Operation" value=${verb.value} options=${Object.keys(VERBS)} onChange=${(/** @type {string} */ v) => (verb.value = v)} />
      ${takes.map((label, i) => html`<label class="field"><span>${label}</span><input class="short" inputmode="numeric" value=${fields[i].value} onInput=${(/** @type {any} */ e) => (fields[i].value = e.currentTarget.value)} /></label>`)}
      <span class="buttons"><button type="submit" class="primary">Do it</button>
        <button type="button" disabled=${script.value.length < 2} onClick=${() => run(script.value.slice(0, -1))}>Take back</button>
        <button type="button" onClick=${() => run(["decode 0 12"])}>Begin anew</button>
        <button type="button" onClick=${() => run(EXAMPLE)}>Example</button>
        <button type="button" disabled=${frames.value.length < 2} onClick=${play}>${playing.value ? "Stop" : "Play"}</button></span>
    </form>
    <p class="quiet">${verb.value}: ${does}.</p>
    <${Problem} error=${failed.value} />
    ${frame &&
    html`<section aria-label="Cells"><h2>${at + 1}. ${frame.operation} <small>${frame.summary}; ${count(frame.computed)} tokens computed in ${frame.milliseconds.toFixed(1)} ms</small></h2>
        <${Cells} frame=${frame} />
        <p class="legend-row quiet">A cell shows its position. <span class="cell o0">0</span> one sequence <span class="cell o0 shared">0</span> shared <span class="cell o0 rotates">0</span> key still to be rotated <span class="cell free"></span> free</p>
        <table class="sequences"><thead><tr><th scope="col">sequence</th><th scope="col">cells</th><th scope="col">positions</th><th scope="col">runs</th></tr></thead>
          <tbody>${frame.sequences.map((s) => html`<tr><th scope="row"><span class="cell o${s.seq % 8}">${s.seq}</span></th><td>${s.cells}</td><td>${s.low} to ${s.high}</td><td>${s.runs}</td></tr>`)}</tbody></table></section>
      <ol class="steps" aria-label="Operations">${frames.value.map((each, i) => html`<li key=${i}><button type="button" class=${i === at ? "link current" : "link"} aria-current=${i === at} onClick=${() => (shown.value = i)}>${i + 1}. ${each.operation}</button></li>`)}</ol>`}
    <${Live} />
  </div>`;
});
