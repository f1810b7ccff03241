/** @file What every sampler did over a whole text: entropies, masses that were cut or moved, and choices left. */

import { Strip } from "./strip.js";
import { html, percent } from "./ui.js";

/** @typedef {import("./text.js").Step} Step */

/** @param {(number | null)[]} values */
function mean(values) {
  const known = /** @type {number[]} */ (values.filter((value) => value !== null));
  return known.reduce((sum, value) => sum + value, 0) / Math.max(known.length, 1);
}

/** Rows of the picture. @param {Step[]} steps */
function rows(steps) {
  const known = steps.filter((step) => step.before !== null);
  const bits = (/** @type {number} */ value) => `${value.toFixed(2)} bits`;
  const entropy = steps.map((step) => (step.before === null ? null : step.entropy));
  const after = steps.map((step) => (step.before === null ? null : step.entropy_after));
  const most = Math.max(1, ...entropy.map((value) => value ?? 0), ...after.map((value) => value ?? 0));
  const made = [
    { label: "entropy of the model", values: entropy, most, say: bits },
    { label: "entropy after the chain", values: after, most, say: bits },
  ];
  const names = new Set(known.flatMap((step) => step.stages.map((stage) => stage.name)));
  for (const name of names) {
    for (const [what, word] of /** @type {const} */ ([["cut", "mass cut"], ["moved", "mass moved"]])) {
      const values = steps.map((step) => step.stages.find((stage) => stage.name === name)?.[what] ?? null);
      if (values.some((value) => (value ?? 0) > 0)) made.push({ label: `${name}: ${word}`, values, most: 1, say: percent });
    }
  }
  const left = steps.map((step) => (step.before === null ? null : Math.log2(Math.max(1, step.left))));
  made.push({ label: "tokens left (logarithm)", values: left, most: Math.max(1, ...left.map((value) => value ?? 0)), say: (value) => `${(2 ** value).toFixed(1)}` });
  return made;
}

/**
 * @param {{steps: Step[], open: number, onOpen: (step: number) => void}} props
 */
export function Curves({ steps, open, onOpen }) {
  if (!steps.length) return null;
  return html`<section class="curves" aria-label="Every sampler over the whole text"><h2>Every sampler over the whole text <small>means at the right; click opens a step</small></h2>
    ${rows(steps).map(
      ({ label, values, most, say }) => html`<div class="curve" key=${label}><span>${label}</span>
        <${Strip} values=${values} most=${most} label=${`${label}, mean ${say(mean(values))}`} open=${open} onOpen=${onOpen} /><span class="number">${say(mean(values))}</span></div>`,
    )}</section>`;
}
