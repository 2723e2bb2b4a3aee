"""Turns a conversation into a prompt, by the chat template of a build.

    template_files     the template's text and its special tokens, from the build's files
    chat_template      `ChatTemplate`: renders messages, as transformers does
    template_process   the same in processes of its own, since a template may loop
    chat_prompts       `ChatPrompts`: messages to token ids, and the token that ends an answer

Needs jinja2, but for template_files. Importing this package loads nothing.
"""
