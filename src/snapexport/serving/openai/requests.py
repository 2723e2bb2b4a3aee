"""Turns bodies into the runtime's requests, and into tokens for /tokenize and its kin.

The runtime renders chats and checks prompts; here is what a body may ask of it. Knows no HTTP.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from snapexport.runtime.chat.chat_prompts import ChatPrompt, ChatPrompts
from snapexport.runtime.chat.parsers.table import Reading
from snapexport.runtime.requests.prompts import encode, require_readable, require_usable
from snapexport.runtime.requests.request import Request, SamplingParams
from snapexport.serving.model import Model
from snapexport.serving.openai.bodies.chat import (
    ChatRequest,
    Conversation,
    DetokenizeRequest,
    TokenizeRequest,
)
from snapexport.serving.openai.bodies.completions import CompletionRequest, RequestBody
from snapexport.serving.openai.bodies.messages import MessagesRequest, Prompt
from snapexport.serving.openai.bodies.responses import ResponsesRequest
from snapexport.serving.openai.http.errors import ApiError, client_errors, invalid
from snapexport.serving.page.kept import PromptText

MOST_ANSWERS = 64
"""Most answers of one body: prompts times n."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """The runtime's requests for one body.

    requests: n for each prompt, in a row.
    prompt_tokens: of all prompts, each counted once.
    echoes: the text before each answer, if the body has `echo`.
    first_tokens: the prompt's first token of each answer, if the prompt's tokens have log
    probabilities: only this token has none.
    reading: of the answers' text.
    form_field: the field that the structured outputs come from, which are compiled afterwards.
    prompt_text: of an answer that says what its caches hold of it.
    """

    requests: Sequence[Request]
    prompt_tokens: int
    echoes: Sequence[str] = ()
    first_tokens: Sequence[int] = ()
    reading: Reading = Reading()  # noqa: RUF009 (it is frozen)
    form_field: str = ""
    prompt_text: PromptText | None = None

    @property
    def has_forms(self) -> bool:
        return any(one.params and one.params.structured_outputs for one in self.requests)


def chat(model: Model, body: ChatRequest) -> Prepared:
    """The chat's request, n times. Raises ApiError."""
    _require_room(model, body, 1)
    prompt = chat_prompt(model, body)
    with client_errors("messages"):
        request = model.read(prompt.token_ids)
    params, chats = _params(model, body, len(prompt.token_ids)), chats_of(model)
    if body.forced_tools:  # response_format is then that of later answers, as with OpenAI
        if params.structured_outputs and body.form_field != "response_format":
            message = f"{body.form_field} and a tool_choice that forces a call prescribe two forms"
            raise invalid(message, "tool_choice")
        params = replace(params, structured_outputs=None)
    with client_errors("tools"):
        params = chats.params(prompt, params)
    reading = chats.reading(prompt, has_form=params.structured_outputs is not None)
    request = replace(request, params=params, park_at=prompt.park_at, shows_held=body.kept)
    shown = PromptText.of(prompt.text, model.tokenizer) if body.kept and model.tokenizer else None
    return Prepared(
        _answers(body, request),
        len(request.prompt_token_ids),
        reading=replace(reading, parallel=body.parallel_tool_calls),
        form_field="tools" if body.forced_tools else body.form_field,
        prompt_text=shown,
    )


def chat_by_another_name(model: Model, body: ResponsesRequest | MessagesRequest) -> Prepared:
    """The request of a body that stands for a chat's. Raises ApiError, with its own fields."""
    try:
        prepared = chat(model, body.as_chat())
    except ApiError as error:
        raise error.with_fields(body.own_fields) from None
    field = prepared.form_field
    return replace(prepared, form_field=body.own_fields.get(field, field))


def chat_prompt(model: Model, body: Conversation) -> ChatPrompt:
    """The prompt that the chat template makes of a body. Raises ApiError."""
    with client_errors("chat_template_kwargs"):
        given = body.as_runtimes()
    with client_errors("messages"):
        return chats_of(model).prompt(given, parks=model.llm.parks)


def chats_of(model: Model) -> ChatPrompts:
    """The model's chats. Raises ApiError for a build without a template."""
    if model.chat is None:
        raise invalid(
            "the build has no chat template: use /v1/completions, or copy the checkpoint's "
            "chat_template.jinja into the build",
            code="no_chat_template",
        )
    return model.chat


def completion(model: Model, body: CompletionRequest) -> Prepared:
    """A request for each prompt, n times in a row. Raises ApiError."""
    _require_room(model, body, len(body.prompt))
    with client_errors("prompt"):
        prompts = [model.read(prompt) for prompt in body.prompt]
    echoes = []
    if body.echo and model.tokenizer:
        decode = model.tokenizer.decode
        echoes = [text if isinstance(text, str) else decode(text) for text in body.prompt]
    answers = [
        answer
        for prompt in prompts
        for params in [_params(model, body, len(prompt.prompt_token_ids))]
        for answer in _answers(body, replace(prompt, params=params))
    ]
    scored = [_score_prompt(answer, body) for answer in answers] if body.scores_prompt else []
    return Prepared(
        scored or answers,
        sum(len(prompt.prompt_token_ids) for prompt in prompts),
        [text for text in echoes for _ in range(body.n)],
        [answer.prompt_token_ids[0] for answer in scored],
        form_field=body.form_field,
    )


def _score_prompt(request: Request, body: CompletionRequest) -> Request:
    """The request with all tokens of its prompt but the first fed through decode, which scores."""
    first, *others = request.prompt_token_ids
    if body.max_tokens == 0 and not others:
        raise invalid("a prompt of one token has nothing to score", "prompt")
    return replace(
        request,
        prompt_token_ids=(first,),
        continuation=tuple(others),
        prompt_logprobs=body.logprobs,
        params=None if body.max_tokens == 0 else request.params,
    )


def compile_forms(model: Model, prepared: Prepared) -> Prepared:
    """The same requests with the grammars of their structured outputs, from whatever field.

    It may take seconds, in a thread. Raises ApiError.
    """
    with client_errors(prepared.form_field):
        requests = [model.llm.constrained(request) for request in prepared.requests]
    return replace(prepared, requests=requests)


def tokenize(model: Model, body: TokenizeRequest) -> dict[str, Any]:
    """The answer of /tokenize: tokens of a text or a chat. Raises ApiError."""
    text, special = body.prompt, body.add_special_tokens
    with client_errors("messages" if text is None else "prompt"):
        if text is None:
            prompt = chat_prompt(model, body)
            ids = encode(prompt.text, model.tokenizer, True) if special else prompt.token_ids
        else:
            require_readable(text, model.limits)
            ids = encode(text, model.tokenizer, special is not False)
    names = [model.tokenizer.id_to_token(token) for token in ids] if model.tokenizer else None
    return {
        "count": len(ids),
        "max_model_len": model.limits.longest_prompt,
        "tokens": ids,
        "token_strs": names if body.return_token_strs else None,
    }


def detokenize(model: Model, body: DetokenizeRequest) -> dict[str, Any]:
    """The answer of /detokenize: the text of tokens. Raises ApiError."""
    most = model.limits.vocab_size
    if wrong := [token for token in body.tokens if not 0 <= token < most]:
        raise invalid(f"{wrong[0]} is not a token of the model", "tokens")
    if model.tokenizer is None:
        raise invalid("the build has no tokenizer")
    return {"prompt": model.tokenizer.decode(body.tokens, skip_special_tokens=False)}


def count_tokens(model: Model, body: Prompt | ResponsesRequest) -> dict[str, Any]:
    """The answer of /v1/messages/count_tokens. Raises ApiError."""
    return {"input_tokens": len(chat_prompt(model, body.as_chat()).token_ids)}


def count_input(model: Model, body: ResponsesRequest) -> dict[str, Any]:
    """The answer of /v1/responses/input_tokens. Raises ApiError."""
    return {"object": "response.input_tokens", **count_tokens(model, body)}


def _require_room(model: Model, body: RequestBody, prompts: int) -> None:
    most = min(MOST_ANSWERS, model.most_answers)
    if prompts * body.n > most:
        raise invalid(f"a request may have at most {most} answers, prompts x n", "n")


def _answers(body: RequestBody, request: Request) -> list[Request]:
    """The request n times, each with a seed of its own."""
    assert request.params, "a body always has them"
    seeds = [None if body.seed is None else body.seed + index for index in range(body.n)]
    each = [replace(request.params, seed=seed) for seed in seeds]
    named = replace(request, session=body.prompt_cache_key or "", cache_salt=body.cache_salt or "")
    return [replace(named, params=one) for one in each]


def _params(model: Model, body: RequestBody, prompt_length: int) -> SamplingParams:
    """The body's sampling, without its seed; the server's defaults where it names none."""
    left = model.limits.positions - prompt_length + 1
    limit = body.token_limit or model.defaults.get("max_tokens") or body.default_tokens or left

    def choose(name: str) -> Any:
        own = getattr(body, name)
        return own if name in body.model_fields_set else model.defaults.get(name, own)

    with client_errors("min_tokens"):  # the other fields have their limits already
        params = SamplingParams(
            max_tokens=min(limit, left),
            temperature=choose("temperature"),
            top_p=choose("top_p"),
            top_k=max(choose("top_k"), 0),
            stop=tuple(body.stop),
            ignore_eos=body.ignore_eos,
            logprobs=body.top_logprobs_count,
            stop_token_ids=body.stop_token_ids,
            presence_penalty=body.presence_penalty,
            frequency_penalty=body.frequency_penalty,
            repetition_penalty=choose("repetition_penalty"),
            min_p=choose("min_p"),
            logit_bias=body.logit_bias or None,
            min_tokens=body.min_tokens,
            skip_special_tokens=body.skip_special_tokens,
        )
    with client_errors(body.form_field):
        params = replace(params, structured_outputs=body.form())
    with client_errors("logit_bias"):
        require_usable(params, model.tokenizer, model.limits)
    return params
