"""Texts with a form: a grammar in llama.cpp's notation, a JSON schema, a regular expression."""

import json

import aleator

model = aleator.load()
answer = model.generate("JULIET:", max_tokens=10, seed=1, grammar='root ::= "yes" | "no"').text
print("answer:", answer)

schema = {
    "type": "object",
    "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["age"],
    "additionalProperties": False,
}
text = model.generate("NURSE:", max_tokens=40, seed=1, json_schema=schema).text
print("fields:", *json.loads(text))

print(model.generate("NURSE:", max_tokens=20, seed=1, regex="[A-Z][a-z]+, [0-9]{2}").text)
