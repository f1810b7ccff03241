/** @file The page: views as tabs, and what is common to them. */

import { render } from "./vendor/preact.mjs";
import { effect, signal } from "./vendor/signals-core.mjs";
import { locked, online } from "./api.js";
import { Cache } from "./cache.js";
import { Chain, watching } from "./chain.js";
import { Compare } from "./compare.js";
import { Constrain } from "./constrain.js";
import { Reproduce, openAddress } from "./reproduce.js";
import { declared, known, load } from "./settings.js";
import { Problem, count, html, watched } from "./ui.js";
import { Write } from "./write.js";

/** @type {Record<string, {name: string, View: any}>} */
const VIEWS = {
  write: { name: "Write", View: Write },
  chain: { name: "Chain", View: Chain },
  compare: { name: "Compare", View: Compare },
  constrain: { name: "Constrain", View: Constrain },
  cache: { name: "Cache", View: Cache },
  reproduce: { name: "Reproduce", View: Reproduce },
};

const view = signal("write");
const failed = signal(/** @type {Error | null} */ (null));
const theme = signal(localStorage.getItem("aleator-theme") ?? "auto");

effect(() => {
  watching.value = view.value === "chain";
});
effect(() => {
  document.documentElement.dataset.theme = theme.value;
  localStorage.setItem("aleator-theme", theme.value);
});

async function start() {
  failed.value = null;
  try {
    const first = !declared.value;
    await load();
    if (first) failed.value = await openAddress();
  } catch (error) {
    failed.value = /** @type {Error} */ (error);
  }
}

/** @param {KeyboardEvent} e */
function onTabKey(e) {
  const names = Object.keys(VIEWS);
  const by = { ArrowRight: 1, ArrowLeft: -1 }[e.key];
  if (!by) return;
  e.preventDefault();
  view.value = names[(names.indexOf(view.value) + by + names.length) % names.length];
  requestAnimationFrame(() => document.getElementById(`tab-${view.value}`)?.focus());
}

const Head = watched(function () {
  const { model } = known();
  return html`<header class="head">
    <h1>Aleator <span>playground</span></h1>
    <nav role="tablist" aria-label="Views" class="tabs" onKeyDown=${onTabKey}>
      ${Object.entries(VIEWS).map(([key, { name }]) => {
        const mine = key === view.value;
        return html`<button type="button" role="tab" id=${`tab-${key}`} aria-selected=${mine} aria-controls="view" tabindex=${mine ? 0 : -1} onClick=${() => (view.value = key)}>${name}</button>`;
      })}
    </nav>
    <span class="model quiet" title=${`${model.architecture}, ${count(model.n_vocab)} tokens, ${count(model.n_ctx)} positions`}>${model.name}, ${(model.parameters / 1e6).toFixed(1)} M</span>
    <select aria-label="Colours" onChange=${(/** @type {any} */ e) => (theme.value = e.currentTarget.value)}>
      ${["auto", "light", "dark"].map((each) => html`<option value=${each} selected=${each === theme.value}>${each}</option>`)}
    </select>
  </header>`;
});

/** Asks for the key that the server wants. */
function Key() {
  const submit = (/** @type {any} */ e) => {
    e.preventDefault();
    sessionStorage.setItem("aleator-key", e.currentTarget.elements.key.value);
    start();
  };
  return html`<form class="key" onSubmit=${submit}>
    <label class="field"><span>This server wants an API key</span><input name="key" type="password" autocomplete="off" /></label>
    <button type="submit" class="primary">Use it</button>
  </form>`;
}

const Page = watched(function () {
  if (!declared.value) {
    if (locked.value) return html`<${Key} />`;
    return failed.value ? html`<div class="empty"><${Problem} error=${failed.value} /><button type="button" onClick=${start}>Try again</button></div>` : html`<p class="loading">Loading the playground…</p>`;
  }
  const { View, name } = VIEWS[view.value];
  return html`<${Head} />
    ${!online.value && html`<p class="problem offline" role="alert">The server does not answer. What is shown stays; <button type="button" class="link" onClick=${start}>try again</button></p>`}
    <${Problem} error=${failed.value} />
    <main><div id="view" role="tabpanel" aria-label=${name}><${View} /></div></main>`;
});

const app = /** @type {HTMLElement} */ (document.getElementById("app"));
app.replaceChildren();
render(html`<${Page} />`, app);
start();
