"""Write text with the bundled model, piece by piece as it is made."""

import aleator

model = aleator.load()  # or aleator.load("model.gguf")
generation = model.generate("ROMEO:", max_tokens=100, temperature=0.8, seed=1)
for piece in generation:
    print(piece, end="", flush=True)
print(f"\n[{generation.stop_reason}; {generation.stats.decode_tokens_per_second:.0f} tokens/s]")
