/** @file The samplers of a chain as cards in order, moved by drag and by keyboard. */

import { Component } from "./vendor/preact.mjs";
import { Control } from "./parameters.js";
import { known } from "./settings.js";
import { html, watched } from "./ui.js";

/** @typedef {import("./settings.js").Settings} Settings */

/**
 * @param {string[]} order
 * @param {number} from
 * @param {number} to
 */
function moved(order, from, to) {
  const next = [...order];
  const [name] = next.splice(from, 1);
  next.splice(to, 0, name);
  return next;
}

/** The handle of a card: dragged with any pointer, or moved with the arrow keys. */
class Handle extends Component {
  /** @param {any} props */
  render({ settings, name }) {
    const handle = `handle-${settings.name}${name}`;
    const place = () => settings.order.indexOf(name);
    const move = (/** @type {number} */ to) => {
      const order = settings.order;
      if (to >= 0 && to < order.length && to !== place()) settings.reorder(moved(order, place(), to));
    };
    /** @param {KeyboardEvent} e */
    const onKeyDown = (e) => {
      const by = { ArrowUp: -1, ArrowLeft: -1, ArrowDown: 1, ArrowRight: 1 }[e.key];
      if (!by) return;
      e.preventDefault();
      move(place() + by);
      requestAnimationFrame(() => document.getElementById(handle)?.focus());
    };
    /** @param {any} e */
    const onPointerMove = (e) => {
      if (!e.currentTarget.hasPointerCapture(e.pointerId)) return;
      for (const card of e.currentTarget.closest(".cards").querySelectorAll("[data-sampler]")) {
        const box = card.getBoundingClientRect();
        const inside = e.clientX >= box.left && e.clientX <= box.right && e.clientY >= box.top && e.clientY <= box.bottom;
        if (inside) move(settings.order.indexOf(/** @type {HTMLElement} */ (card).dataset.sampler));
      }
    };
    return html`<button type="button" class="handle" id=${handle} aria-label=${`Move ${name}: arrow keys, or drag`} title="drag, or arrow keys"
      onKeyDown=${onKeyDown} onPointerDown=${(/** @type {any} */ e) => e.currentTarget.setPointerCapture(e.pointerId)} onPointerMove=${onPointerMove}>⠿</button>`;
  }
}

const Card = watched(function (/** @type {{settings: Settings, name: string, place: number, neutral: boolean, error: any}} */ { settings, name, place, neutral, error }) {
  const sampler = known().samplers.find((s) => s.name === name);
  if (!sampler) return null;
  const names = sampler.parameters.filter((p) => p !== "seed" && p !== "draw");
  return html`<li class="card ${neutral ? "neutral" : ""}" data-sampler=${name}>
    <div class="card-head"><${Handle} settings=${settings} name=${name} /><h3><span class="place">${place + 1}</span> ${name}</h3>
      ${neutral && html`<span class="tag plain">does nothing</span>`}
      <button type="button" class="small" aria-label=${`Take ${name} out`} title="take it out of the chain" onClick=${() => settings.reorder(settings.order.filter((n) => n !== name))}>✕</button>
    </div>
    <p class="quiet">${sampler.summary}</p>
    <${Folded} open=${!neutral || names.some((p) => p === error?.param)} label=${names.join(", ")}>
      ${names.map((p) => html`<${Control} key=${p} settings=${settings} name=${p} error=${error} />`)}
    <//>
  </li>`;
});

/** What a sampler that does nothing hides; opened once it does something, and never closed by itself. */
class Folded extends Component {
  /** @param {any} props @param {any} state */
  static getDerivedStateFromProps({ open }, { open: was }) {
    return { open: was || open };
  }

  /** @param {any} props @param {any} state */
  render({ label, children }, { open }) {
    return html`<details open=${open} onToggle=${(/** @type {any} */ e) => this.setState({ open: e.currentTarget.open })}><summary>${label}</summary>${children}</details>`;
  }
}

/** Parameters of the end of the chain, and of the whole of it. */
const LAST = ["mirostat", "draw", "ignore_eos", "numerics", "phases"];

/** What stands before the order when it is asked for. */
const FIRST = ["logit_bias", "bad_words", "no_repeat_ngram_size", "min_tokens", "allowed_token_ids"];

/**
 * All cards.
 * @param {{settings: Settings, active: Set<string>, error: any}} props
 */
export const Cards = watched(function ({ settings, active, error }) {
  const order = settings.order;
  const { samplers, parameters } = known();
  const absent = samplers.filter((s) => s.ordered && !order.includes(s.name));
  const add = (/** @type {any} */ e) => {
    if (e.currentTarget.value) settings.reorder([...order, e.currentTarget.value]);
    e.currentTarget.value = "";
  };
  const mirostat = settings.value("mirostat") ? ["mirostat_tau", "mirostat_eta"] : [];
  const there = (/** @type {string} */ name) => name in parameters;
  return html`<ol class="cards" aria-label="Samplers in order">
    ${order.map((name, place) => html`<${Card} key=${name} settings=${settings} name=${name} place=${place} neutral=${!active.has(name)} error=${error} />`)}
    <li class="card end"><div class="card-head"><h3>then the draw</h3></div>
      ${[...LAST, ...mirostat].filter(there).map((p) => html`<${Control} key=${p} settings=${settings} name=${p} error=${error} />`)}
    </li>
    <li class="card end"><div class="card-head"><h3>before all of them</h3></div>
      ${FIRST.filter(there).map((p) => html`<${Control} key=${p} settings=${settings} name=${p} error=${error} />`)}
    </li>
    <li class="card add"><label class="field"><span>Add a sampler</span><select onChange=${add}><option value="">choose…</option>
      ${absent.map((s) => html`<option value=${s.name}>${s.name}: ${s.summary}</option>`)}</select></label></li>
  </ol>`;
});
