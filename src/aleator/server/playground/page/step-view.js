/** @file One step: tokens down, stages of the chain across, each cell a probability. */

import { alone } from "./token.js";
import { count, html, percent } from "./ui.js";

/**
 * @typedef {{candidates: number, entropy: number, top: number, choices: number}} Shape
 * @typedef {object} Stage
 * @property {string} name
 * @property {string} label
 * @property {boolean} neutral
 * @property {Shape} before
 * @property {Shape} after
 * @property {number} removed
 * @property {number} cut
 * @property {{token: import("./token.js").Token, probability: number}[]} likely_removed
 * @property {number} moved
 * @property {Record<string, number>} state
 * @property {number} microseconds
 * @typedef {object} FullStep
 * @property {number} step
 * @property {import("./token.js").Token | null} token
 * @property {boolean} picked
 * @property {number} n_vocab
 * @property {Shape} logits
 * @property {Stage[]} stages
 * @property {{token: import("./token.js").Token, probabilities: number[], removed_by: number | null}[]} traces
 * @property {{token: import("./token.js").Token, before: number, after: number, seed: number, position: number, mark: string | null} | null} draw
 */

/**
 * What a stage did, in words.
 * @param {Stage} s
 */
function effect(s) {
  const parts = [`${count(s.after.candidates)} left`];
  if (s.removed) parts.push(`${count(s.removed)} removed with ${percent(s.cut)} of the mass`);
  if (s.moved) parts.push(`${percent(s.moved)} moved`);
  parts.push(`${s.after.entropy.toFixed(2)} bits`);
  const state = Object.entries(s.state).map(([name, value]) => `${name} ${Number(value.toPrecision(4))}`);
  if (s.likely_removed.length) parts.push(`removed first: ${s.likely_removed.map((r) => alone(r.token)).join(" ")}`);
  return [...parts, ...state].join("; ");
}

/** @param {{p: number, was: number, gone: boolean, scale: number}} props */
function Bar({ p, was, gone, scale }) {
  if (gone) return html`<span class="cut" title=${`was ${percent(was)}`} style=${{ width: `${Math.max(3, 100 * Math.sqrt(was / scale))}%` }}></span><span class="number">cut</span>`;
  return html`<span class="track"
      ><i class="ghost" style=${{ width: `${100 * Math.sqrt(was / scale)}%` }}></i
      ><i class="bar" style=${{ width: `${100 * Math.sqrt(p / scale)}%` }}></i></span
    ><span class="number">${percent(p)}</span>`;
}

/**
 * @param {{step: FullStep, rows?: number, onPick?: ((token: import("./token.js").Token) => void) | null, written?: number | null, label?: string}} props
 */
export function StepView({ step, rows = 12, onPick, written, label = "" }) {
  // The draw itself changes nothing: the tag "drawn" shows it.
  const active = step.stages.map((s, i) => ({ s, i })).filter(({ s, i }) => !s.neutral && (i + 1 < step.stages.length || s.removed > 0 || s.moved > 0));
  const neutral = step.stages.filter((s) => s.neutral).map((s) => s.name);
  const drawn = step.draw?.token.id;
  const marked = written ?? step.token?.id;
  const shown = step.traces
    .map((t, i) => ({ t, i }))
    .filter(({ t, i }) => i < rows || t.token.id === drawn || t.token.id === marked)
    .map(({ t }) => t)
    .sort((a, b) => b.probabilities[0] - a.probabilities[0] || a.token.id - b.token.id);
  const scale = Math.max(...shown.flatMap((t) => t.probabilities), 1e-9);
  return html`<div class="stages" tabindex="0" role="region" aria-label=${`${label} Stages of the chain at step ${step.step}`.trim()}>
    <table>
      <thead>
        <tr>
          <th scope="col">token</th>
          <th scope="col"><b>logits</b><small>${count(step.logits.candidates)} tokens</small><small>${step.logits.entropy.toFixed(2)} bits</small></th>
          ${active.map(
            ({ s }) => html`<th scope="col" title=${effect(s)}>
              <b>${s.label}</b>
              <small>${count(s.after.candidates)} left${s.removed ? `, −${percent(s.cut)}` : ""}</small>
              <small>${s.after.entropy.toFixed(2)} bits${s.moved ? `, ${percent(s.moved)} moved` : ""}</small>
            </th>`,
          )}
        </tr>
      </thead>
      <tbody>
        ${shown.map((t) => {
          const mine = t.token.id === drawn;
          const gone = t.removed_by;
          return html`<tr key=${t.token.id} class="${mine ? "drawn" : ""}${t.token.id === marked ? " written" : ""}">
            <th scope="row">
              ${onPick && t.token.id !== marked
                ? html`<button type="button" class="pick piece" title=${`write ${alone(t.token)} here, and go on from there (token ${t.token.id})`} onClick=${() => onPick(t.token)}>${alone(t.token, 16)}</button>`
                : html`<span class="piece" title=${`token ${t.token.id}`}>${alone(t.token, 16)}</span>`}
              ${mine && html`<span class="tag" title="the chain draws this token">drawn</span>`}
              ${t.token.id === marked && !mine && html`<span class="tag plain" title="this token was written">written</span>`}
            </th>
            <td><${Bar} p=${t.probabilities[0]} was=${0} gone=${false} scale=${scale} /></td>
            ${active.map(({ i }) => {
              if (gone !== null && i > gone) return html`<td class="none"></td>`;
              return html`<td><${Bar} p=${t.probabilities[i + 1]} was=${t.probabilities[i]} gone=${gone === i} scale=${scale} /></td>`;
            })}
          </tr>`;
        })}
      </tbody>
    </table>
    <p class="quiet">
      ${step.draw
        ? html`Drawn: <b class="piece">${alone(step.draw.token)}</b>, ${percent(step.draw.before)} → ${percent(step.draw.after)}; seed ${step.draw.seed}, position ${step.draw.position}${step.draw.mark ? `; ${step.draw.mark}` : ""}.`
        : "The chain selects nothing."}
      ${step.picked && step.token && html` Written instead: <b class="piece">${alone(step.token)}</b>.`}
      ${neutral.length > 0 && html` Neutral: ${neutral.join(", ")}.`} Bars are square roots.
    </p>
    <details class="numbers"><summary>Every stage in numbers</summary>
      <dl>${step.stages.filter((s) => !s.neutral).map((s) => html`<dt>${s.label}</dt><dd>${effect(s)}; ${s.microseconds.toFixed(1)} µs</dd>`)}</dl>
    </details>
  </div>`;
}
