/** @file The view Compare: two chains on one seed, where their texts diverge, and a thousand draws at one step. */

import { Component } from "./vendor/preact.mjs";
import { signal } from "./vendor/signals-core.mjs";
import { post } from "./api.js";
import { Control } from "./parameters.js";
import { Settings, known, main } from "./settings.js";
import { StepPanel } from "./step-panel.js";
import { alone } from "./token.js";
import { Hover, TextView } from "./text-view.js";
import { write } from "./texts.js";
import { Choice, Problem, count, html, percent, watched } from "./ui.js";
import { length, prompt, seed } from "./write.js";

/** @typedef {import("./texts.js").Text} Text */

const other = new Settings();
other.preset.value = "neutral";
const sides = [
  { name: "A", settings: main, text: signal(/** @type {Text | null} */ (null)) },
  { name: "B", settings: other, text: signal(/** @type {Text | null} */ (null)) },
];
const open = signal(-1);
const failed = signal(/** @type {Error | null} */ (null));
const COMMON = ["temperature", "top_k", "top_p", "min_p", "repetition_penalty"];

async function run() {
  failed.value = null;
  open.value = -1;
  const chosen = seed.value ?? Math.floor(Math.random() * 2 ** 32);
  try {
    for (const side of sides) {
      side.text.value?.stop();
      await write({ ...side.settings.asked(chosen), prompt: prompt.value, max_tokens: length.value }, { listed: false, onStart: (text) => (side.text.value = text) });
    }
    open.value = Math.max(0, diverges());
  } catch (error) {
    failed.value = /** @type {Error} */ (error);
  }
}

/** The first step at which the texts differ; -1: at none. */
function diverges() {
  const [a, b] = sides.map((side) => side.text.value?.steps ?? []);
  const n = Math.max(a.length, b.length);
  for (let i = 0; i < n; i++) if (a[i]?.token.id !== b[i]?.token.id) return i;
  return -1;
}

const Side = watched(function (/** @type {{side: typeof sides[0], first: number}} */ { side, first }) {
  const { settings } = side;
  const text = side.text.value;
  text?.version.value;
  return html`<section class="side" aria-label=${`Chain ${side.name}`}>
    <h2>${side.name}: ${settings.words}</h2>
    <details><summary>Change it</summary>
      <${Choice} label=${`Preset of ${side.name}`} value=${settings.preset.value} options=${Object.keys(known().presets)} onChange=${(/** @type {string} */ v) => settings.choose(v)} />
      ${COMMON.map((name) => html`<${Control} key=${name} settings=${settings} name=${name} />`)}
    </details>
    ${text &&
    html`<${TextView} id=${`compare-${side.name}`} label=${`Text of ${side.name}`} prompt=${text.prompt} steps=${text.steps} length=${text.steps.length} open=${open.value}
        onOpen=${(/** @type {number} */ i) => (open.value = i)} marks=${mark(first)} writing=${text.writing} />
      <p class="quiet" role="status">${text.steps.length} tokens, ${text.writing ? "writing…" : text.reason.value}</p>
      <${Problem} error=${text.error.value} />`}
  </section>`;
});

/** @param {number} first */
const mark = (first) => (/** @type {any} */ _, /** @type {number} */ i) => (i === first ? " differs" : first >= 0 && i > first ? " after" : "");

/** Counts of many draws beside the exact probabilities. */
class Draws extends Component {
  constructor() {
    super();
    this.state = { found: null, error: null };
  }

  componentDidMount() {
    this.refresh();
  }

  /** @param {any} before */
  componentDidUpdate(before) {
    if (before.text !== this.props.text || before.at !== this.props.at) this.refresh();
  }

  async refresh() {
    const { text, at } = this.props;
    this.setState({ found: null, error: null });
    try {
      const found = await post(`/texts/${text.id}/draws`, { step: at, n: 1000 });
      if (text === this.props.text && at === this.props.at) this.setState({ found });
    } catch (error) {
      this.setState({ error });
    }
  }

  /** @param {any} props @param {any} state */
  render(props, { found, error }) {
    if (error) return html`<${Problem} error=${error} />`;
    if (!found) return html`<p class="quiet">Drawing…</p>`;
    const rows = found.tokens.slice(0, 12);
    const scale = Math.max(...rows.flatMap((/** @type {any} */ r) => [r.exact ?? 0, r.count / found.n]), 1e-9);
    return html`<table class="draws"><caption>${count(found.n)} draws over the exact probabilities</caption>
      <thead><tr><th scope="col">token</th><th scope="col">drawn and exact</th><th scope="col">drawn</th><th scope="col">exact</th></tr></thead>
      <tbody>${rows.map(
        (/** @type {any} */ r) => html`<tr><th scope="row" class="piece">${alone(r.token, 14)}</th>
          <td class="bars"><i class="bar" style=${{ width: `${(100 * r.count) / found.n / scale}%` }}></i><i class="exact" style=${{ left: `${(100 * (r.exact ?? 0)) / scale}%` }}></i></td>
          <td class="number">${r.count}</td><td class="number">${percent(r.exact)}</td></tr>`,
      )}</tbody></table>
      ${found.tokens.length > rows.length && html`<p class="quiet">and ${found.tokens.length - rows.length} more tokens</p>`}`;
  }
}

/** The view. */
export const Compare = watched(function () {
  for (const side of sides) side.text.value?.version.value;
  const ready = sides.every((side) => side.text.value && !side.text.value.writing);
  const first = ready ? diverges() : -1;
  const at = open.value;
  return html`<div class="view compare">
    <form class="controls" onSubmit=${(/** @type {Event} */ e) => (e.preventDefault(), run())}>
      <label class="prompt-field"><span>Prompt, the same for both</span><textarea rows="2" value=${prompt.value} onInput=${(/** @type {any} */ e) => (prompt.value = e.currentTarget.value)}></textarea></label>
      <div class="row"><button type="submit" class="primary">Write both</button>
        <p role="status">${ready && (first < 0 ? "The texts are equal." : `The texts diverge at token ${first}.`)}</p></div>
      <${Problem} error=${failed.value} />
    </form>
    <div class="pair">${sides.map((side) => html`<${Side} key=${side.name} side=${side} first=${first} />`)}</div>
    ${ready && at >= 0 &&
    html`<div class="pair">${sides.map((side) => {
      const text = /** @type {Text} */ (side.text.value);
      if (at >= text.steps.length) return html`<p class="quiet">${side.name} had ended before step ${at}.</p>`;
      return html`<section aria-label=${`Step ${at} of ${side.name}`}><h2>${side.name}, step ${at}: <span class="piece">${alone(text.steps[at].token)}</span></h2>
        <${StepPanel} text=${text} at=${at} rows=${8} label=${`${side.name}.`} /><${Draws} text=${text} at=${at} /></section>`;
    })}</div>`}
    <${Hover} />
  </div>`;
});
