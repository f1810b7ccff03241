/** @file A chain as its user sets it: a preset, and what differs from it. */

import { signal } from "./vendor/signals-core.mjs";
import { get } from "./api.js";

/**
 * @typedef {object} Parameter
 * @property {string} name
 * @property {string} type
 * @property {any} default  the value that does nothing
 * @property {boolean} optional
 * @property {string} help
 * @property {string} described
 * @property {string} range
 * @property {(string | boolean)[]} choices
 * @property {string[]} flags
 * @property {{low: number, high: number, step: number}} [slider]
 */

/**
 * @typedef {object} Sampler
 * @property {string} name
 * @property {string} summary
 * @property {boolean} selects
 * @property {boolean} first
 * @property {boolean} ordered
 * @property {string[]} parameters
 */

/**
 * @typedef {object} Declared
 * @property {Sampler[]} samplers
 * @property {Record<string, Parameter>} parameters
 * @property {Record<string, Parameter>} options  of a text
 * @property {Record<string, Parameter>} beams  options of a search
 * @property {Record<string, Record<string, any>>} presets
 * @property {string} default_preset
 * @property {{name: string, architecture: string, parameters: number, n_vocab: number, n_ctx: number, chat: boolean, bundled: boolean, fingerprint: string}} model
 * @property {{limit: number, used: number, rows: number}} memory
 * @property {Record<string, string>} [lacking]  what cannot be had here, and why: names of parameters, options and views
 */

/** What the server declares; null until it has answered. */
export const declared = signal(/** @type {Declared | null} */ (null));

/** Ask the server for it. */
export async function load() {
  declared.value = await get("");
}

/** The declarations, once they are there. */
export const known = () => /** @type {Declared} */ (declared.value);

/** What is declared of a parameter, or of an option of a text or of beams. @param {string} name */
export const declaration = (name) => known().parameters[name] ?? known().options[name] ?? known().beams[name];

/** Why something cannot be had here; undefined: it can. @param {string} name */
export const lacking = (name) => known().lacking?.[name];

/** One chain, or options. */
export class Settings {
  /** @param {string} name  of it, where a page has several */
  constructor(name = "") {
    this.name = name;
    this.preset = signal("llama.cpp");
    this.changes = signal(/** @type {Record<string, any>} */ ({}));
  }

  /** @param {string} name  Forgets what was changed. */
  choose(name) {
    this.preset.value = name;
    this.changes.value = {};
  }

  /** @param {string} name */
  value(name) {
    const changed = this.changes.value;
    return name in changed ? changed[name] : this.usual(name);
  }

  /** What the preset says. @param {string} name */
  usual(name) {
    const own = known().presets[this.preset.value] ?? {};
    return name in own ? own[name] : declaration(name)?.default;
  }

  /** @param {string} name @param {any} value */
  set(name, value) {
    const next = { ...this.changes.value };
    if (JSON.stringify(value) === JSON.stringify(this.usual(name))) delete next[name];
    else next[name] = value;
    this.changes.value = next;
  }

  /** Names of the samplers in order. */
  get order() {
    /** @type {string[]} */
    const order = [...this.value("samplers")];
    for (const sampler of known().samplers) {
      const asked = sampler.parameters.some((name) => name in this.changes.value && name !== "seed" && name !== "min_keep");
      if (asked && sampler.ordered && !order.includes(sampler.name) && !("samplers" in this.changes.value)) {
        order.push(sampler.name);
      }
    }
    return order;
  }

  /** @param {string[]} order  What belongs to samplers that it leaves out becomes as in the preset. */
  reorder(order) {
    const gone = known().samplers.filter((s) => s.ordered && !order.includes(s.name));
    const kept = new Set(known().samplers.filter((s) => !gone.includes(s)).flatMap((s) => s.parameters));
    const next = { ...this.changes.value, samplers: order };
    for (const name of gone.flatMap((s) => s.parameters)) if (!kept.has(name)) delete next[name];
    this.changes.value = next;
    if (JSON.stringify(order) === JSON.stringify(this.usual("samplers"))) {
      const { samplers, ...rest } = next;
      this.changes.value = rest;
    }
  }

  /** As a request has it. @param {number | null} [seed] */
  asked(seed = null) {
    return { preset: this.preset.value, ...this.changes.value, ...(seed === null ? {} : { seed }) };
  }

  /** Take over what a request had. @param {Record<string, any>} asked */
  restore(asked) {
    const { preset, seed, ...changes } = asked;
    this.preset.value = preset ?? known().default_preset;
    this.changes.value = changes;
  }

  /** In few words. */
  get words() {
    const said = (/** @type {any} */ value) => (Array.isArray(value) ? value.join(";") : value !== null && typeof value === "object" ? JSON.stringify(value) : value);
    const changes = Object.entries(this.changes.value).map(([name, value]) => `${name}=${said(value)}`);
    return [this.preset.value, ...changes].join(", ");
  }
}

/** The chain of the views Write and Chain. */
export const main = new Settings();
