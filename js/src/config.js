// The architecture that a file names, and its dimensions (src/aleator/models/index.py).
import { ARCHITECTURES, KINDS } from './facts.js'
import { READERS } from './models.js'
import { AleatorError } from './native.js'

/** The architecture's facts and the model's dimensions, every field checked. */
export function readConfig(gguf) {
  const { fields } = gguf
  const kind = fields.get('general.type', 'model')
  if (kind !== 'model') throw new AleatorError('UnsupportedModel', `the file holds a '${kind}', not a model (general.type)${KINDS[kind] ?? ''}`)
  const name = fields.require('general.architecture', 'string')
  if (!Object.hasOwn(ARCHITECTURES, name))
    throw new AleatorError('UnsupportedModel', `the architecture '${name}' is not supported; here there are ${Object.keys(ARCHITECTURES).join(', ')}`)
  const architecture = ARCHITECTURES[name]
  return { architecture, config: READERS[name](gguf, architecture) }
}
