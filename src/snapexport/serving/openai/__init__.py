"""OpenAI's HTTP interface over a `Model`.

    body -> protocol -> preprocess -> streaming -> model
            fields      token ids     n answers      |
    answer <- responses, logprobs <- streaming <- outputs

`api_server` joins them into routes; `http_server` listens and drains. Needs starlette and uvicorn.
"""
