/** @file A live picture: a chain over one row of logits, with sliders, what each sampler leaves, and a thousand draws. */

import { render } from "./vendor/preact.mjs";
import { signal } from "./vendor/signals-core.mjs";
import { Chain } from "./aleator/index.js";
import known from "./declared.js";
import { Histogram } from "./draws.js";
import { draws, explain } from "./engine/explain.js";
import { Control } from "./parameters.js";
import row from "./row.js";
import { Settings, declared } from "./settings.js";
import { StepView } from "./step-view.js";
import { Problem, html, watched } from "./ui.js";

const DRAWS = 1000;
const ROWS = 8;

declared.value = known;
const given = JSON.parse(new URLSearchParams(location.search).get("chain") ?? "{}");
const settings = new Settings("live");
settings.preset.value = "neutral";
settings.changes.value = given;
const seed = signal(1);

const logits = Float32Array.from(row.logits);
/** @param {number} id */
const token = (id) => row.tokens[id];
/** Parameters with a slider, a switch or a choice. */
const names = Object.keys(given).filter((name) => known.parameters[name].slider || known.parameters[name].choices.length || known.parameters[name].type === "bool");

/** What the chain does; or the error that says why it cannot be. */
function tried() {
  const { preset, ...parameters } = settings.asked(seed.value);
  try {
    const chain = new Chain(parameters, { preset });
    chain.acceptAll(row.prompt);
    const made = { step: { step: 0, token: null, picked: false, ...explain(chain, logits, ROWS, token) }, found: draws(chain, logits, DRAWS, token) };
    chain.free();
    return made;
  } catch (error) {
    return { error: /** @type {any} */ ({ message: error.message, param: /^\w+/.exec(error.message)?.[0] }) };
  }
}

const Live = watched(function () {
  const { step, found, error } = tried();
  return html`<h1>Samplers at work</h1><p class="quiet">After <span class="piece">${row.text}</span>, by the small model that comes with the package. Computed in this page.</p>
    <div class="live-controls">${names.map((name) => html`<${Control} key=${name} settings=${settings} name=${name} error=${error} />`)}
      <button type="button" onClick=${() => seed.value++}>Draw with another seed</button></div>
    ${!names.includes(error?.param) && html`<${Problem} error=${error} />`}
    ${step && html`<div aria-live="polite"><${StepView} step=${step} rows=${ROWS} /></div><${Histogram} found=${found} />`}`;
});

const place = /** @type {HTMLElement} */ (document.getElementById("live"));
place.replaceChildren();
render(html`<${Live} />`, place);
