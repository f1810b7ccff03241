/** @file A histogram: counts of many draws over the exact probabilities. */

import { alone } from "./token.js";
import { count, html, percent } from "./ui.js";

/** @typedef {{n: number, tokens: {token: import("./token.js").Token, count: number, exact: number | null}[]}} Drawn */

const ROWS = 12;

/** @param {{found: Drawn}} props */
export function Histogram({ found }) {
  const rows = found.tokens.slice(0, ROWS);
  const scale = Math.max(...rows.flatMap((r) => [r.exact ?? 0, r.count / found.n]), 1e-9);
  return html`<table class="draws"><caption>${count(found.n)} draws over the exact probabilities</caption>
    <thead><tr><th scope="col">token</th><th scope="col">drawn and exact</th><th scope="col">drawn</th><th scope="col">exact</th></tr></thead>
    <tbody>${rows.map(
      (r) => html`<tr><th scope="row" class="piece">${alone(r.token, 14)}</th>
        <td class="bars"><i class="bar" style=${{ width: `${(100 * r.count) / found.n / scale}%` }}></i><i class="exact" style=${{ left: `${(100 * (r.exact ?? 0)) / scale}%` }}></i></td>
        <td class="number">${r.count}</td><td class="number">${percent(r.exact)}</td></tr>`,
    )}</tbody></table>
    ${found.tokens.length > rows.length && html`<p class="quiet">and ${found.tokens.length - rows.length} more tokens</p>`}`;
}
