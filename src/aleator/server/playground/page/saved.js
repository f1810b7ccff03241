/** @file A recorded text in a file of its own: the tokens and every step, without a server. */

import { render } from "./vendor/preact.mjs";
import { effect, signal } from "./vendor/signals-core.mjs";
import { StepView } from "./step-view.js";
import { Hover, Legend, SHADES, TextView, shading } from "./text-view.js";
import { alone } from "./token.js";
import { Choice, html, percent, watched } from "./ui.js";

/**
 * @typedef {object} Saved
 * @property {string} model
 * @property {string} cli
 * @property {{prompt: import("./token.js").Token[], seed: number, chain: string}} start
 * @property {import("./texts.js").Step[]} steps
 * @property {import("./step-view.js").FullStep[]} full
 * @property {string} reason
 */

/** @type {Saved} */
const saved = JSON.parse(document.getElementById("record")?.textContent ?? "{}");
const opened = signal(saved.steps.length ? 0 : -1);
const theme = signal("auto");

effect(() => {
  document.documentElement.dataset.theme = theme.value;
});

const Page = watched(function () {
  const at = opened.value;
  const step = saved.steps[at];
  return html`<header class="head"><h1>Aleator <span>recorded text</span></h1>
      <span class="model quiet">${saved.model}; seed ${saved.start.seed}</span>
      <select aria-label="Colours" onChange=${(/** @type {any} */ e) => (theme.value = e.currentTarget.value)}>${["auto", "light", "dark"].map((each) => html`<option value=${each}>${each}</option>`)}</select></header>
    <main class="view">
      <div><div class="bar-row"><${Choice} label="Shade by" value=${shading.value} options=${Object.entries(SHADES).map(([key, each]) => /** @type {[string, string]} */ ([key, each.label]))} onChange=${(/** @type {string} */ v) => (shading.value = v)} /><${Legend} /></div>
      <${TextView} id="main" label=${`${saved.steps.length} tokens; arrow keys open steps`} prompt=${saved.start.prompt} steps=${saved.steps} length=${saved.steps.length} open=${at} onOpen=${(/** @type {number} */ i) => (opened.value = i)} />
      <p class="quiet status">${saved.steps.length} tokens, ended by: ${saved.reason}. ${saved.start.chain}</p></div>
      ${step && html`<section class="opened"><h2>Step ${at}: <span class="piece">${alone(step.token)}</span> <small>${percent(step.before)} of the model, ${percent(step.after)} after the chain</small></h2>
        <${StepView} step=${saved.full[at]} /></section>`}
      <${Hover} />
    </main>`;
});

const app = /** @type {HTMLElement} */ (document.getElementById("app"));
app.replaceChildren();
render(html`<${Page} />`, app);
