/** @file The view Compare: two chains on one seed, where their texts diverge, and a thousand draws at one step. */

import { Component } from "./vendor/preact.mjs";
import { signal } from "./vendor/signals-core.mjs";
import { post } from "./api.js";
import { Cards } from "./cards.js";
import { Checking } from "./checking.js";
import { Histogram } from "./draws.js";
import { Side, Steps, divergence } from "./pair.js";
import { Settings, known, main } from "./settings.js";
import { StepPanel } from "./step-panel.js";
import { diverges } from "./text.js";
import { Hover } from "./text-view.js";
import { alive, write } from "./texts.js";
import { Choice, Problem, html, watched } from "./ui.js";
import { Beginning, beginning, length, seed } from "./write.js";

/** @typedef {import("./text.js").Text} Text */

const other = new Settings("other");
other.preset.value = "neutral";
const sides = [
  { name: "A", settings: main, checking: new Checking(main), text: signal(/** @type {Text | null} */ (null)) },
  { name: "B", settings: other, checking: new Checking(other), text: signal(/** @type {Text | null} */ (null)) },
];
const open = signal(-1);
const failed = signal(/** @type {Error | null} */ (null));

/** Both texts, once they are written; null before that. @returns {Text[] | null} */
export function pair() {
  const both = sides.map((side) => side.text.value);
  return both.every((text) => text && !text.writing) ? /** @type {Text[]} */ (both) : null;
}

/** The step that is open in both. */
export const comparedStep = open;

/**
 * @param {number} chosen  seed of both
 * @param {number} [step]  that is opened then; without it the one where they diverge
 */
async function run(chosen, step) {
  failed.value = null;
  open.value = -1;
  try {
    for (const side of sides) {
      side.text.value?.stop();
      await write({ ...side.settings.asked(chosen), ...beginning(), max_tokens: length.value }, { listed: false, onStart: (text) => (side.text.value = text) });
    }
    const [a, b] = sides.map((side) => side.text.value);
    open.value = step ?? Math.max(0, diverges(a, b));
  } catch (error) {
    failed.value = /** @type {Error} */ (error);
  }
}

/** What a link says of this view. */
export const comparison = {
  get state() {
    const [a] = pair() ?? [];
    return { b: other.asked(), ...(a ? { seed: a.seed, step: open.value } : {}) };
  },
  /** @param {any} state */
  async restore(state) {
    other.restore(state.b);
    if (state.seed !== undefined) await run(state.seed, state.step);
  },
};

const Chosen = watched(function (/** @type {{side: typeof sides[0]}} */ { side }) {
  const { name, settings, checking } = side;
  const error = checking.wrong.value;
  return html`<details onToggle=${(/** @type {any} */ e) => (checking.watching.value = e.currentTarget.open)}><summary>Change ${name}</summary>
    <div class="bar-row"><${Choice} label=${`Preset of ${name}`} value=${settings.preset.value} options=${Object.keys(known().presets)} onChange=${(/** @type {string} */ v) => settings.choose(v)} />
      ${settings === other && html`<button type="button" onClick=${() => other.restore(main.asked())}>As A has it</button>`}</div>
    <${Problem} error=${error && !(error.param in known().parameters) ? error : null} />
    <${Cards} settings=${settings} active=${checking.active} error=${error} />
  </details>`;
});

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
      const found = await alive(text, () => post(`/texts/${text.id}/draws`, { step: at, n: 1000 }));
      if (text === this.props.text && at === this.props.at) this.setState({ found });
    } catch (error) {
      this.setState({ error });
    }
  }

  /** @param {any} props @param {any} state */
  render(props, { found, error }) {
    if (error) return html`<${Problem} error=${error} />`;
    return found ? html`<${Histogram} found=${found} />` : html`<p class="quiet">Drawing…</p>`;
  }
}

/** The view. */
export const Compare = watched(function () {
  for (const side of sides) side.text.value?.version.value;
  const both = pair();
  const first = both ? diverges(both[0], both[1]) : -1;
  const at = open.value;
  const onOpen = (/** @type {number} */ i) => (open.value = i);
  return html`<div class="view compare">
    <form class="controls" onSubmit=${(/** @type {Event} */ e) => (e.preventDefault(), run(seed.value ?? Math.floor(Math.random() * 2 ** 32)))}>
      <${Beginning} label="Prompt, the same for both" />
      <div class="row"><button type="submit" class="primary">Write both</button>
        <p role="status">${both && divergence(both[0], both[1])}</p></div>
      <${Problem} error=${failed.value} />
    </form>
    <div class="pair">${sides.map(
      (side) => html`<section key=${side.name} class="side" aria-label=${`Chain ${side.name}`}><h2>${side.name}: ${side.settings.words}</h2><${Chosen} side=${side} />
        ${side.text.value && html`<${Side} name=${side.name} text=${side.text.value} first=${first} open=${at} onOpen=${onOpen} />`}</section>`,
    )}</div>
    ${both && at >= 0 && html`<${Steps} texts=${both} at=${at} step=${(/** @type {Text} */ text, /** @type {string} */ name) => html`<${StepPanel} text=${text} at=${at} rows=${8} label=${`${name}.`} /><${Draws} text=${text} at=${at} />`} />`}
    <${Hover} />
  </div>`;
});
