"""Several prompts, and several completions of each, in one batch."""

import aleator

model = aleator.load()
prompts = ["ROMEO:\n", "JULIET:\n"]
generations = model.generate_batch(
    prompts, n=2, max_tokens=30, temperature=0.8, seed=1, stop=["\n\n"], logprobs=1
)
for i, generation in enumerate(generations):
    print(f"--- {prompts[i // 2]!r}, completion {i % 2}, ended by {generation.stop_reason}")
    print(generation.text)
    mean = sum(entry.chosen.logprob for entry in generation.logprobs or []) / len(generation.tokens)
    print(f"[{mean:.2f} nats per token]")

# Completion 0 of a batch is what the prompt gives alone.
alone = model.generate("JULIET:\n", max_tokens=30, temperature=0.8, seed=1, stop=["\n\n"])
print("the same alone:", alone.text == generations[2].text)
