// The package's side of bench_browser.py, in a worker or in Node: loads a model, and times what it is asked for.

const median = (numbers) => numbers.toSorted((a, b) => a - b)[numbers.length >> 1]
const MiB = 2 ** 20

export async function started(address, given) {
  const { Chain, load, native } = await import(address)
  const { relaxed } = await import(address.replace('index.js', 'runtime.js'))
  const bytes = () => new native.NativeArray(Uint8Array, 1).array.buffer.byteLength / MiB
  let model
  return {
    facts: () => ({ relaxed }),
    async load(source) {
      model?.free()
      model = await load(source, given)
    },
    prompt: (text, n) => model.tokenizer.decode(model.tokenizer.encode(text, { addSpecial: false }).slice(0, n)),
    /** Seconds of the prompt's tokens and of the others, each per token; tokens; memory in MiB. */
    async text(prompt, n) {
      const ids = model.tokenizer.encode(prompt)
      const generation = model.generate(ids, { temperature: 0, ignore_eos: true, maxTokens: n })
      const began = performance.now()
      let first
      generation.chain.sample = ((sample) => (logits) => {
        const token = sample.call(generation.chain, logits)
        first ??= performance.now()
        return token
      })(generation.chain.sample)
      for await (const _ of generation);
      const ended = performance.now()
      return { prompt: (1000 * ids.length) / (first - began), decode: (1000 * (n - 1)) / (ended - first), n: ids.length, memory: bytes() }
    },
    /** Microseconds of a default chain over a row of nVocab logits. */
    chain(nVocab, preset) {
      const normal = () => Math.sqrt(-2 * Math.log(1 - Math.random())) * Math.cos(2 * Math.PI * Math.random())
      const rows = Array.from({ length: 4 }, () => Float32Array.from({ length: nVocab }, () => 3 * normal()))
      const chain = new Chain({ seed: 1 }, { preset })
      const times = Array.from({ length: 400 }, (_, i) => {
        const began = performance.now()
        for (let k = 0; k < 5; k++) chain.sample(rows[i % 4])
        return (1000 * (performance.now() - began)) / 5
      })
      return median(times)
    },
  }
}

// Messages [id, method, arguments] are answered with [id, value, error].
if (globalThis.WorkerGlobalScope) {
  let made
  onmessage = async ({ data: [id, method, given] }) => {
    try {
      if (method === 'start') made = await started(...given)
      else postMessage([id, await made[method](...given)])
      if (method === 'start') postMessage([id, null])
    } catch (error) {
      postMessage([id, null, String(error?.stack ?? error)])
    }
  }
}
