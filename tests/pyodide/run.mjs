/** @file Runs Python code in Pyodide: node run.mjs PYODIDE CODE WHEEL... */

import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'

const [folder, code, ...wheels] = process.argv.slice(2)
const { loadPyodide } = await import(pathToFileURL(join(folder, 'pyodide.mjs')).href)
const pyodide = await loadPyodide({ indexURL: folder })
await pyodide.loadPackage(wheels, { messageCallback: () => {} })
try {
  await pyodide.runPythonAsync(readFileSync(code, 'utf8'))
} catch (error) {
  console.error(String(error))
  process.exitCode = 1
}
