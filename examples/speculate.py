"""Guess what follows and decode it together: the same tokens, in fewer steps where the text repeats itself."""

import aleator

model = aleator.load()
prompt = "ROMEO:\nO, she doth teach the torches to burn bright!\n\n" * 2 + "ROMEO:\nO, she"
plain = model.generate(prompt, max_tokens=40, temperature=0)
guessed = model.generate(prompt, max_tokens=40, temperature=0, spec_type="ngram")
print("the same text:", plain.text == guessed.text)
print(guessed.stats.draft_n, "tokens guessed,", guessed.stats.draft_n_accepted, "right")
