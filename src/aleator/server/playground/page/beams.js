/** @file The view Beams: a search step by step, and the texts that it found. */

import { signal } from "./vendor/signals-core.mjs";
import { stream } from "./api.js";
import { Control } from "./parameters.js";
import { Settings, known, main } from "./settings.js";
import { alone, inText, together } from "./token.js";
import { Choice, Problem, count, html, watched } from "./ui.js";
import { Beginning, beginning, seed } from "./write.js";

/**
 * @typedef {import("./token.js").Token} Token
 * @typedef {{parent: number, token: Token, logprob: number, order: number, done: boolean}} Grown  a beam that a step left
 * @typedef {{tokens: Token[], logprob: number, score: number, stop_reason: string}} Found  a text
 * @typedef {{steps: Grown[][], texts: Found[], reason: string, seed: number, stochastic: boolean, seconds?: number, computed?: number, reused?: number}} Search
 */

const settings = new Settings("beams");
/** Whose probabilities: those of the "model", or of the "chain" of the view Chain. */
const samplers = signal("model");
const most = signal(12);
const search = signal(/** @type {Search | null} */ (null));
/** The text whose way is marked. */
const chosen = signal(0);
const failed = signal(/** @type {any} */ (null));
let abort = new AbortController();

/** @param {number | null} drawn  seed */
async function run(drawn) {
  abort.abort();
  const mine = (abort = new AbortController()).signal;
  failed.value = search.value = null;
  chosen.value = 0;
  const sampling = samplers.value === "chain" ? main.asked() : {};
  const asked = { ...sampling, ...settings.changes.value, ...(drawn === null ? {} : { seed: drawn }), ...beginning(), max_tokens: most.value };
  /** @type {Search} */
  let now = { steps: [], texts: [], reason: "", seed: 0, stochastic: Boolean(settings.value("stochastic")) };
  try {
    for await (const line of stream("/beams", asked, mine)) {
      if (mine.aborted) return;
      search.value = now = line.event === "step" ? { ...now, steps: [...now.steps, line.beams] } : { ...now, ...line };
    }
  } catch (error) {
    if (mine.aborted) return;
    failed.value = error;
    end("error");
  }
}

/** @param {string} reason */
function end(reason) {
  if (search.value) search.value = { ...search.value, reason };
}

function stop() {
  abort.abort();
  end("stopped");
}

/** What a link says of this view. */
export const searched = {
  /** Whether there is anything to say. */
  get made() {
    return Boolean(search.value?.reason);
  },
  get state() {
    const found = search.value;
    return { options: settings.changes.value, samplers: samplers.value, tokens: most.value, ...(found?.reason ? { seed: found.seed, way: chosen.value } : {}) };
  },
  /** @param {any} state */
  async restore(state) {
    settings.changes.value = { ...state.options };
    samplers.value = state.samplers ?? "model";
    most.value = state.tokens ?? most.value;
    if (state.seed === undefined) return;
    await run(state.seed);
    chosen.value = state.way ?? 0;
  },
};

/** The place of a text at each step. @param {Grown[][]} steps @param {Token[]} tokens */
function way(steps, tokens) {
  let at = 0;
  return tokens.map(({ id }, i) => (at = steps[i].findIndex((beam) => beam.token.id === id && beam.parent === at)));
}

/** @param {{steps: Grown[][], over: boolean, marked: number[], order: string}} props  ``marked``: a place at each step */
function Steps({ steps, over, marked, order }) {
  const widest = Math.max(...steps.map((beams) => beams.length));
  return html`<div class="stages" tabindex="0" role="region" aria-label="Beams of each step">
    <table>
      <thead><tr><th scope="col">step</th>${Array.from({ length: widest }, (_, place) => html`<th scope="col" key=${place}>beam ${place + 1}</th>`)}</tr></thead>
      <tbody>${steps.map((beams, i) => {
        const next = steps[i + 1];
        return html`<tr key=${i}><th scope="row">${i}</th>${beams.map((beam, place) => {
          const gone = !beam.done && (next ? !next.some((each) => each.parent === place) : over);
          return html`<td key=${place} class=${`${marked[i] === place ? "way" : ""} ${gone ? "gone" : ""}`}>
            <span class="piece">${alone(beam.token, 16)}</span>${beam.done && html`<span class="tag">complete</span>`}${marked[i] === place && html`<span class="tag plain">chosen</span>`}
            <small>${i > 0 && `from ${beam.parent + 1}, `}${beam.logprob.toFixed(2)}, ${beam.done ? "score" : order} ${beam.order.toFixed(2)}${gone ? ", given up" : ""}</small></td>`;
        })}</tr>`;
      })}</tbody>
    </table>
  </div>`;
}

const Result = watched(function () {
  const found = search.value;
  if (!found) return html`<p class="empty">Search, and see which beams each step keeps, where they come from, and which are given up.</p>`;
  const { steps, texts, reason, stochastic } = found;
  const marked = texts[chosen.value] ? way(steps, texts[chosen.value].tokens) : [];
  return html`<section aria-label="Search">
    <p class="quiet" role="status">${reason ? `${steps.length} steps, ${texts.length} ${texts.length === 1 ? "text" : "texts"}; ended by: ${reason}; seed ${found.seed}` : "Searching…"}${found.seconds !== undefined && `; prompt: ${found.computed} computed, ${found.reused} from the cache; ${found.seconds.toFixed(2)} s`}</p>
    ${texts.length > 0 && html`<h2>Texts, the best first</h2>
      <ol class="found">${texts.map((each, i) => html`<li key=${i}>
        <button type="button" class="link" aria-pressed=${i === chosen.value} onClick=${() => (chosen.value = i)}>${i + 1}. score ${each.score.toFixed(4)}</button>
        <span class="quiet">log-probability ${each.logprob.toFixed(4)}, ${count(each.tokens.length)} tokens, ended by: ${each.stop_reason}</span>
        <p class="text" dir="auto">${together(each.tokens).map((part) => (typeof part === "string" ? part : html`<i class="mark special">${inText(part)}</i>`))}</p></li>`)}</ol>`}
    ${steps.length > 0 && html`<h2>Beams of each step</h2>
      <${Steps} steps=${steps} over=${Boolean(reason)} marked=${marked} order=${stochastic ? "score" : "sum"} />
      <p class="quiet">A cell has a beam's last token, the beam of the step above that it goes on from, the token's log-probability, and what beams are compared by: ${stochastic ? "the best score of all texts that go on from it, each text's log-probability plus its noise" : "the sum of log-probabilities, or once the text is complete its score"}.</p>`}
  </section>`;
});

/** The view.  Its buttons are two: were one to become the other, a click that stops would search anew. */
export const Beams = watched(function () {
  const error = failed.value;
  const { beams, model } = known();
  const running = search.value !== null && !search.value.reason;
  return html`<div class="view beams columns">
    <form class="side" onSubmit=${(/** @type {Event} */ e) => (e.preventDefault(), run(seed.value))}>
      <${Beginning} label="Prompt" />
      <div class="row">
        <label class="field"><span>Tokens</span><input type="number" min="1" max=${model.n_ctx} value=${most.value} onInput=${(/** @type {any} */ e) => (most.value = Math.max(1, Number(e.currentTarget.value) || 1))} /></label>
        <label class="field"><span>Seed, for stochastic</span><input type="number" min="-1" step="1" value=${seed.value ?? ""} placeholder="random" onInput=${(/** @type {any} */ e) => (seed.value = e.currentTarget.value === "" ? null : Number(e.currentTarget.value))} /></label>
        <${Choice} label="Probabilities" value=${samplers.value} options=${[["model", "of the model"], ["chain", `of the chain: ${main.words}`]]} onChange=${(/** @type {string} */ v) => (samplers.value = v)} hint="the view Chain changes the chain" />
      </div>
      <div class="row">${running ? html`<button key="stop" type="button" class="primary" onClick=${stop}>Stop</button>` : html`<button key="search" type="submit" class="primary">Search</button>`}</div>
      <div>${Object.keys(beams).map((name) => html`<${Control} key=${name} settings=${settings} name=${name} error=${error} />`)}</div>
      ${error && !(error.param in beams) && html`<${Problem} error=${error} />`}
    </form>
    <div class="main"><${Result} /></div>
  </div>`;
});
