// Milliseconds of a token in WebAssembly, with one thread and without what samples and shows it.
//
//     node --no-liftoff benchmarks/wasm_token.mjs js/src/index.js MODEL.gguf [ROUNDS]
//
// After 32 tokens of a prompt 64 are decoded greedily, ROUNDS times; prints whether relaxed SIMD is used, and the
// least, the tenth in a hundred and the median.  For two builds of the package in turns it is called in turns.
import { resolve } from 'node:path'

const [address, path, rounds = '4'] = process.argv.slice(2)
const [PROMPT, TOKENS] = [32, 64]
const { load } = await import(resolve(address))
const { relaxed } = await import(resolve(address.replace('index.js', 'runtime.js')))

const model = await load(path, { nCtx: 512, threads: 1 })
const times = []
for (let round = 0; round < Number(rounds); round++) {
  const cache = model.cache()
  let logits = cache.decode(Array.from({ length: PROMPT }, (_, i) => 100 + 37 * i))
  for (let i = 0; i < TOKENS; i++) {
    const best = logits.indexOf(logits.reduce((a, b) => Math.max(a, b)))
    const began = performance.now()
    logits = cache.decode([best])
    times.push(performance.now() - began)
  }
  cache.free()
}
times.sort((a, b) => a - b)
const at = (part) => times[Math.floor(times.length * part)].toFixed(2)
console.log(`relaxed ${relaxed}: least ${at(0)}, tenth ${at(0.1)}, median ${at(0.5)} ms`)
model.free()
