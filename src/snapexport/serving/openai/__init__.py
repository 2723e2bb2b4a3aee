"""OpenAI's HTTP interface over a `Model`, with /v1/responses, and Anthropic's /v1/messages.

    api       the routes, and /openapi.json
    requests  bodies to the runtime's requests
    http/     connections  bounds their number, and the times that clients take
              access       who may enter, the log, request ids
              errors       exceptions to answers
              health       whether the model answers
    bodies/   parsing      reads a body within bounds, and refuses what is wrong with it
              completions  the fields of all, and those of /v1/completions
              chat         /v1/chat/completions, and /tokenize
              responses    /v1/responses
              messages     /v1/messages
    writers/  writer       the protocol, and the parts of an answer
              choices      of /v1/completions and /v1/chat/completions
              responses    of /v1/responses
              messages     of /v1/messages
              stream       merges outputs, collects them or sends them as events

A Responses request is read by bodies/responses, which makes a chat of it, and answered by
writers/responses. Needs starlette and uvicorn.
"""
