"""The same seed writes the same text; taken back, a text goes on as it did."""

import aleator

model = aleator.load()
first = model.generate("ROMEO:", max_tokens=30, temperature=0.8, seed=7)
longer = model.generate("ROMEO:", max_tokens=60, temperature=0.8, seed=7)
print(first.text)
print("a longer one begins alike:", longer.text.startswith(first.text))

# In a batch, beside others, completion 0 is the text alone.
batch = model.generate_batch(["JULIET:", "ROMEO:"], max_tokens=30, temperature=0.8, seed=7)
print("the same in a batch:", batch[1].text == first.text)
