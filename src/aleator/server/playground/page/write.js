/** @file The view Write: a prompt, its text as tokens, the open step, and the tree of branches. */

import { Component } from "./vendor/preact.mjs";
import { signal } from "./vendor/signals-core.mjs";
import { post } from "./api.js";
import { Control } from "./parameters.js";
import { Settings, known, main } from "./settings.js";
import { StepPanel } from "./step-panel.js";
import { alone } from "./token.js";
import { Hover, Legend, SHADES, TextView, shading } from "./text-view.js";
import { current, opened, texts } from "./text.js";
import { branch, pace, prune, write } from "./texts.js";
import { Tree } from "./tree.js";
import { Choice, Problem, html, percent, watched } from "./ui.js";

export const prompt = signal("ROMEO:\n");
export const length = signal(80);
/** Whether a text continues the prompt, or answers the turns of a conversation. */
export const chats = signal(false);
/** @type {import("./vendor/signals-core.mjs").Signal<{role: string, content: string}[]>} */
export const turns = signal([{ role: "user", content: "Good morrow, my lady." }]);
/** null: the server draws one. */
export const seed = signal(/** @type {number | null} */ (7));

/** Begin as suits any model: the bundled one continues plays, others answer. @param {boolean} chat  Whether the model has a template. */
export function suggest(chat) {
  prompt.value = "The sky is blue because";
  turns.value = [{ role: "user", content: "Why is the sky blue?" }];
  chats.value = chat;
}

const failed = signal(/** @type {any} */ (null));

/** Options of the text that are offered, beside its length. */
const OFFERED = ["stop", "stop_loops", "reasoning_budget", "reasoning_budget_message", "reasoning_budget_grace", "banned_strings", "banned_regex", "heal"];
export const options = new Settings("text");

/** Fields of a request from what is set now. */
export const asked = () => ({ ...main.asked(seed.value), ...options.changes.value, max_tokens: length.value });

/** How a text begins: fields of a request. */
export const beginning = () => (chats.value ? { messages: turns.value } : { prompt: prompt.value });

/** @param {() => Promise<any>} work */
export async function attempt(work) {
  failed.value = null;
  try {
    return await work();
  } catch (error) {
    failed.value = error;
  }
}

export function begin() {
  opened.value = -1;
  return attempt(() => write({ ...asked(), ...beginning() }));
}

/** @param {number} tokens  How many more. */
function goOn(tokens) {
  const text = current.value;
  if (!text) return;
  return attempt(() => write({ ...asked(), max_tokens: tokens }, { parent: text, at: text.steps.length }));
}

/** The words that were written, without control tokens. @param {import("./text.js").Text} text */
function words(text) {
  const encoder = new TextEncoder();
  const pieces = text.steps.filter((s) => !s.token.special).map((s) => (s.token.text === null ? Uint8Array.from((s.token.bytes ?? "").match(/../g) ?? [], (pair) => parseInt(pair, 16)) : encoder.encode(s.token.text)));
  return new TextDecoder().decode(Uint8Array.from(pieces.flatMap((piece) => [...piece])));
}

/** @param {number} i @param {Partial<{role: string, content: string}>} change */
const edit = (i, change) => (turns.value = turns.value.map((turn, at) => (at === i ? { ...turn, ...change } : turn)));

const Turns = watched(function ({ keep: keeps }) {
  const text = current.value;
  text?.reason.value;
  const last = turns.value.at(-1);
  const keep = () => text && (turns.value = [...turns.value, { role: "assistant", content: words(text).trim() }]);
  return html`<div class="turns" role="group" aria-label="Turns of the conversation">
    ${turns.value.map(
      (turn, i) => html`<div class="turn ${turn.role}" key=${i}>
        <select aria-label=${`Who speaks in turn ${i + 1}`} onChange=${(/** @type {any} */ e) => edit(i, { role: e.currentTarget.value })}>${["system", "user", "assistant"].map((role) => html`<option value=${role} selected=${role === turn.role}>${role}</option>`)}</select>
        <textarea rows="2" dir="auto" aria-label=${`Turn ${i + 1}`} value=${turn.content} onInput=${(/** @type {any} */ e) => edit(i, { content: e.currentTarget.value })}></textarea>
        <button type="button" class="small" aria-label=${`Remove turn ${i + 1}`} disabled=${turns.value.length < 2} onClick=${() => (turns.value = turns.value.filter((_, at) => at !== i))}>✕</button>
      </div>`,
    )}
    <div class="buttons"><button type="button" onClick=${() => (turns.value = [...turns.value, { role: last?.role === "user" ? "assistant" : "user", content: "" }])}>Add a turn</button>
      ${keeps && html`<button type="button" disabled=${!text || text.writing} onClick=${keep}>Keep the text as a turn</button>`}</div>
  </div>`;
});

/**
 * What a text begins with: a prompt, or the turns of a conversation.
 * @param {{label: string, keep?: boolean, onEnter?: () => void}} props  ``keep``: the text that is shown can become a turn
 */
export const Beginning = watched(function ({ label, keep = false, onEnter }) {
  return html`${known().model.chat && html`<${Choice} label="Write" value=${chats.value ? "chat" : "text"} options=${[["text", "what follows a prompt"], ["chat", "the next turn of a chat"]]} onChange=${(/** @type {string} */ v) => (chats.value = v === "chat")} />`}
    ${chats.value ? html`<${Turns} keep=${keep} />` : html`<label class="prompt-field"><span>${label}</span>
      <textarea rows="3" dir="auto" value=${prompt.value} onInput=${(/** @type {any} */ e) => (prompt.value = e.currentTarget.value)}
        onKeyDown=${(/** @type {KeyboardEvent} */ e) => e.key === "Enter" && (e.ctrlKey || e.metaKey) && onEnter?.()}></textarea>
    </label>`}`;
});

const Controls = watched(function () {
  const text = current.value;
  text?.reason.value;
  const writing = Boolean(text?.writing);
  const error = failed.value;
  const changed = Object.keys(options.changes.value);
  return html`<form class="controls" onSubmit=${(/** @type {Event} */ e) => (e.preventDefault(), begin())}>
    <${Beginning} label="Prompt" keep=${true} onEnter=${begin} />
    <div class="row">
      <${Choice} label="Preset" value=${main.preset.value} options=${Object.keys(known().presets)} onChange=${(/** @type {string} */ v) => main.choose(v)} hint="the chain's parameters; change them in the view Chain" />
      <label class="field"><span>Seed</span><input type="number" min="-1" step="1" value=${seed.value ?? ""} placeholder="random" onInput=${(/** @type {any} */ e) => (seed.value = e.currentTarget.value === "" ? null : Number(e.currentTarget.value))} /></label>
      <label class="field"><span>Tokens</span><input type="number" min="1" max=${known().model.n_ctx} value=${length.value} onInput=${(/** @type {any} */ e) => (length.value = Math.max(1, Number(e.currentTarget.value) || 1))} /></label>
      <span class="buttons">
        ${writing
          ? html`<button key="stop" type="button" class="primary" onClick=${() => text?.stop()}>Stop</button>`
          : html`<button key="write" type="submit" class="primary" title="Ctrl+Enter in the prompt">Write</button>`}
        <button type="button" disabled=${!text || writing} onClick=${() => goOn(length.value)}>Continue</button>
        <button type="button" disabled=${!text || writing} onClick=${() => goOn(1)} title="draw one token">Next token</button>
      </span>
      <${Choice} label="Speed" value=${String(pace.value)} options=${[["0", "as it comes"], ["10", "10 tokens a second"], ["2", "2 tokens a second"]]} onChange=${(/** @type {string} */ v) => (pace.value = Number(v))} />
    </div>
    <details class="options" open=${OFFERED.includes(error?.param)}><summary>Ends, bans, reasoning${changed.length ? `: ${changed.join(", ")}` : ""}</summary>
      <div>${OFFERED.map((name) => html`<${Control} key=${name} settings=${options} name=${name} error=${error} />`)}</div></details>
    ${!OFFERED.includes(error?.param) && html`<${Problem} error=${error} />`}
  </form>`;
});

const Written = watched(function () {
  const text = current.value;
  if (!text) return html`<div class="empty"><p>Write a text, then look at any token of it: hover for its rivals, click for every stage of the chain, and pick another token to go on from there.</p></div>`;
  text.version.value;
  const branchless = text.steps.length;
  const end = text.end;
  return html`<section aria-label="Text">
    <div class="bar-row">
      <${Choice} label="Shade by" value=${shading.value} options=${Object.entries(SHADES).map(([key, each]) => /** @type {[string, string]} */ ([key, each.label]))} onChange=${(/** @type {string} */ v) => (shading.value = v)} />
      <${Legend} />
    </div>
    <${TextView} id="main" label=${`${text.name.value}: ${branchless} tokens; arrow keys open steps`} prompt=${text.prompt} steps=${text.steps} length=${text.steps.length}
      open=${opened.value} onOpen=${(/** @type {number} */ i) => (opened.value = i)} writing=${text.writing} />
    <p class="quiet status" role="status">
      ${text.steps.length} tokens, ${text.writing ? "writing…" : `ended by: ${text.reason.value}`}; seed ${text.seed}${end &&
      html`; prompt: ${end.computed} computed, ${end.reused} from the cache; ${Math.max(0, text.steps.length - text.inherited)} drawn in ${end.seconds.toFixed(2)} s; logits kept: ${(end.kept_bytes / 2 ** 20).toFixed(1)} of ${end.kept_limit / 2 ** 20} MiB`}
    </p>
    <${Problem} error=${text.error.value} />
  </section>`;
});

/** A token that is not among the likely ones: the first of a text. */
class Other extends Component {
  /** @param {any} props @param {any} state */
  render({ onPick }, { error }) {
    const pick = async (/** @type {any} */ e) => {
      e.preventDefault();
      try {
        this.setState({ error: null });
        const { tokens } = await post("/tokens", { text: e.target.elements.other.value });
        const first = tokens.find((/** @type {import("./token.js").Token} */ token) => !token.special);
        if (first) onPick(first);
      } catch (wrong) {
        this.setState({ error: wrong });
      }
    };
    return html`<form class="row" onSubmit=${pick}><label class="field"><span>or the first token of</span><input name="other" required /></label><button type="submit">Write it here</button><${Problem} error=${error} /></form>`;
  }
}

const Opened = watched(function () {
  const text = current.value;
  const at = opened.value;
  text?.version.value;
  if (!text || at < 0 || at >= text.steps.length) {
    return text && html`<p class="quiet">Click a token, or focus the text and use the arrow keys, to open its step.</p>`;
  }
  const step = text.steps[at];
  const onPick = (/** @type {import("./token.js").Token} */ token) => attempt(() => branch(text, at, token, asked()));
  return html`<section class="opened" aria-label="Open step">
    <h2>Step ${at}: <span class="piece">${alone(step.token)}</span> <small>${percent(step.before)} of the model, ${percent(step.after)} after the chain</small>
      <button type="button" class="small" aria-label="Close the step" onClick=${() => (opened.value = -1)}>✕</button></h2>
    <${StepPanel} text=${text} at=${at} onPick=${onPick} />
    <p class="quiet">Click another token to write it here: the cache is forked, and nothing before it is computed again.</p>
    <${Other} onPick=${onPick} />
  </section>`;
});

/** The view. */
export const Write = watched(function () {
  return html`<div class="view write">
    <${Controls} />
    <div class="columns">
      <div class="main"><${Written} /></div>
      <aside>${texts.value.length > 0 && html`<h2>Branches</h2>`}<${Tree} onForget=${prune} /></aside>
    </div>
    <${Opened} />
    <${Hover} />
  </div>`;
});
