/** @file A text as tokens: shaded, with the likely tokens on hover, and one of them open. */

import { Component } from "./vendor/preact.mjs";
import { signal } from "./vendor/signals-core.mjs";
import { alone, completed, inText, joins, together } from "./token.js";
import { html, percent, watched } from "./ui.js";

/** @typedef {import("./text.js").Step} Step */

/** What the shade means, by name: a step's shade from 0 to 1. @type {Record<string, {label: string, low: string, high: string, shade: (step: Step) => number}>} */
export const SHADES = {
  surprise: { label: "surprise", low: "expected", high: "10 bits and more", shade: (s) => -Math.log2(Math.max(s.before, 2 ** -10)) / 10 },
  probability: { label: "probability", low: "0 %", high: "100 %", shade: (s) => s.before },
  entropy: { label: "entropy", low: "certain", high: "8 bits and more", shade: (s) => Math.min(1, s.entropy / 8) },
  left: { label: "choices left", low: "1", high: "256 and more", shade: (s) => Math.min(1, Math.log2(Math.max(1, s.left)) / 8) },
  none: { label: "nothing", low: "", high: "", shade: () => 0 },
};

/** Which of them is chosen. */
export const shading = signal("surprise");

const CHUNK = 64;

/**
 * Where the parts of a text begin that are laid out by themselves: at a line break, after so many tokens at least.
 * A browser leaves out the parts that cannot be seen.  Kept for each list of steps, which only grows.
 * @type {WeakMap<Step[], {ends: number[], upto: number}>}
 */
const parts = new WeakMap();

/** Ends of the parts of the first ``length`` steps. @param {Step[]} steps @param {number} length */
function ends(steps, length) {
  const known = parts.get(steps) ?? { ends: [], upto: 0 };
  parts.set(steps, known);
  for (; known.upto < length; known.upto++) {
    const begin = known.ends.at(-1) ?? 0;
    if (known.upto + 1 - begin >= CHUNK && inText(steps[known.upto].token).endsWith("\n")) known.ends.push(known.upto + 1);
  }
  const made = known.ends.filter((end) => end < length);
  return [...made, length];
}

/** The token under the pointer, and where. */
const hovered = signal(/** @type {{step: Step, x: number, y: number} | null} */ (null));

/**
 * One token.
 * @param {string} id  of the text
 * @param {number} i
 * @param {string} name  its classes
 * @param {Step} step
 * @param {string} whole  the character that it completes
 * @returns {any[]}  no empty text among them: Preact would write it again every time
 */
function token(id, i, name, step, whole) {
  const text = inText(step.token);
  const body = text.replace(/\n+$/, "");
  const breaks = text.length - body.length;
  const shown = html`<span key=${i} id=${`${id}-${i}`} class=${name} data-i=${i} role="option" aria-selected=${/ open\b/.test(name)} aria-label=${body === "" ? (breaks ? "line break" : "empty token") : undefined}
    >${body || null}${whole ? html`<i class="mark whole">${whole}</i>` : null}${breaks > 0 && html`<i class="mark">${"↵".repeat(breaks)}</i>`}${text === "" && html`<i class="mark">∅</i>`}</span
  >`;
  return [shown, ...Array.from({ length: breaks }, (_, n) => html`<br key=${`${i} ${n}`} />`)];
}

/** So many tokens are drawn together, and left alone while they do not change. */
class Chunk extends Component {
  /** @param {any} next */
  shouldComponentUpdate(next) {
    const mine = this.props;
    return ["steps", "end", "shade", "marks", "open", "id"].some((name) => mine[name] !== next[name]);
  }

  /** @param {any} props */
  render({ steps, begin, end, shade, marks, open, id }) {
    const shown = [];
    const named = marks.split("|");
    for (let i = begin; i < end; i++) {
      const step = steps[i];
      const mark = named[i - begin] ?? "";
      const level = step.before === null ? 0 : Math.round(16 * Math.max(0, Math.min(1, SHADES[shade].shade(step))));
      const name = `t s${level}${step.picked ? " picked" : ""}${i === open ? " open" : ""}${mark}${joins(step.token) ? " joins" : ""}${step.token.special ? " special" : ""}${step.token.text === null ? " bytes" : ""}`;
      shown.push(...token(id, i, name, step, completed(steps, i)));
    }
    return html`<span class="chunk">${shown}</span>`;
  }
}

/** A part of a text: chunks in one flow. */
class Part extends Component {
  /** @param {any} next */
  shouldComponentUpdate(next) {
    const mine = this.props;
    return ["steps", "end", "shade", "marks", "open", "id", "prompt", "caret"].some((name) => mine[name] !== next[name]);
  }

  /** @param {any} props */
  render({ steps, begin, end, shade, marks, open, id, prompt, caret }) {
    const chunks = [];
    const named = marks.split("|");
    for (let from = begin; from < end; from += CHUNK) {
      const to = Math.min(end, from + CHUNK);
      chunks.push(html`<${Chunk} key=${from} ...${{ id, steps, shade }} begin=${from} end=${to} marks=${named.slice(from - begin, to - begin).join("|")} open=${from <= open && open < to ? open : -1} />`);
    }
    return html`<div class="part">${prompt && html`<span class="prompt" role="presentation">${together(prompt).map((each) => (typeof each === "string" ? each : html`<i class="mark special">${inText(each)}</i>`))}</span>`}${chunks}${caret && html`<span class="caret" aria-hidden="true"></span>`}</div>`;
  }
}

/**
 * The prompt, and the tokens after it.
 * @param {{id: string, label: string, prompt: import("./token.js").Token[], steps: Step[], length: number, open: number, onOpen: (step: number) => void, marks?: (step: Step, i: number) => string, shade?: string, writing?: boolean}} props
 */
export const TextView = watched(function ({ id, label, prompt, steps, length, open, onOpen, marks, shade, writing }) {
  const chosen = shade ?? shading.value;
  const shown = [];
  let begin = 0;
  for (const end of ends(steps, length)) {
    const named = marks ? steps.slice(begin, end).map((/** @type {Step} */ step, /** @type {number} */ i) => marks(step, begin + i)).join("|") : "";
    shown.push(html`<${Part} key=${begin} ...${{ id, steps, begin, end, shade: chosen }} marks=${named} open=${begin <= open && open < end ? open : -1} prompt=${begin === 0 ? prompt : null} caret=${writing && end === length} />`);
    begin = end;
  }
  /** @param {any} event */
  const at = (event) => {
    const found = event.target.closest?.("[data-i]");
    return found ? Number(found.dataset.i) : -1;
  };
  /** @param {KeyboardEvent} event */
  const onKeyDown = (event) => {
    const last = length - 1;
    const from = open < 0 ? (event.key === "ArrowLeft" ? length : -1) : open;
    const to = { ArrowRight: from + 1, ArrowLeft: from - 1, ArrowDown: from + 10, ArrowUp: from - 10, Home: 0, End: last }[event.key];
    if (event.key === "Escape") onOpen(-1);
    if (to === undefined || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    const next = Math.max(0, Math.min(last, to));
    onOpen(next);
    document.getElementById(`${id}-${next}`)?.scrollIntoView({ block: "nearest" });
  };
  return html`<div class="text shade-${chosen}" tabindex="0" role="listbox" aria-label=${label} aria-busy=${Boolean(writing)}
      aria-activedescendant=${open >= 0 ? `${id}-${open}` : undefined}
      onKeyDown=${onKeyDown}
      onClick=${(/** @type {any} */ e) => at(e) >= 0 && onOpen(at(e))}
      onPointerOver=${(/** @type {any} */ e) => {
        const i = at(e);
        hovered.value = i < 0 || e.pointerType === "touch" ? null : { step: steps[i], x: e.clientX, y: e.target.getBoundingClientRect().bottom };
      }}
      onPointerLeave=${() => (hovered.value = null)}>
${shown}
    </div>`;
});

/** The likely tokens of the step under the pointer. */
export const Hover = watched(function () {
  const at = hovered.value;
  if (!at) return null;
  const { step } = at;
  const scale = Math.max(...step.top.map((each) => Math.max(each.before, each.after)), 1e-9);
  const place = {
    left: `${Math.min(at.x, innerWidth - 300)}px`,
    top: at.y + 270 > innerHeight ? "auto" : `${at.y + 6}px`,
    bottom: at.y + 270 > innerHeight ? `${innerHeight - at.y + 26}px` : "auto",
  };
  return html`<div class="hover" style=${place} aria-hidden="true">
    ${step.before === null ? html`<p>The logits of this step are not kept any more.</p>` : ""}
    <p><b class="piece">${alone(step.token)}</b> ${percent(step.before)} → ${percent(step.after)} · ${step.entropy?.toFixed(2) ?? "–"} bits · ${step.left ?? "–"} left</p>
    <table>
      ${step.top.slice(0, 8).map(
        (each) => html`<tr class=${each.token.id === step.token.id ? "drawn" : ""}>
          <td class="piece">${alone(each.token, 14)}</td>
          <td class="bars"><i class="ghost" style=${{ width: `${(100 * each.before) / scale}%` }}></i><i class="bar" style=${{ width: `${(100 * each.after) / scale}%` }}></i></td>
          <td class="number">${percent(each.after)}</td>
        </tr>`,
      )}
    </table>
  </div>`;
});

/** What shades mean. */
export const Legend = watched(function () {
  const { low, high } = SHADES[shading.value];
  if (!low) return null;
  return html`<span class="legend shade-${shading.value}" aria-hidden="true">${low} ${[0, 4, 8, 12, 16].map((level) => html`<i class="t s${level}"> </i>`)} ${high}</span>`;
});
