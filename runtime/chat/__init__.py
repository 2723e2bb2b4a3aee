"""Turns conversations into requests by the chat template of a build, and reads the answers.

    chat_prompts       `ChatPrompts`: messages to a request, and how its answers are read
    template_files     the template's text and its special tokens, from the build's files
    chat_template      `ChatTemplate`: renders messages, as transformers does; `TemplateProcesses`:
                       the same in processes of their own, since a template may loop
    template_habits    how a template closes answers, shows calls, and begins the next turn
    parsers/           content, reasoning and tool calls in an answer's text

An LLM imports it when the first chat comes. The template modules need jinja2,
but for template_files and template_habits. Importing this package loads nothing.
"""
