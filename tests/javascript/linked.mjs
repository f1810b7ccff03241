// Links the modules of a folder and runs none of them: node --experimental-vm-modules linked.mjs FOLDER.  An error names the
// module that has wrong syntax, or that takes of another one, or of `py`, which has Python's functions, what this lacks.
import { readdir, readFile } from 'node:fs/promises'
import { pathToFileURL } from 'node:url'
import { SourceTextModule } from 'node:vm'

const modules = new Map()
const folder = pathToFileURL(`${process.argv[2]}/`)
for (const name of await readdir(folder, { recursive: true })) {
  const { href } = new URL(name, folder)
  if (/\.m?js$/.test(name)) modules.set(href, new SourceTextModule(await readFile(new URL(href), 'utf8'), { identifier: href }))
}
const found = (name, { identifier }) => modules.get(new URL(name, identifier).href) ?? Promise.reject(new Error(`${identifier}: there is no ${name}`))
for (const module of modules.values()) if (module.status === 'unlinked') await module.link(found)
for (const module of modules.values()) {
  const code = await readFile(new URL(module.identifier), 'utf8')
  const [, file] = /^import \* as py from '(.*)'/m.exec(code) ?? []
  const known = file ? Reflect.ownKeys((await found(file, module)).namespace) : []
  for (const [, name] of file ? code.matchAll(/\bpy\.(\w+)/g) : []) if (!known.includes(name)) throw new Error(`${module.identifier}: ${file} has no ${name}`)
}
