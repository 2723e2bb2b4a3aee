"""Chats with a running `snapexport serve BUILD` through OpenAI's client, and streams the answer.

usage: python examples/chat.py http://127.0.0.1:8000/v1 MESSAGE

The checkpoint needs a chat template; without one use `client.completions.create(prompt=...)`.
"""

import sys

import openai

address, message = sys.argv[1:]
client = openai.OpenAI(base_url=address, api_key="none")
(model,) = client.models.list()
stream = client.chat.completions.create(
    model=model.id,
    messages=[{"role": "user", "content": message}],
    max_tokens=32,
    temperature=0,
    stream=True,
)
for chunk in stream:
    print(chunk.choices[0].delta.content or "", end="", flush=True)
print()
