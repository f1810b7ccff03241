/** @file Samplers in words, and a chain on the command line, in JSON and in Python (src/aleator/server/playground/as_json.py). */

import { dumps, float_text, fromObject, quoted as repr } from "../aleator/python-text.js";
import declared from "../declared.js";

/** A value as Python writes it. */
function python(value, type) {
  if (value === null || value === undefined) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value === "number") return type === "float" || !Number.isInteger(value) ? float_text(value) : String(value);
  if (typeof value === "string") return repr(value);
  if (Array.isArray(value)) return `[${value.map((each) => python(each)).join(", ")}]`;
  return `{${Object.entries(value).map(([key, each]) => `${/^\d+$/.test(key) ? key : python(key)}: ${python(each)}`).join(", ")}}`;
}

/** What stands before the samplers where there is a grammar. */
export const GRAMMAR = { neutral: false };

/** A sampler with the parameters that are not neutral, such as ``top_k=40``. */
export function described(sampler) {
  if (sampler === GRAMMAR) return "grammar";
  if (sampler.chains) return `phases(${sampler.chains.map(([name, own]) => `${name}: ${own.filter((each) => !each.neutral).map(described).join(" -> ")}`).join("; ")})`;
  const { sampler: name, parameters } = sampler.constructor;
  const told = parameters.flatMap((each) => {
    const p = declared.parameters[each];
    const value = sampler[each];
    if (!p || p.type === "object" || JSON.stringify(value) === JSON.stringify(p.default)) return [];
    return Array.isArray(value) ? `${each}(${value.length})` : `${each}=${typeof value === "string" ? value : python(value, p.type)}`;
  });
  if (told.length === 1 && told[0].startsWith(name)) return told[0];
  return told.length ? `${name}(${told.join(", ")})` : name;
}

const GRAMMARS = { grammar: "--grammar", json_schema: "--json-schema", regex: "--regex" };

/** The words of one parameter; none if the command line has no flag for it or needs none. */
function words(name, value) {
  const { type, flags } = declared.parameters[name];
  const flag = GRAMMARS[name] ?? flags.at(-1);
  if (value === null || !flag) return [];
  if (typeof value === "boolean") return value ? [flag] : [];
  if (name === "samplers") return [flag, Array.isArray(value) ? value.join(";") : value];
  if (name === "logit_bias") {
    const pairs = Array.isArray(value) ? value : Object.entries(value);
    return pairs.flatMap(([token, bias]) => [flag, `${/^\d+$/.test(token) ? token : JSON.stringify(token)}${bias < 0 ? "" : "+"}${bias}`]);
  }
  if (type === "tuple" && name !== "phases") return (Array.isArray(value) ? value : [value]).flatMap((each) => [flag, String(each)]);
  if (typeof value === "object") return [flag, dumps(fromObject(value, name))];
  return [flag, type === "float" && typeof value !== "number" ? float_text(value) : String(value)];
}

/** As a shell needs it. */
const quoted = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`);

/** Sampling parameters, a preset among them, in each spelling. */
export function spellings(sampling) {
  const { preset, ...own } = sampling;
  const flags = Object.entries(sampling).flatMap(([name, value]) => (name === "preset" ? ["--preset", value] : words(name, value)));
  const told = Object.entries(own).map(([name, value]) => `${name}=${python(value)}`);
  const made = preset === undefined ? "aleator.SamplingParams" : "aleator.SamplingParams.preset";
  return {
    cli: ["aleator generate", ...flags.map(quoted)].join(" "),
    json: JSON.stringify(sampling, null, 1),
    python: `${made}(${[...(preset === undefined ? [] : [python(preset)]), ...told].join(", ")})`,
  };
}
