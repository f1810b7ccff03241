/** @file Cells of a small cache as a picture: who owns each, window layers, and states of recurrent ones. */

import { count, html } from "./ui.js";

/**
 * @typedef {object} Cells
 * @property {number[]} owner  each cell's lowest owner; -1: free
 * @property {number[]} owners  how many it has
 * @property {number[]} positions
 * @property {number[]} shifts
 * @property {{seq: number, cells: number, low: number, high: number, runs: number}[]} sequences
 * @property {string} summary
 *
 * @typedef {{rows: number, sequences: {seq: number, states: {row: number, position: number}[]}[]}} States
 *
 * @typedef {Cells & {operation: string, window: (Cells & {seen: number}) | null, states: States | null, computed: number, milliseconds: number}} Frame
 */


/** @param {{cells: Cells, seen?: number}} props  ``seen``: positions that a token of a window layer sees */
function Grid({ cells, seen = 0 }) {
  const newest = new Map(cells.sequences.map((s) => [s.seq, s.high]));
  return html`<div class="cells" role="img" aria-label=${`${cells.owner.length} cells: ${cells.summary}`}>
    ${cells.owner.map((owner, i) => {
      const [n, position, shift] = [cells.owners[i], cells.positions[i], cells.shifts[i]];
      const past = seen > 0 && owner >= 0 && position <= (newest.get(owner) ?? 0) - seen;
      const name = owner < 0 ? "free" : `o${owner % 8}${n > 1 ? " shared" : ""}${shift ? " rotates" : ""}${past ? " past" : ""}`;
      const title = owner < 0 ? `cell ${i}: free` : `cell ${i}: position ${position}, ${n > 1 ? `${n} sequences, the first is ${owner}` : `sequence ${owner}`}${shift ? `, its key is to be rotated by ${shift}` : ""}${past ? ", behind the window" : ""}`;
      return html`<span key=${i} class="cell ${name}" title=${title}>${owner < 0 ? "" : position}</span>`;
    })}
  </div>`;
}

/** @param {{states: States}} props */
export function StateRows({ states }) {
  const used = new Set(states.sequences.flatMap((s) => s.states.map((each) => each.row))).size;
  return html`<section aria-label="States of recurrent layers"><h2>States of recurrent layers <small>${used} of ${states.rows} rows used; a state has no parts, and older ones are kept to go back to</small></h2>
    <table class="sequences"><thead><tr><th scope="col">sequence</th><th scope="col">states, oldest first: row, and the position after which it was taken</th></tr></thead>
      <tbody>${states.sequences.map((s) => html`<tr><th scope="row"><span class="cell o${s.seq % 8}">${s.seq}</span></th><td>${s.states.map((each) => html`<span class="state" key=${each.row}>row ${each.row} <b>${each.position}</b></span>`)}</td></tr>`)}</tbody></table></section>`;
}

/**
 * One frame.
 * @param {{frame: Frame, number: number}} props
 */
export function Picture({ frame, number }) {
  const { window: behind, states } = frame;
  return html`<section aria-label="Cells"><h2>${number}. ${frame.operation} <small>${frame.summary}; ${count(frame.computed)} tokens computed in ${frame.milliseconds.toFixed(1)} ms</small></h2>
      ${frame.owner.length > 0 &&
      html`<${Grid} cells=${frame} />
        <p class="legend-row quiet">A cell shows its position. <span class="cell o0">0</span> one sequence <span class="cell o0 shared">0</span> shared <span class="cell o0 rotates">0</span> key still to be rotated <span class="cell free"></span> free</p>
        <table class="sequences"><thead><tr><th scope="col">sequence</th><th scope="col">cells</th><th scope="col">positions</th><th scope="col">runs</th></tr></thead>
          <tbody>${frame.sequences.map((s) => html`<tr><th scope="row"><span class="cell o${s.seq % 8}">${s.seq}</span></th><td>${s.cells}</td><td>${s.low} to ${s.high}</td><td>${s.runs}</td></tr>`)}</tbody></table>`}</section>
    ${behind &&
    html`<section aria-label="Cells of window layers"><h2>Window layers <small>a token sees the last ${behind.seen} positions; ${behind.summary}</small></h2>
      <${Grid} cells=${behind} seen=${behind.seen} />
      <p class="legend-row quiet"><span class="cell o0 past">0</span> behind the window of its sequence: its room may be taken</p></section>`}
    ${states && html`<${StateRows} states=${states} />`}`;
}

/**
 * Frames by their operations.
 * @param {{frames: Frame[], at: number, onShow: (at: number) => void}} props
 */
export function Operations({ frames, at, onShow }) {
  return html`<ol class="steps" aria-label="Operations">${frames.map((each, i) => html`<li key=${i}><button type="button" class=${i === at ? "link current" : "link"} aria-current=${i === at} onClick=${() => onShow(i)}>${i + 1}. ${each.operation}</button></li>`)}</ol>`;
}
