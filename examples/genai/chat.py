"""A chat of several turns with a folder of `snapexport genai`, by onnxruntime-genai alone.

    python chat.py FOLDER "a question" "another one"

Memory stays as it is, however long the chat becomes. Each turn costs its own tokens.
"""

import json
import sys

import onnxruntime_genai as genai

folder, *questions = sys.argv[1:]
model = genai.Model(folder)
tokenizer = genai.Tokenizer(model)
generator = genai.Generator(model, genai.GeneratorParams(model))
messages: list[dict[str, str]] = []
done = ""
for question in questions:
    messages.append({"role": "user", "content": question})
    text = tokenizer.apply_chat_template(json.dumps(messages), add_generation_prompt=True)
    # The template puts the end of the last answer before the question. genai samples that token and
    # never runs it, so the model sees it here for the first time.
    generator.append_tokens(tokenizer.encode(text.removeprefix(done)))
    stream, answer = tokenizer.create_stream(), ""
    while not generator.is_done():
        generator.generate_next_token()
        if not generator.is_done():
            piece = stream.decode(generator.get_next_tokens()[0])
            print(piece, end="", flush=True)
            answer += piece
    print()
    messages.append({"role": "assistant", "content": answer})
    done = text + answer
