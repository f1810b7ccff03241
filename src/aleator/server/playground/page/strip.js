/** @file One number for each step of a text, as a strip of bars: one path, however many steps there are. */

import { html } from "./ui.js";

/**
 * @param {{values: (number | null)[], most: number, label: string, open: number, onOpen: (step: number) => void}} props
 *   heights from 0 to ``most``; null: not known
 */
export function Strip({ values, most, label, open, onOpen }) {
  const n = Math.max(values.length, 1);
  let path = "";
  values.forEach((value, i) => {
    if (value !== null && value > 0) path += `M${i} 100V${Math.round(100 - 100 * Math.min(1, value / most))}h.9V100z`;
  });
  /** @param {any} e */
  const onClick = (e) => {
    const box = e.currentTarget.getBoundingClientRect();
    onOpen(Math.max(0, Math.min(values.length - 1, Math.floor((n * (e.clientX - box.left)) / box.width))));
  };
  return html`<svg class="bars-of-steps" role="img" aria-label=${label} viewBox=${`0 0 ${n} 100`} preserveAspectRatio="none" onClick=${onClick}>
    ${open >= 0 && html`<rect class="here" x=${open} y="0" width="1" height="100" />`}<path d=${path} />
  </svg>`;
}
